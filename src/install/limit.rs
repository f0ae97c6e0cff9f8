//! Refuses a peer pod that requests no VM, so that none evades the limit of VMs.
//!
//! The admission of a `PeerPodConfig` adds the request. It does not see a Pod that gets its runtime class from another webhook
//! afterwards, nor one in a namespace that another program excluded from the webhook. Such a Pod would get a VM all the same.
//!
//! The policy reads the PeerPodConfigs themselves, and is in force only for those that have an admission of their own. So the operator
//! needs no rights to it, and never changes it.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicySpec, Validation,
};

use super::{
    Component, Options,
    policies::{binding_to, configurations, created, each_configuration},
};
use crate::{
    api::v1alpha1::{EXTENDED_RESOURCE, RUNTIME_CLASS},
    names::KUBE_SYSTEM,
    peerpodconfig::conditions::{ConditionType, Reason},
};

/// The name of the policy and of its binding.
pub const NAME: &str = "peerpod-limit";

/// What each peer pod must request. If the API server does not know `PeerPodConfig`s, it accepts every Pod.
pub fn policy() -> ValidatingAdmissionPolicy {
    let class = format!("params.?spec.?admission.?runtimeClassName.orValue('{RUNTIME_CLASS}')");
    let resource = format!("params.?spec.?admission.?extendedResource.orValue('{EXTENDED_RESOURCE}')");
    let excluded = "params.?spec.?admission.?excludedNamespaces.orValue([])";
    let condition = |name: &str, expression: String| MatchCondition { name: name.to_owned(), expression };
    ValidatingAdmissionPolicy {
        metadata: Component::Operator.cluster_scoped(NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Ignore".to_owned()),
            param_kind: Some(each_configuration()),
            match_constraints: Some(created(&["pods"])),
            match_conditions: Some(vec![
                // Most Pods have no runtime class.
                condition("runtime-class", format!("object.spec.?runtimeClassName.orValue('') == {class}")),
                condition(
                    "namespace",
                    format!(
                        "request.namespace != params.metadata.namespace && request.namespace != '{KUBE_SYSTEM}' && \
                         !(request.namespace in {excluded})"
                    ),
                ),
                condition("in-force", in_force()),
            ]),
            validations: Some(vec![Validation {
                // The API server's types of a Pod lack requests.
                expression: format!(
                    "object.spec.containers.exists(it, dyn(it).?resources.?requests[?{resource}]\
                     .optMap(amount, quantity(string(amount)).isGreaterThan(quantity('0'))).orValue(false))"
                ),
                message_expression: Some(format!(
                    "'a Pod with the runtime class ' + {class} + ' must request one ' + {resource} + ', which the admission of the \
                     PeerPodConfig ' + params.metadata.name + ' adds: another webhook or policy set the runtime class after \
                     that admission ran, or excluded the namespace from it, or the condition AdmissionReady says why it does not work'"
                )),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// Puts the policy in force, for the configurations of the operator's namespace.
pub fn binding(options: &Options) -> ValidatingAdmissionPolicyBinding {
    binding_to(Component::Operator.cluster_scoped(NAME), NAME, &["Deny"], Some(configurations(options)))
}

/// The configuration's own admission was set up as the present spec says. It need not be ready: a webhook that does not answer refuses the
/// Pods that it must see.
const SET_UP: &[Reason] = &[
    Reason::WebhookStarting,
    Reason::WebhookRunning,
    Reason::CertificateUnfit,
    Reason::PolicyStarting,
    Reason::PolicyInForce,
];

/// The operator could not set it up. The former webhook may still run, or nothing.
const FAILED: &[Reason] = &[
    Reason::AdmissionWithheld,
    Reason::PolicyUnsupported,
    Reason::InvalidAdmission,
    Reason::AdmissionFailed,
];

/// Whether the configuration's own admission was set up, or the operator could not do so.
fn in_force() -> String {
    let list = |reasons: &[Reason]| {
        let quoted = reasons.iter().map(|reason| format!("'{}'", reason.as_str()));
        quoted.collect::<Vec<_>>().join(", ")
    };
    format!(
        "!has(params.metadata.deletionTimestamp) && params.?status.?conditions.orValue([]).exists(it, \
         it.type == '{}' && it.?observedGeneration.orValue(0) == params.metadata.generation && \
         (it.reason in [{}] || it.reason in [{}] && params.?spec.?admission.?mode.orValue('') != 'None'))",
        ConditionType::AdmissionReady.as_str(),
        list(SET_UP),
        list(FAILED)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_admission_has_its_class() {
        // Another program or an older configuration admits the Pods, or no Pod can have the class.
        let others = [
            Reason::AdmissionElsewhere,
            Reason::AdmissionShared,
            Reason::SharedNotReady,
            Reason::RuntimeClassMissing,
        ];
        let classes = [SET_UP, FAILED, &others];
        for reason in Reason::ALL.iter().filter(|it| it.condition_type() == ConditionType::AdmissionReady) {
            let of = classes.iter().filter(|class| class.contains(reason)).count();
            assert_eq!(of, 1, "{reason:?}: as the condition, is the policy in force?");
        }
    }

    #[test]
    fn without_configurations_or_their_kind_every_pod_is_accepted() {
        assert_eq!(policy().spec.unwrap().failure_policy.unwrap(), "Ignore");
        let binding = serde_json::to_value(binding(&Options::default())).unwrap();
        assert_eq!(binding["spec"]["paramRef"]["parameterNotFoundAction"], "Allow");
    }
}
