//! Protects an installation against removal in the wrong order.
//!
//! The deletion of a CRD deletes every PeerPod, and with it the record of its VM. The deletion of the namespace deletes every
//! PeerPodConfig, and the operator that restores the nodes. Both hang if the operator is deleted at the same time. So the API
//! server refuses to delete them until an administrator annotates them. It refuses to delete the operator, its rights and the
//! accounts of what it deploys while a PeerPodConfig exists, because only the operator can clean up the nodes. Other
//! deletions are not affected.
//!
//! `kubectl delete` deletes each object once. GitOps tools repeat a deletion until nothing refuses it. So these policies, and what the
//! first one protects, tell them not to delete it.

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MatchResources, NamedRuleWithOperations, ParamRef, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicySpec, Validation,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{CustomResourceExt as _, api::ObjectMeta};
use serde_json::json;

use super::{
    Component, NAME as OPERATOR, Options, PEERPODCONFIG_ROLE,
    guard::RECORDER,
    metadata::kept_by_gitops,
    policies::{binding_to, configurations, each_configuration, matching},
};
use crate::{
    api::v1alpha1::{PeerPod, PeerPodConfig},
    names::NAMESPACE_LABEL,
    peerpodconfig::{FINALIZER, resources},
};

/// The name of the policy and of its binding, for what records VMs.
pub const NAME: &str = "peerpod-removal";

/// The name of the policy and of its binding, for the operator itself.
pub const OPERATOR_NAME: &str = "peerpod-operator-removal";

/// What a `PeerPodConfig` needs. Without its account, a cloud-api-adaptor that still runs could not record its VMs, also for some
/// time after a new one with this name exists. Without that of the webhook, no webhook could start in another place.
const NEEDED: [&str; 5] =
    [OPERATOR, PEERPODCONFIG_ROLE, RECORDER, resources::SERVICE_ACCOUNT, resources::webhook::SERVICE_ACCOUNT];

/// The annotation that lets its object be deleted, with the value `true`.
pub const ALLOW_ANNOTATION: &str = "peerpods.confidentialcontainers.org/allow-removal";

