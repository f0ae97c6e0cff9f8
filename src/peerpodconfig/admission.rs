//! The part of a reconcile that sets up the admission of Pods.

mod messages;
mod propagation;
mod registration;

use std::time::Instant;

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, apps::v1::Deployment, core::v1::Service,
    policy::v1::PodDisruptionBudget,
};
use kube::{ResourceExt, api::DeleteParams};
use operator_kit::api_call::ApiError;
use serde_json::to_value;

pub(super) use self::propagation::Propagation;
use self::{
    messages::{differing, has_reason, is_ready, policy_state, shared_state, tls_refused},
    propagation::{Age, PROPAGATION_TIME},
};
use super::{
    Context,
    adaptor::UNWATCHED_RESYNC,
    apply::{self, Found, Kind, Wanted},
    conditions::{Finding, Reason},
    reconcile::{Part, ReconcileError, name_taken},
    resources::{AdaptorSettings, Names, policy, webhook},
    webhook_resources::Use,
};
use crate::{
    api::v1alpha1::{AdmissionMode, PeerPodConfig},
    webhook::tls::{TlsError, TlsOptions},
};

impl Context {
    /// Sets up the admission of Pods. `tls`: the TLS options in the settings, if they are known.
    pub(super) async fn admission(
        &self,
        config: &PeerPodConfig,
        tls: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<Part, ReconcileError> {
        // No object of the admission depends on cloud-api-adaptor's settings.
        let settings = AdaptorSettings::read(None, None);
        let inputs = &self.inputs(config, &settings);
        let admission = &config.spec.admission;
        let served = self.policies.ask(&self.client).await?;
        let kinds = self.admission_kinds(served);
        let handed_over = self.hand_over(config, &kinds).await?;
        if let Some(kept) = handed_over.as_ref().filter(|finding| finding.reason == Reason::AdmissionKept) {
            // Unchanged: the webhook that serves Pods of the former class must not get another one.
            return Ok(Part { findings: vec![kept.clone()], again: Some(PROPAGATION_TIME) });
        }
        // With the mode None it does not matter which configuration has the admission.
        let sharing = self.older_with_same_class(config).filter(|_| admission.mode != AdmissionMode::None);
        let is_unsupported = sharing.is_none() && admission.mode == AdmissionMode::Policy && !served;
        let means = match (&sharing, admission.mode) {
            // Nothing replaces the present admission: without it Pods would not become peer pods.
            (Some(older), _) if !is_ready(older) => self.current_means(config, &kinds).await?,
            (None, AdmissionMode::Policy) if !served => self.current_means(config, &kinds).await?,
            (Some(_), _) | (None, AdmissionMode::None) => Means::None,
            (None, AdmissionMode::Policy) => Means::Policy,
            (None, AdmissionMode::Webhook) => Means::Webhook,
        };
        let (tls, refused) =
            if means == Means::Webhook { self.tls(config, tls).await? } else { Default::default() };
        let name = config.name_any();
        let (kinds, former): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|kind| means.consists_of(kind));
        let found = match means {
            Means::None => Found::default(),
            Means::Policy => {
                let [policies, bindings] = policy::resources();
                let wanted = [
                    Wanted::new(policies, to_value(policy::policy(inputs))?),
                    Wanted::new(bindings, to_value(policy::binding(inputs))?),
                ];
                apply::bring(&self.client, &self.drifts, &name, &kinds, &wanted).await?
            }
            Means::Webhook => self.bring_webhook(inputs, &tls, &kinds, &former).await?,
        };
        let age = self.age(config, means, &found);
        let is_settling = !age.is_some_and(Age::is_propagated);
        let taken = name_taken(&found);
        let state = match (means, &sharing) {
            _ if taken.is_some() => Some(Finding::new(
                Reason::AdmissionWithheld,
                "the operator cannot create all objects of the admission",
            )),
            (_, Some(older)) => Some(shared_state(older)),
            _ if is_unsupported => {
                let message = "the API server does not support mutating admission policies (Kubernetes 1.36 and \
                     later do); use the mode Webhook";
                Some(Finding::new(Reason::PolicyUnsupported, message))
            }
            (Means::None, None) => None,
            (Means::Policy, None) => Some(policy_state(inputs, is_settling)),
            (Means::Webhook, None) => Some(self.webhook_state(config, &found, age)),
        };
        let mut part = Part { findings: taken.into_iter().chain(handed_over).collect(), again: None };
        part.findings.extend(sharing.as_deref().and_then(|older| differing(config, older)));
        part.findings.extend(refused);
        let takes_over = state.as_ref().is_none_or(|state| state.reason.status());
        part.again = if part.findings.iter().any(|finding| finding.reason == Reason::AdmissionDropped) {
            // This is reported once.
            Some(PROPAGATION_TIME)
        } else if takes_over || is_unsupported {
            None
        } else if !found.unmanaged.is_empty() {
            Some(UNWATCHED_RESYNC)
        } else {
            // No watch shows the older configuration's status, another configuration's admission that is to be removed before this
            // one's registration exists, or what API servers have learnt. Everything else that an admission waits for is watched,
            // except for the validity of a certificate that the operator did not create.
            (sharing.is_some() || is_settling).then_some(PROPAGATION_TIME)
        };
        // The new admission is ready before the former one is removed, the former one's registration first.
        if takes_over && !former.is_empty() {
            let former: Vec<_> = former.into_iter().rev().collect();
            apply::clear(&self.client, &name, &former, &DeleteParams::background()).await?;
        }
        if takes_over && means != Means::Webhook {
            self.ensure_webhook_resources(config, Use::Over).await?;
        }
        // Without the runtime class there are no peer pods, whatever the admission.
        part.findings.push(if !self.observer.runtime_class_exists(&admission.runtime_class_name).await? {
            let message = format!(
                "the RuntimeClass {} does not exist; install Kata Containers with its remote hypervisor: \
                 that creates the RuntimeClass",
                admission.runtime_class_name
            );
            Finding::new(Reason::RuntimeClassMissing, message)
        } else if let Some(state) = state {
            state
        } else {
            Finding::new(Reason::AdmissionElsewhere, "admission.mode is None")
        });
        Ok(part)
    }

