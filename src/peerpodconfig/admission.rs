//! The part of a pass that is about the admission of Pods.

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, apps::v1::Deployment, core::v1::Service,
    policy::v1::PodDisruptionBudget,
};
use kube::{ResourceExt, api::ApiResource, core::GroupVersionKind};
use serde_json::to_value;

use super::{
    Context,
    apply::{self, Found, Kind, Wanted},
    build::{Inputs, Names, policy, webhook},
    pass::{Part, PassError, name_taken},
    verdict::{Finding, Reason},
};
use crate::{
    api::v1alpha1::{AdmissionMode, PeerPodConfig},
    runtime::api_call::{self, ApiError},
};

impl Context {
    /// The admission of Pods.
    pub(super) async fn admission(&self, inputs: &Inputs<'_>) -> Result<Part, PassError> {
        let admission = &inputs.config.spec.admission;
        let served = self.serves_policies().await?;
        let sharing = self.older_with_same_class(inputs.config);
        if sharing.is_none() && admission.mode == AdmissionMode::Policy && !served {
            // What there is stays: without it Pods would run as no peer pods.
            let message = "the API server knows no mutating admission policies, which Kubernetes has since 1.36; use the \
                           mode Webhook or Auto";
            return Ok(Part::of(Reason::PolicyUnsupported, message));
        }
        let means = match (&sharing, admission.mode) {
            (Some(_), _) | (None, AdmissionMode::None) => Means::None,
            (None, AdmissionMode::Policy) => Means::Policy,
            (None, AdmissionMode::Auto) if served => Means::Policy,
            (None, AdmissionMode::Auto | AdmissionMode::Webhook) => Means::Webhook,
        };
        let wanted = match means {
            Means::None => Vec::new(),
            Means::Policy => vec![
                Wanted::new(policy_resource("MutatingAdmissionPolicy"), to_value(policy::policy(inputs))?),
                Wanted::new(
                    policy_resource("MutatingAdmissionPolicyBinding"),
                    to_value(policy::binding(inputs))?,
                ),
            ],
            Means::Webhook => vec![
                Wanted::of(&webhook::deployment(inputs))?,
                Wanted::of(&webhook::service(inputs))?,
                Wanted::of(&webhook::disruption_budget(inputs))?,
                Wanted::of(&webhook::configuration(inputs, None))?,
            ],
        };
        let mut kinds = self.admission_kinds(served);
        // What takes the other's place is made before that one goes.
        kinds.sort_by_key(|kind| !wanted.iter().any(|wanted| wanted.is_a(kind)));
        let found = apply::bring(&self.client, &inputs.config.name_any(), &kinds, &wanted).await?;
        let mut part = Part { findings: name_taken(&found).into_iter().collect(), again: None };
        part.findings.push(if let Some(older) = sharing {
            let message = format!("the admission of PeerPodConfig {older} is for this runtime class, too");
            Finding::new(Reason::AdmissionShared, message)
        } else if admission.mode == AdmissionMode::None {
            Finding::new(Reason::AdmissionElsewhere, "admission.mode is None")
        } else if !self.observer.runtime_class_exists(&admission.runtime_class_name).await? {
            let message = format!(
                "the RuntimeClass {} does not exist; install Kata Containers with its remote hypervisor, which brings it",
                admission.runtime_class_name
            );
            Finding::new(Reason::RuntimeClassMissing, message)
        } else if means == Means::Policy {
            policy_state(inputs)
        } else {
            webhook_state(&found, &Names::of(inputs.config))
        });
        Ok(part)
    }

    /// Whether the API server has mutating admission policies.
    pub(super) async fn serves_policies(&self) -> Result<bool, ApiError> {
        let resources = self.client.list_api_group_resources(policy::GROUP_VERSION);
        Ok(policy::served(&api_call::bounded(resources).await?))
    }

    /// An older configuration whose admission is for the same runtime class.
    fn older_with_same_class(&self, config: &PeerPodConfig) -> Option<String> {
        let age =
            |config: &PeerPodConfig| (config.creation_timestamp().map(|time| time.0), config.name_any());
        let class = &config.spec.admission.runtime_class_name;
        let others = self.configs.state().into_iter().filter(|other| {
            let admission = &other.spec.admission;
            other.namespace() == config.namespace()
                && other.metadata.deletion_timestamp.is_none()
                && admission.mode != AdmissionMode::None
                && admission.runtime_class_name == *class
                && age(other) < age(config)
        });
        others.min_by_key(|other| age(other)).map(|other| other.name_any())
    }

    /// All that an admission may consist of, in the order in which it is made.
    pub(super) fn admission_kinds(&self, serves_policies: bool) -> Vec<Kind> {
        let mut kinds = vec![
            self.kind::<Deployment>(true),
            self.kind::<Service>(true),
            self.kind::<PodDisruptionBudget>(true),
            self.kind::<MutatingWebhookConfiguration>(false),
        ];
        if serves_policies {
            let resources =
                ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"].map(policy_resource);
            kinds.extend(resources.map(|resource| Kind { resource, namespace: None }));
        }
        kinds
    }
}

/// What turns Pods into peer pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    None,
    Webhook,
    Policy,
}

fn policy_resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind))
}

/// A policy is in force as soon as it is there.
fn policy_state(inputs: &Inputs<'_>) -> Finding {
    let gaps = policy::unsupported(&inputs.config.spec);
    let gaps = gaps.iter().map(|gap| format!("the webhook {}, the policy {}", gap.webhook, gap.policy));
    let message = gaps.fold("the policy is in force".to_owned(), |message, gap| format!("{message}; {gap}"));
    Finding::new(Reason::PolicyInForce, message)
}

/// How far the webhook is.
fn webhook_state(found: &Found, names: &Names) -> Finding {
    let deployment: Option<Deployment> = found.get(&names.webhook);
    let registration: Option<MutatingWebhookConfiguration> = found.get(&names.cluster_scoped);
    let available =
        deployment.and_then(|it| it.status).and_then(|status| status.available_replicas).unwrap_or(0);
    let trusted = registration.and_then(|it| it.webhooks).is_some_and(|webhooks| {
        !webhooks.is_empty() && webhooks.iter().all(|it| it.client_config.ca_bundle.is_some())
    });
    match (available, trusted) {
        (0, _) => Finding::new(Reason::WebhookStarting, "no Pod of the webhook is available yet"),
        (_, false) => {
            Finding::new(Reason::WebhookStarting, "the webhook's certificate is not registered yet")
        }
        (pods, true) => {
            Finding::new(Reason::WebhookRunning, format!("{pods} Pods of the webhook are available"))
        }
    }
}
