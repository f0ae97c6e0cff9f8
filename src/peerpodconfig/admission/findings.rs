//! The conditions about the admission of Pods *(no client)*.

use std::collections::BTreeSet;

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
        conditions::{Finding, Reason},
        findings::{Findings, UNWATCHED_RESYNC},
        resources::{Names, Owner, Part, policy},
        wanted::Found,
    },
    Applied,
    desired::Desired,
    means::Means,
    observe::{Observed, WebhookInputs, trusted_authorities},
    propagation::PROPAGATION_TIME,
    sharing::is_ready,
    webhook_resources::Watched,
};
use crate::{api::v1alpha1::PeerPodConfig, webhook::certificates::rotation::SECRET};

/// The result of setting up the admission of one configuration.
pub(super) struct Admitted<'a> {
    pub(super) owner: Owner<'a>,
    pub(super) observed: &'a Observed,
    pub(super) desired: &'a Desired,
    pub(super) applied: Applied,
    /// Whether the runtime class exists.
    pub(super) class_exists: bool,
}

impl Admitted<'_> {
    /// The state of the admission; `None`: another program provides it.
    pub(super) fn state(&self, watched: &Watched) -> Option<Finding> {
        let Applied { found, is_settling, .. } = &self.applied;
        if !found.unmanaged.is_empty() {
            let message = "the operator cannot create all objects of the admission";
            return Some(Finding::new(Reason::AdmissionWithheld, message));
        }
        if let Some(older) = &self.observed.older {
            return Some(shared_state(older));
        }
        if self.desired.is_unsupported {
            let message = "the API server does not support mutating admission policies (Kubernetes 1.36 and later \
                 do); use the mode Webhook";
            return Some(Finding::new(Reason::PolicyUnsupported, message));
        }
        match self.desired.means {
            Means::None => None,
            Means::Policy => Some(policy_state(&self.owner, *is_settling)),
            Means::Webhook => Some(webhook_state(&self.owner, found, watched, *is_settling)),
        }
    }

    /// All conditions, and when to check again what the operator does not watch. `state`: of the admission.
    pub(super) fn findings(self, state: Option<Finding>) -> Findings {
        let Owner { config, .. } = self.owner;
        let Applied { found, webhook, is_settling } = self.applied;
        let again = if state.as_ref().is_none_or(|state| state.reason.status()) || self.desired.is_unsupported
        {
            None
        } else if !found.unmanaged.is_empty()
            // A certificate becomes valid without an event.
            || state.as_ref().is_some_and(|state| state.reason == Reason::CertificateUnfit)
        {
            Some(UNWATCHED_RESYNC)
        } else {
            // No watch shows the older configuration's status or what API servers have learnt. Everything else that an admission waits
            // for is watched.
            (self.observed.older.is_some() || is_settling).then_some(PROPAGATION_TIME)
        };
        let mut all: Vec<_> = found.name_taken().into_iter().collect();
        all.extend(self.observed.older.as_deref().and_then(|older| differing(config, older)));
        all.extend(webhook.and_then(|inputs| tls_refused(&config.spec.config_map_name, &inputs)));
        // Without the runtime class there are no peer pods, whatever the admission.
        all.push(if !self.class_exists {
            let message = format!(
                "the RuntimeClass {} does not exist; install Kata Containers with its remote hypervisor: \
                 that creates the RuntimeClass",
                config.spec.admission.runtime_class_name
            );
            Finding::new(Reason::RuntimeClassMissing, message)
        } else if let Some(state) = state {
            state
        } else {
            Finding::new(Reason::AdmissionElsewhere, "admission.mode is None")
        });
        Findings { all, again }
    }
}

/// The state of an older configuration's admission that this one shares, as both have the same runtime class.
fn shared_state(older: &PeerPodConfig) -> Finding {
    let name = older.name_any();
    if is_ready(older) {
        let message = format!("PeerPodConfig {name} provides the admission for this runtime class");
        Finding::new(Reason::AdmissionShared, message)
    } else {
        let message = format!(
            "PeerPodConfig {name} provides the admission for this runtime class, but is not ready; its \
             status says why"
        );
        Finding::new(Reason::SharedNotReady, message)
    }
}

