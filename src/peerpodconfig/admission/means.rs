//! What turns Pods into peer pods, and the kinds of objects that it consists of. Pure *(no client)*.

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration, apps::v1::Deployment, core::v1::Service,
    policy::v1::PodDisruptionBudget,
};
use kube::api::ApiResource;

use super::super::{resources::policy, wanted::Kind};

/// What turns Pods into peer pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    None,
    Webhook,
    Policy,
}

impl Means {
    /// The means that objects of this kind belong to.
    pub(super) fn of(kind: &Kind) -> Self {
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

/// All kinds of objects of an admission, in the order of their creation.
pub(super) fn kinds(namespace: &str, supports_policies: bool) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::namespaced::<Deployment>(namespace),
        Kind::namespaced::<Service>(namespace),
        Kind::namespaced::<PodDisruptionBudget>(namespace),
    ];
    kinds.extend(cluster_scoped(supports_policies));
    kinds
}

/// Those without namespace, which lead Pods to the admission.
pub(super) fn cluster_scoped(supports_policies: bool) -> Vec<Kind> {
    let mut resources = vec![ApiResource::erase::<MutatingWebhookConfiguration>(&())];
    if supports_policies {
        resources.extend(policy::resources());
    }
    resources.into_iter().map(Kind::cluster_scoped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_made_after_its_server() {
        let kinds: Vec<_> =
            kinds("n", true).into_iter().map(|kind| (kind.namespace, kind.resource.kind)).collect();
        let first_registration = kinds.iter().position(|(namespace, _)| namespace.is_none()).unwrap();
        assert!(kinds[first_registration..].iter().all(|(namespace, _)| namespace.is_none()), "{kinds:?}");
        assert_eq!((first_registration, kinds.len()), (3, 6));
    }
}
