//! The webhook of a configuration: its server, and its registration with API servers.

use futures::try_join;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::{Deployment, DeploymentSpec},
    },
};
use kube::ResourceExt;

use super::{
    super::{
        Context, Options,
        apply::{self, Found, Kind, Wanted},
        conditions::{Finding, Reason},
        observe::trusted_authorities,
        reconcile::ReconcileError,
        resources::{
            Inputs, Names, Part,
            program::{Placement, Program, replica_set_of},
            webhook,
        },
        webhook_resources::Use,
    },
    propagation::Age,
};
use crate::{
    api::v1alpha1::PeerPodConfig,
    names::DEFAULT_IMAGE,
    webhook::{certificates::rotation::SECRET, tls::TlsOptions},
};

impl Context {
    /// Sets up the webhook: its server, then its registration.
    pub(super) async fn bring_webhook(
        &self,
        inputs: &Inputs<'_>,
        tls: &TlsOptions,
        kinds: &[Kind],
        former: &[Kind],
    ) -> Result<Found, ReconcileError> {
        let config = inputs.config;
        self.ensure_webhook_resources(config, Use::Needed).await?;
        let (name, names) = (config.name_any(), Names::of(config));
        let servers = [
            Wanted::of(&webhook::deployment(inputs, tls, self.program().await?))?,
            Wanted::of(&webhook::service(inputs))?,
            Wanted::of(&webhook::disruption_budget(inputs))?,
        ];
        let (serving, registrations): (Vec<_>, Vec<_>) =
            kinds.iter().cloned().partition(|kind| servers.iter().any(|server| server.is_a(kind)));
        let mut found = apply::bring(&self.client, &self.drifts, &name, &serving, &servers).await?;
        let authorities = match self.webhook_resources.authorities() {
            // A deleted Secret requests another certificate, and until there is one the webhook serves the old one. If the Secret
            // has a certificate and no ca.crt, another program may write the authorities.
            None => self.observer.trusted_authorities(&names.cluster_scoped).await?,
            authorities => authorities,
        };
        let answers = available(found.get(&names.webhook).as_ref()) > 0
            && authorities.is_some()
            && self.certificate_problem(config, authorities.as_ref()).is_none();
        // A registered webhook that does not answer refuses Pods. While there is another admission, the registration waits. Without
        // any admission, Pods would not become peer pods, so the registration does not wait.
        let due = answers || {
            let (registered, has_another) = try_join!(
                apply::any(&self.client, &name, &registrations),
                apply::any(&self.client, &name, former)
            )?;
            registered || !(has_another || self.is_stood_in_for(config, &[kinds, former].concat()).await?)
        };
        if due {
            let registration = Wanted::of(&webhook::configuration(inputs, authorities))?;
            let registered =
                apply::bring(&self.client, &self.drifts, &name, &registrations, &[registration]).await?;
            found.objects.extend(registered.objects);
            found.applied.extend(registered.applied);
            found.unmanaged.extend(registered.unmanaged);
        }
        Ok(found)
    }

    /// The state of the webhook. `age`: of its registration.
    pub(super) fn webhook_state(&self, config: &PeerPodConfig, found: &Found, age: Option<Age>) -> Finding {
        let names = Names::of(config);
        let remedy = Part::Webhook.diagnosis(config, &self.options.namespace);
        let registration: Option<MutatingWebhookConfiguration> = found.get(&names.cluster_scoped);
        let authorities =
            registration.and_then(trusted_authorities).or_else(|| self.webhook_resources.authorities());
        match self.certificate_problem(config, authorities.as_ref()) {
            Some(problem) => {
                let missing = match self.webhook_resources.authorities() {
                    None => "add the missing ca.crt with its authority, ",
                    Some(_) => "",
                };
                let message = format!(
                    "the operator did not create the certificate in the Secret {SECRET}, and the \
                     certificate {problem}; {missing}issue another certificate, or delete the Secret: the \
                     webhook then creates a certificate"
                );
                Finding::new(Reason::CertificateUnfit, message)
            }
            None => state(found, &names, &remedy, self.webhook_resources.is_unmanaged(), age),
        }
    }

