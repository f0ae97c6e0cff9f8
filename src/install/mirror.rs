//! Lets only kubelets create mirror Pods.
//!
//! A mirror Pod shows a static Pod, which runs on while its mirror Pod is deleted and created again, with another uid each time. So the
//! operator keeps a VM while a mirror Pod of its Pod's name exists. Kubernetes lets any user create one: a tenant could keep the VM
//! of a Pod that is gone for ever, outside limit and quota.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicySpec, Validation,
};

use super::{
    Component,
    policies::{binding_to, created},
};
use crate::peerpod::pod::MIRROR;

/// The name of the policy and of its binding.
pub const NAME: &str = "peerpod-mirror";

/// Who may create mirror Pods: who may write the status of nodes, as each kubelet may for its own. The API server refuses an update that
/// adds the annotation, but a binding to a node adds its own annotations to the Pod.
pub fn policy() -> ValidatingAdmissionPolicy {
    ValidatingAdmissionPolicy {
        metadata: Component::Operator.cluster_scoped(NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Ignore".to_owned()),
            match_constraints: Some(created(&["pods", "pods/binding", "bindings"])),
            match_conditions: Some(vec![MatchCondition {
                name: "mirror".to_owned(),
                expression: format!("'{MIRROR}' in object.metadata.?annotations.orValue({{}})"),
            }]),
            validations: Some(vec![Validation {
                expression:
                    "authorizer.group('').resource('nodes').subresource('status').check('patch').allowed()"
                        .to_owned(),
                message: Some(format!(
                    "only a kubelet may give a Pod the annotation {MIRROR}: the operator of peer pods takes it for a static Pod"
                )),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// Puts the policy in force, in every namespace.
pub fn binding() -> ValidatingAdmissionPolicyBinding {
    binding_to(Component::Operator.cluster_scoped(NAME), NAME, &["Deny"], None)
}