/// What must not be deleted unless it says so.
pub fn policy(options: &Options) -> ValidatingAdmissionPolicy {
    let definitions = [PeerPod::crd_name(), PeerPodConfig::crd_name()];
    ValidatingAdmissionPolicy {
        metadata: metadata(NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(matching(vec![
                rule("apiextensions.k8s.io", &["customresourcedefinitions"]),
                own_namespace(options),
            ])),
            match_conditions: Some(vec![names(&definitions)]),
            validations: Some(vec![Validation {
                expression: format!(
                    "oldObject.metadata.?annotations[?'{ALLOW_ANNOTATION}'].orValue('') == 'true'"
                ),
                message: Some(format!(
                    "PeerPods record the VMs of Pods, and only the operator deletes these VMs. If \
                     you deleted the whole installation, install it again first. Then make sure that \
                     `kubectl get peerpods,peerpodconfigs -A` shows none, and annotate this object with \
                     {ALLOW_ANNOTATION}=true"
                )),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// What must not be deleted while a `PeerPodConfig` has the operator's finalizer. If the API server does not know that kind,
/// there is no such object, so a failure to look allows the deletion.
pub fn operator_policy(options: &Options) -> ValidatingAdmissionPolicy {
    let rights = ["roles", "rolebindings", "clusterroles", "clusterrolebindings"];
    ValidatingAdmissionPolicy {
        metadata: metadata(OPERATOR_NAME),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Ignore".to_owned()),
            param_kind: Some(each_configuration()),
            match_constraints: Some(MatchResources {
                // Other operators may have this name. Objects without a namespace match anyway.
                namespace_selector: Some(LabelSelector {
                    match_labels: Some([(NAMESPACE_LABEL.to_owned(), options.namespace.clone())].into()),
                    ..LabelSelector::default()
                }),
                ..matching(vec![
                    rule("apps", &["deployments"]),
                    rule("", &["serviceaccounts"]),
                    rule("rbac.authorization.k8s.io", &rights),
                    own_namespace(options),
                ])
            }),
            match_conditions: Some(vec![names(&NEEDED)]),
            validations: Some(vec![Validation {
                expression: format!("!('{FINALIZER}' in params.metadata.?finalizers.orValue([]))"),
                message_expression: Some(
                    "'the PeerPodConfig ' + params.metadata.name + ' exists, and only the operator can \
                     clean up after it: delete it, or run `peerpod-operator drain`, and wait until it is \
                     deleted'"
                        .to_owned(),
                ),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        status: None,
    }
}

/// Puts the policy for what records VMs in force.
pub fn binding() -> ValidatingAdmissionPolicyBinding {
    bound(NAME, None)
}

/// Puts the policy for the operator in force, for the configurations of its own namespace.
pub fn operator_binding(options: &Options) -> ValidatingAdmissionPolicyBinding {
    bound(OPERATOR_NAME, Some(configurations(options)))
}

fn bound(name: &str, params: Option<ParamRef>) -> ValidatingAdmissionPolicyBinding {
    binding_to(metadata(name), name, &["Deny"], params)
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta { annotations: Some(kept_by_gitops()), ..Component::Operator.cluster_scoped(name) }
}

/// Objects of any name: the names of a rule match no deletion of a collection, as such a request has no name.
fn rule(group: &str, resources: &[&str]) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["DELETE".to_owned()]),
        resources: Some(resources.iter().map(|&resource| resource.to_owned()).collect()),
        resource_names: None,
        scope: Some("*".to_owned()),
    }
}

/// The operator's namespace. Kubernetes deletes no collections of namespaces.
fn own_namespace(options: &Options) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        resource_names: Some(vec![options.namespace.clone()]),
        ..rule("", &["namespaces"])
    }
}

/// Of all kinds but namespaces, only objects with these names. In a deletion of a collection, the API server asks about each object.
fn names(names: &[&str]) -> MatchCondition {
    let names = json!(names);
    MatchCondition {
        name: "names".to_owned(),
        expression: format!(
            "request.resource.resource == 'namespaces' || oldObject.metadata.name in {names}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_lookup_blocks_removal_of_records_but_not_of_the_operator() {
        let options = Options::default();
        let upon_failure = |policy: ValidatingAdmissionPolicy| policy.spec.unwrap().failure_policy.unwrap();
        assert_eq!(upon_failure(policy(&options)), "Fail");
        // If there is no configuration, or no such kind, a user may remove the operator.
        assert_eq!(upon_failure(operator_policy(&options)), "Ignore");
        let binding = serde_json::to_value(operator_binding(&options)).unwrap();
        assert_eq!(binding["spec"]["paramRef"]["parameterNotFoundAction"], "Allow");
    }

    #[test]
    fn only_namespaces_are_matched_by_the_name_in_the_request() {
        let options = Options::default();
        for (policy, names) in [
            (
                policy(&options),
                r#"["peerpods.confidentialcontainers.org","peerpodconfigs.confidentialcontainers.org"]"#,
            ),
            (
                operator_policy(&options),
                r#"["peerpod-operator","peerpod-operator-peerpodconfig","peerpod-recorder","cloud-api-adaptor","peerpod-webhook"]"#,
            ),
        ] {
            let policy = serde_json::to_value(policy).unwrap();
            for rule in policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap() {
                let is_named = !rule["resourceNames"].is_null();
                assert_eq!(is_named, rule["resources"] == json!(["namespaces"]), "{rule}");
            }
            assert_eq!(
                policy["spec"]["matchConditions"][0]["expression"],
                format!("request.resource.resource == 'namespaces' || oldObject.metadata.name in {names}")
            );
        }
    }
}