    /// Why API servers that trust these authorities reject the certificate in the Secret, if they do.
    fn certificate_problem(
        &self,
        config: &PeerPodConfig,
        authorities: Option<&ByteString>,
    ) -> Option<String> {
        let name = format!("{}.{}.svc", Names::of(config).webhook, self.options.namespace);
        self.webhook_resources.certificate_problem(&name, authorities, Timestamp::now())
    }

    /// What the webhook runs and where: the same as the operator, unless another image is set.
    async fn program(&self) -> Result<&Program, ReconcileError> {
        let asked = async || {
            let Options { pod, image, secure_metrics, .. } = &self.options;
            let as_operator = |program| Program { secure_metrics: *secure_metrics, ..program };
            let Some(name) = pod else {
                return Ok(as_operator(Program::public(image.as_deref().unwrap_or(DEFAULT_IMAGE))));
            };
            let pod = self.observer.pod(name).await?.unwrap_or_default();
            let replicas = match replica_set_of(&pod) {
                Some(name) => self.observer.replica_set(name).await?,
                None => None,
            };
            let placement = replicas.as_ref().map(Placement::of).unwrap_or_default();
            let own = Program::of(&pod).map(|own| Program { placement, ..own });
            Program::with_image(own, image.as_deref())
                .map(as_operator)
                .ok_or_else(|| ReconcileError::NoPod(name.clone()))
        };
        self.program.get_or_try_init(asked).await
    }
}

/// `unmanaged`: the operator did not create the certificate in the Secret.
fn state(found: &Found, names: &Names, remedy: &str, unmanaged: bool, age: Option<Age>) -> Finding {
    let deployment: Option<Deployment> = found.get(&names.webhook);
    let registration: Option<MutatingWebhookConfiguration> = found.get(&names.cluster_scoped);
    let trusted = registration.as_ref().and_then(|it| it.webhooks.as_ref()).is_some_and(|webhooks| {
        !webhooks.is_empty() && webhooks.iter().all(|it| it.client_config.ca_bundle.is_some())
    });
    let starting = |message: &str| Finding::new(Reason::WebhookStarting, message);
    match (available(deployment.as_ref()), trusted) {
        (0, _) => starting(&format!("no Pod of the webhook is available yet; {remedy}")),
        (_, false) if unmanaged => starting(&format!(
            "the operator did not create the certificate in the Secret {SECRET}, and the Secret has no \
             ca.crt; add a ca.crt with the authorities that API servers trust, or delete the Secret: the \
             webhook then creates a certificate"
        )),
        (_, false) => starting(&format!("the Secret {SECRET} has no ca.crt yet")),
        (_, true) if !deployment.is_some_and(|deployment| is_rolled_out(&deployment)) => {
            starting(&format!("not all Pods of the webhook are up to date; {remedy}"))
        }
        // API servers need not learn later changes at once: old and new authorities are both valid for a while.
        (_, true) if !age.is_some_and(Age::is_known) => {
            starting("the operator registered the webhook a moment ago")
        }
        (pods, true) => {
            Finding::new(Reason::WebhookRunning, format!("{pods} Pods of the webhook are available"))
        }
    }
}

fn available(deployment: Option<&Deployment>) -> i32 {
    deployment.and_then(|it| it.status.as_ref()?.available_replicas).unwrap_or(0)
}

/// Whether all Pods have the present template. While a former Pod still answers, it does so by the former template.
fn is_rolled_out(deployment: &Deployment) -> bool {
    let spec: Option<&DeploymentSpec> = (&deployment.spec).into();
    let wanted = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    deployment.status.as_ref().is_some_and(|status| {
        status.observed_generation == deployment.metadata.generation
            && status.updated_replicas.unwrap_or(0) >= wanted
            && status.replicas == status.updated_replicas
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_rolled_out_when_no_pod_of_before_serves_any_more() {
        let rolled_out = |observed: i64, replicas: i32, updated: i32| {
            let deployment = serde_json::from_value(json!({
                "metadata": { "generation": 2 },
                "spec": { "replicas": 2, "selector": {}, "template": {} },
                "status": { "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated },
            }));
            is_rolled_out(&deployment.unwrap())
        };
        assert!(rolled_out(2, 2, 2));
        assert!(!rolled_out(1, 2, 2));
        assert!(!rolled_out(2, 2, 1));
        // All new ones were made, and an old one still serves.
        assert!(!rolled_out(2, 3, 2));
    }
}
