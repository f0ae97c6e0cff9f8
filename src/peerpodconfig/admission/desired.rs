//! The desired admission of a configuration. Pure *(no client)*.

use k8s_openapi::ByteString;
use serde_json::to_value;

use super::{
    super::{
        resources::{Owner, policy, webhook},
        wanted::{Kind, Wanted},
    },
    means::{Means, kinds},
    observe::{Observed, WebhookInputs},
    sharing::is_ready,
};
use crate::api::v1alpha1::{AdmissionMode, PeerPodConfig};

/// The desired admission of a configuration.
#[derive(Clone, Debug)]
pub(super) struct Desired {
    pub(super) means: Means,
    /// Whether the spec asks for a policy and the API server supports none.
    pub(super) is_unsupported: bool,
    /// The kinds of objects of these means, in the order of their creation.
    pub(super) kinds: Vec<Kind>,
    /// The kinds of all other objects of an admission.
    pub(super) former: Vec<Kind>,
    /// The names of the younger ones that ask for an admission of the same class.
    pub(super) younger: Vec<String>,
}

impl Desired {
    /// `namespace`: the operator's own.
    pub(super) fn of(config: &PeerPodConfig, observed: &Observed, namespace: &str) -> Self {
        let admission = &config.spec.admission;
        let present = observed.present.as_ref().filter(|it| it.class == admission.runtime_class_name);
        let present = present.map_or(Means::None, |it| it.means);
        // With the mode None it does not matter which configuration has the admission.
        let is_unsupported = observed.older.is_none()
            && admission.mode == AdmissionMode::Policy
            && !observed.supports_policies;
        let means = match (&observed.older, admission.mode) {
            // Nothing replaces the present admission: without it Pods would not become peer pods.
            (Some(older), _) if !is_ready(older) => present,
            _ if is_unsupported => present,
            (Some(_), _) | (None, AdmissionMode::None) => Means::None,
            (None, AdmissionMode::Policy) => Means::Policy,
            (None, AdmissionMode::Webhook) => Means::Webhook,
        };
        let (kinds, former) = kinds(namespace, observed.supports_policies)
            .into_iter()
            .partition(|kind| means.consists_of(kind));
        Self { means, is_unsupported, kinds, former, younger: observed.younger.clone() }
    }
}

/// The policy and its binding.
pub(super) fn policy(owner: &Owner) -> serde_json::Result<[Wanted; 2]> {
    let [policies, bindings] = policy::resources();
    Ok([
        Wanted::new(policies, to_value(policy::policy(owner))?),
        Wanted::new(bindings, to_value(policy::binding(owner))?),
    ])
}

/// The server of the webhook.
pub(super) fn webhook_server(owner: &Owner, inputs: &WebhookInputs) -> serde_json::Result<[Wanted; 3]> {
    Ok([
        Wanted::of(&webhook::deployment(owner, &inputs.tls, &inputs.program))?,
        Wanted::of(&webhook::service(owner))?,
        Wanted::of(&webhook::disruption_budget(owner))?,
    ])
}

/// The registration of the webhook.
pub(super) fn webhook_registration(
    owner: &Owner,
    authorities: Option<ByteString>,
) -> serde_json::Result<Wanted> {
    Wanted::of(&webhook::configuration(owner, authorities))
}

#[cfg(test)]
mod tests;