    /// The age of a configuration's registration or policy, if there is one.
    fn age(&self, config: &PeerPodConfig, means: Means, found: &Found) -> Option<Age> {
        let was_in_force = match means {
            Means::None => false,
            Means::Webhook => has_reason(config, Reason::WebhookRunning),
            Means::Policy => has_reason(config, Reason::PolicyInForce),
        };
        let there = self.here().iter().map(|config| config.name_any()).collect();
        self.propagation.observe(&config.name_any(), found, was_in_force, &there, Instant::now())
    }

    /// The TLS options of the webhook. If the settings are unknown, or unusable (which a condition reports), the options of its Pods
    /// stay as they are.
    async fn tls(
        &self,
        config: &PeerPodConfig,
        asked: Option<Result<TlsOptions, TlsError>>,
    ) -> Result<(TlsOptions, Option<Finding>), ApiError> {
        let problem = match asked {
            Some(Ok(asked)) => return Ok((asked, None)),
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        let deployment = self.observer.deployment(&Names::of(config).webhook).await?;
        let in_force = deployment.as_ref().map(webhook::tls_of_deployment).unwrap_or_default();
        let refused = problem.map(|problem| tls_refused(&config.spec.config_map_name, &problem, &in_force));
        Ok((in_force, refused))
    }

    /// The means of a configuration's present admission for its runtime class.
    async fn current_means(&self, config: &PeerPodConfig, kinds: &[Kind]) -> Result<Means, ApiError> {
        let served = apply::class_served(&self.client, &config.name_any(), kinds).await?;
        let served = served.filter(|(class, _)| *class == config.spec.admission.runtime_class_name);
        Ok(served.map_or(Means::None, |(_, kind)| Means::of(kind)))
    }

    /// All kinds of objects of an admission, in the order of their creation.
    pub(super) fn admission_kinds(&self, serves_policies: bool) -> Vec<Kind> {
        let mut kinds = vec![
            self.kind::<Deployment>(true),
            self.kind::<Service>(true),
            self.kind::<PodDisruptionBudget>(true),
            self.kind::<MutatingWebhookConfiguration>(false),
        ];
        if serves_policies {
            kinds.extend(policy::resources().map(|resource| Kind { resource, namespace: None }));
        }
        kinds
    }
}

/// What turns Pods into peer pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    None,
    Webhook,
    Policy,
}

impl Means {
    /// The means that objects of this kind belong to.
    fn of(kind: &Kind) -> Self {
        if Self::Policy.consists_of(kind) { Self::Policy } else { Self::Webhook }
    }

    pub(super) fn consists_of(self, kind: &Kind) -> bool {
        let is_policy = policy::resources().iter().any(|resource| resource.kind == kind.resource.kind);
        match self {
            Self::None => false,
            Self::Policy => is_policy,
            Self::Webhook => !is_policy,
        }
    }
}