/// The fields of the admission in which a configuration differs from the older one that provides it.
fn differing(config: &PeerPodConfig, older: &PeerPodConfig) -> Option<Finding> {
    let excluded = |config: &PeerPodConfig| {
        config.spec.admission.excluded_namespaces.iter().cloned().collect::<BTreeSet<_>>()
    };
    let (own, others) = (&config.spec.admission, &older.spec.admission);
    let fields: Vec<_> = [
        ("extendedResource", own.extended_resource != others.extended_resource),
        ("sizing", own.sizing != others.sizing),
        ("excludedNamespaces", excluded(config) != excluded(older)),
    ]
    .into_iter()
    .filter(|&(_, differs)| differs)
    .map(|(field, _)| format!("admission.{field}"))
    .collect();
    (!fields.is_empty()).then(|| {
        let message = format!(
            "PeerPodConfig {} provides the admission for the runtime class {}, and differs in {}; use the \
             same values, or another runtimeClassName here",
            older.name_any(),
            own.runtime_class_name,
            fields.join(", ")
        );
        Finding::new(Reason::AdmissionDiffers, message)
    })
}

/// The setting that the webhook cannot use, and the values that stay in force.
fn tls_refused(config_map: &str, inputs: &WebhookInputs) -> Option<Finding> {
    let problem = inputs.refused.as_ref()?;
    let [min_version, ciphers] = inputs.tls.values();
    let or_default = |value: String| if value.is_empty() { "its default".to_owned() } else { value };
    let message = format!(
        "the webhook cannot use the ConfigMap {config_map}: {problem}; until it is corrected, \
         TLS_MIN_VERSION is {}, and TLS_CIPHER_SUITES is {}",
        or_default(min_version),
        or_default(ciphers)
    );
    Some(Finding::new(Reason::TlsRefused, message))
}

/// Whether the policy is in force, and what it does not do. `is_settling`: API servers may not apply it yet.
fn policy_state(owner: &Owner<'_>, is_settling: bool) -> Finding {
    if is_settling {
        return Finding::new(
            Reason::PolicyStarting,
            "the operator created or changed the policy a moment ago",
        );
    }
    let gaps = policy::unsupported(&owner.config.spec);
    let gaps = gaps.iter().map(|gap| format!("the webhook {}, the policy {}", gap.webhook, gap.policy));
    let message = gaps.fold("the policy is in force".to_owned(), |message, gap| format!("{message}; {gap}"));
    Finding::new(Reason::PolicyInForce, message)
}

/// The state of the webhook. `is_settling`: API servers may not know of its registration yet.
fn webhook_state(owner: &Owner<'_>, found: &Found, watched: &Watched, is_settling: bool) -> Finding {
    let names = Names::of(owner.config);
    let remedy = Part::Webhook.diagnosis(owner.config, owner.namespace);
    let registration: Option<MutatingWebhookConfiguration> = found.get(&names.cluster_scoped);
    let authorities = registration.and_then(trusted_authorities).or_else(|| watched.authorities());
    match certificate_problem(watched, owner, authorities.as_ref(), Timestamp::now()) {
        Some(problem) => {
            let missing = match watched.authorities() {
                None => "add the missing ca.crt with its authority, ",
                Some(_) => "",
            };
            let message = format!(
                "the operator did not create the certificate in the Secret {SECRET}, and the certificate \
                 {problem}; {missing}issue another certificate, or delete the Secret: the webhook then \
                 creates a certificate"
            );
            Finding::new(Reason::CertificateUnfit, message)
        }
        None => serving_state(found, &names, &remedy, watched.is_unmanaged(), is_settling),
    }
}

/// Why API servers that trust these authorities reject the certificate in the Secret, if they do.
pub(super) fn certificate_problem(
    watched: &Watched,
    owner: &Owner<'_>,
    authorities: Option<&ByteString>,
    now: Timestamp,
) -> Option<String> {
    let name = format!("{}.{}.svc", Names::of(owner.config).webhook, owner.namespace);
    watched.certificate_problem(&name, authorities, now)
}

/// `unmanaged`: the operator did not create the certificate in the Secret. `is_settling`: as for the webhook's state.
fn serving_state(found: &Found, names: &Names, remedy: &str, unmanaged: bool, is_settling: bool) -> Finding {
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
        (_, true) if is_settling => starting("the operator registered the webhook a moment ago"),
        (pods, true) => {
            Finding::new(Reason::WebhookRunning, format!("{pods} Pods of the webhook are available"))
        }
    }
}

pub(super) fn available(deployment: Option<&Deployment>) -> i32 {
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
mod tests;
