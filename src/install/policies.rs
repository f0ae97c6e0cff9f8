//! What the installation's admission policies have in common.

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, ValidatingAdmissionPolicyBinding,
        ValidatingAdmissionPolicyBindingSpec,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Resource as _, api::ObjectMeta};

use super::Options;
use crate::api::v1alpha1::PeerPodConfig;

/// What these rules match, in every namespace, with the API server's defaults. Without them an apply would see another program's
/// change.
pub(super) fn matching(rules: Vec<NamedRuleWithOperations>) -> MatchResources {
    MatchResources {
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        resource_rules: Some(rules),
        ..MatchResources::default()
    }
}

/// Each of these resources, which concern Pods, that is created.
pub(super) fn created(resources: &[&str]) -> MatchResources {
    matching(vec![NamedRuleWithOperations {
        api_groups: Some(vec![String::new()]),
        api_versions: Some(vec!["v1".to_owned()]),
        operations: Some(vec!["CREATE".to_owned()]),
        resources: Some(resources.iter().map(|&resource| resource.to_owned()).collect()),
        scope: Some("Namespaced".to_owned()),
        resource_names: None,
    }])
}

/// A policy with this is evaluated once for each `PeerPodConfig`, its `params`.
pub(super) fn each_configuration() -> ParamKind {
    ParamKind {
        api_version: Some(PeerPodConfig::api_version(&()).into_owned()),
        kind: Some(PeerPodConfig::kind(&()).into_owned()),
    }
}

/// The configurations of the operator's own namespace. Without any, a policy about them allows everything.
pub(super) fn configurations(options: &Options) -> ParamRef {
    ParamRef {
        namespace: Some(options.namespace.clone()),
        parameter_not_found_action: Some("Allow".to_owned()),
        selector: Some(LabelSelector::default()),
        ..ParamRef::default()
    }
}

/// Puts a policy in force. `actions`: what happens if a validation fails.
#[allow(clippy::useless_conversion, reason = "older versions of Kubernetes' types have Options here")]
pub(super) fn binding_to(
    metadata: ObjectMeta,
    policy: &str,
    actions: &[&str],
    params: Option<ParamRef>,
) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata,
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: policy.to_owned().into(),
            param_ref: params,
            validation_actions: actions.iter().map(|&action| action.to_owned()).collect::<Vec<_>>().into(),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }
        .into(),
    }
}
