//! Keeps what records machines from being removed in haste.
//!
//! A custom resource definition that is deleted takes every PeerPod with it, and with the last of them goes what is known of
//! its machine; the namespace takes every PeerPodConfig, and the operator that would put the nodes back. Either hangs when
//! the operator goes at the same time. So both stay, whatever else of the installation is deleted, until somebody says
//! on them that they may go. Who uninstalls learns of it from the refusal, and everything else goes on.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
};
use kube::CustomResourceExt as _;

use super::{Component, Options, guard::matching_all};
use crate::api::v1alpha1::{PeerPod, PeerPodConfig};

/// The name of the policy and of its binding.
pub const NAME: &str = "peerpod-removal";

/// The annotation that lets its object be deleted, with the value `true`.
pub const ALLOW_ANNOTATION: &str = "peerpods.confidentialcontainers.org/allow-removal";

/// What must not be deleted unless it says so.
pub fn policy(options: &Options) -> ValidatingAdmissionPolicy {
    let rule = |group: &str, resource: &str, names: Vec<String>| NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["DELETE".to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(names),
        scope: Some("*".to_owned()),
    };
    let definitions = vec![PeerPod::crd_name().to_owned(), PeerPodConfig::crd_name().to_owned()];
    ValidatingAdmissionPolicy {
        metadata: Component::Operator.cluster_scoped(NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![
                    rule("apiextensions.k8s.io", "customresourcedefinitions", definitions),
                    rule("", "namespaces", vec![options.namespace.clone()]),
                ]),
                ..matching_all()
            }),
            validations: Some(vec![Validation {
                expression: format!(
                    "oldObject.metadata.?annotations[?'{ALLOW_ANNOTATION}'].orValue('') == 'true'"
                ),
                message: Some(format!(
                    "PeerPods record the machines of running Pods, and the operator deletes these: make sure that \
                     `kubectl get peerpods,peerpodconfigs -A` shows none, then annotate this object with \
                     {ALLOW_ANNOTATION}=true and delete it again"
                )),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// Puts the policy in force.
#[allow(clippy::useless_conversion, reason = "older versions of Kubernetes' types have Options here")]
pub fn binding() -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: Component::Operator.cluster_scoped(NAME),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: NAME.to_owned().into(),
            validation_actions: vec!["Deny".to_owned()].into(),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }
        .into(),
    }
}
