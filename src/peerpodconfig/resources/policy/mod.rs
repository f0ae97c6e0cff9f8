//! The admission as a policy inside the API server: what [`mutate`](crate::webhook::mutate()) does to a Pod, in CEL. It needs no
//! server and no certificate, so it cannot be down.

mod cel;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::{
    Owner,
    names::Part,
    webhook::{other_namespaces, runtime_class_condition},
};
use crate::api::v1alpha1::{AdmissionMode, PeerPodConfigSpec, Sizing};

/// The version in which the API server serves both kinds, since Kubernetes 1.36.
pub const GROUP_VERSION: &str = "admissionregistration.k8s.io/v1";

/// The kinds of [`policy`] and [`binding`], with the names of their resources.
const KINDS: [(&str, &str); 2] = [
    ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
    ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
];

/// The policy that turns Pods into peer pods. Kubernetes' types have the kind from 1.36 on only, and this builds with older ones.
/// So the object has no type of its own.
pub fn policy(owner: &Owner) -> DynamicObject {
    let admission = &owner.config.spec.admission;
    let variables = cel::variables(admission.sizing, &admission.extended_resource);
    let variables: Vec<Value> = variables
        .into_iter()
        .map(|(name, expression)| json!({ "name": name, "expression": expression }))
        .collect();
    object(
        owner,
        KINDS[0],
        &json!({
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            // Replaced as a whole, so the API server's defaults must be there: otherwise it always differs.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": other_namespaces(owner),
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                    "scope": "Namespaced",
                }],
            },
            "matchConditions": [{
                "name": "runtime-class",
                "expression": runtime_class_condition(&admission.runtime_class_name),
            }],
            "variables": variables,
            "mutations": [{
                "patchType": "JSONPatch",
                "jsonPatch": { "expression": cel::patch(admission.sizing, &admission.extended_resource) },
            }],
        }),
    )
}

/// What puts the policy in force.
pub fn binding(owner: &Owner) -> DynamicObject {
    let policy = Part::Webhook.cluster_scoped(owner).name;
    object(owner, KINDS[1], &json!({ "policyName": policy }))
}

/// The API resources of [`policy`] and [`binding`], in this order.
pub fn resources() -> [ApiResource; 2] {
    KINDS.map(resource)
}

fn resource((kind, plural): (&str, &str)) -> ApiResource {
    let (group, version) = GROUP_VERSION.split_once('/').unwrap_or(("", GROUP_VERSION));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn object(owner: &Owner, kind: (&str, &str), spec: &Value) -> DynamicObject {
    let mut object = DynamicObject::new("", &resource(kind)).data(json!({ "spec": spec }));
    object.metadata = Part::Webhook.cluster_scoped(owner);
    object
}

/// Whether the API server supports [`AdmissionMode::Policy`], by its resources of [`GROUP_VERSION`].
pub fn served(resources: &APIResourceList) -> bool {
    let serves = |plural: &str| resources.resources.iter().any(|resource| resource.name == plural);
    resources.group_version == GROUP_VERSION && KINDS.iter().all(|(_, plural)| serves(plural))
}

/// Something that the webhook does and the policy does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// What the webhook does.
    pub webhook: &'static str,
    /// What the policy does instead.
    pub policy: &'static str,
}

/// CEL has numbers of 64 bits. A sum that exceeds them is an error, for which the API server would refuse the Pod.
const HUGE: Unsupported = Unsupported {
    webhook: "counts amounts of cpu and memory up to 2^63",
    policy: "counts more than 100T (of cpu, or of bytes) as 100T",
};

/// The API server bounds what a policy may cost.
const MANY: Unsupported = Unsupported {
    webhook: "accepts a Pod with 500 containers and as many init containers, each with 64 resources",
    policy: "accepts a Pod with 100, and rejects a Pod with several hundred, because the API server limits the \
         cost of a policy",
};

const REFILLED: Unsupported = Unsupported {
    webhook: "returns a warning when a LimitRange or another webhook added resources again that are the VM's",
    policy: "removes them without a warning",
};

/// The API server calls all policies before all webhooks. After the webhooks it calls again only those that matched before.
/// Among policies it has no fixed order.
const CLASS_BY_OTHERS: Unsupported = Unsupported {
    webhook: "changes a Pod that gets its runtime class from another MutatingAdmissionPolicy, or from another \
         webhook, if the name of that webhook's configuration sorts before its own",
    policy: "does not see the runtime class of a webhook, nor always that of another policy: the API server then \
         refuses the Pod, which requests no VM",
};

/// A webhook that is invoked again after the policy fills the containers in again, and nothing looks at the Pod after it.
const RESOURCES_BY_OTHERS: Unsupported = Unsupported {
    webhook: "counts resources that a MutatingAdmissionPolicy sets for a container, or another webhook, if the name \
         of that webhook's configuration sorts before its own; of another one it removes them, unless that has the \
         reinvocationPolicy IfNeeded",
    policy: "does not count those of a webhook, nor always those of another policy; if that webhook has the \
         reinvocationPolicy IfNeeded, they stay with the container and are charged to the node",
};

const ONE_ALONE: Unsupported = Unsupported {
    webhook: "returns a warning when a Pod asks for only one of cpu and memory",
    policy: "returns no warning",
};

const MARKER: Unsupported = Unsupported {
    webhook: "returns a warning when another program wrote the Pod's marker annotation",
    policy: "ignores the annotation without a warning",
};

const POD_LEVEL_STAYS: Unsupported = Unsupported {
    webhook: "returns a warning that Pod-level resources stay with the node",
    policy: "leaves them there without a warning",
};

const NEGATIVE: Unsupported = Unsupported {
    webhook: "names the container and the field of a negative amount that it refuses",
    policy: "refuses the Pod and names neither; removes a negative limit of GPUs beside a request of them",
};

/// What this configuration does not get if its admission is a policy. A condition reports it.
pub fn unsupported(spec: &PeerPodConfigSpec) -> Vec<Unsupported> {
    let admission = &spec.admission;
    if matches!(admission.mode, AdmissionMode::Webhook | AdmissionMode::None) {
        return Vec::new();
    }
    let mut unsupported =
        vec![HUGE, MANY, NEGATIVE, CLASS_BY_OTHERS, RESOURCES_BY_OTHERS, REFILLED, MARKER, ONE_ALONE];
    if admission.sizing == Sizing::Sum {
        unsupported.push(POD_LEVEL_STAYS);
    }
    unsupported
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;

    use super::*;

    #[test]
    fn policies_are_served_where_both_kinds_are() {
        let list = |group_version: &str, names: &[&str]| APIResourceList {
            group_version: group_version.to_owned(),
            resources: names
                .iter()
                .map(|name| APIResource { name: (*name).to_owned(), ..APIResource::default() })
                .collect(),
        };
        let [policies, bindings] = KINDS.map(|(_, plural)| plural);
        assert!(served(&list(GROUP_VERSION, &["x", bindings, policies])));
        assert!(!served(&list(GROUP_VERSION, &[policies])));
        assert!(!served(&list("admissionregistration.k8s.io/v1beta1", &[policies, bindings])));
    }

    #[test]
    fn only_a_policy_lacks_anything() {
        let mut spec = PeerPodConfigSpec::default();
        assert_eq!(unsupported(&spec), []);
        spec.admission.mode = AdmissionMode::Policy;
        assert!(!unsupported(&spec).contains(&POD_LEVEL_STAYS));
        spec.admission.sizing = Sizing::Sum;
        assert!(unsupported(&spec).contains(&POD_LEVEL_STAYS));
    }
}
