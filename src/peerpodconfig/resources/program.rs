//! How the operator itself runs, which is how the webhook runs too.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::{ReplicaSet, ReplicaSetSpec},
    core::v1::{Affinity, LocalObjectReference, NodeAffinity, Pod, PodSpec, Toleration},
};
use kube::ResourceExt as _;

/// The operator's container in its Pods.
pub const OPERATOR_CONTAINER: &str = "operator";

/// This program as an image, how a node pulls it, and its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The image.
    pub image: String,
    /// When a node pulls it: `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: String,
    /// The Secrets that it is pulled with, in the operator's own namespace.
    pub pull_secrets: Vec<LocalObjectReference>,
    /// Where it runs.
    pub placement: Placement,
    /// Whether it serves metrics with TLS, and only to clients that may read them.
    pub secure_metrics: bool,
}

impl Program {
    /// An image of a registry without authentication, on any node.
    pub fn public(image: impl Into<String>) -> Self {
        Self {
            image: image.into(),
            pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
            placement: Placement::default(),
            secure_metrics: false,
        }
    }

    /// As in this Pod of the operator, on any node. The Pod shows the effective image and Secrets, whether they come from the
    /// operator's Deployment or ServiceAccount. `None`: it is no Pod of the operator.
    pub fn of(pod: &Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let container = spec.containers.iter().find(|container| container.name == OPERATOR_CONTAINER)?;
        let public = Self::public(container.image.clone()?);
        Some(Self {
            pull_policy: container.image_pull_policy.clone().unwrap_or(public.pull_policy),
            pull_secrets: named_once(spec.image_pull_secrets.as_deref().unwrap_or_default()),
            ..public
        })
    }

    /// The operator's own program, with this image if one is set. With an image no Pod of the operator is needed. `None`: there is
    /// neither.
    pub fn with_image(own: Option<Self>, image: Option<&str>) -> Option<Self> {
        match (own, image) {
            (own, None) => own,
            (None, Some(image)) => Some(Self::public(image)),
            (Some(own), Some(image)) => Some(Self { image: image.to_owned(), ..own }),
        }
    }
}

/// The nodes for a Pod, and its priority there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Labels of the nodes.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// What is said of the nodes beyond that.
    pub node_affinity: Option<NodeAffinity>,
    /// Taints of the nodes.
    pub tolerations: Option<Vec<Toleration>>,
    /// The priority class.
    pub priority_class_name: Option<String>,
}

impl Placement {
    /// As the operator's Deployment has it, whose `ReplicaSet` this is.
    ///
    /// A Pod has more than that: API servers and admission webhooks add tolerations and priorities to each Pod. In the webhook's
    /// template these would be permanent, and change with the Pod that the operator runs in.
    pub fn of(replicas: &ReplicaSet) -> Self {
        let spec: Option<&ReplicaSetSpec> = (&replicas.spec).into();
        let template = spec.and_then(|spec| spec.template.as_ref()?.spec.clone());
        let PodSpec { node_selector, affinity, tolerations, priority_class_name, .. } =
            template.unwrap_or_default();
        // Its rules about Pods concern the operator's own.
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity);
        Self { node_selector, node_affinity, tolerations, priority_class_name }
    }

    /// Applies this to a Pod.
    pub(super) fn place(&self, pod: PodSpec) -> PodSpec {
        let node_affinity = self.node_affinity.clone();
        PodSpec {
            node_selector: self.node_selector.clone(),
            affinity: node_affinity.map(|it| Affinity { node_affinity: Some(it), ..Affinity::default() }),
            tolerations: self.tolerations.clone(),
            priority_class_name: self.priority_class_name.clone(),
            ..pod
        }
    }
}

/// The name of the `ReplicaSet` that made this Pod, if one did.
pub fn replica_set_of(pod: &Pod) -> Option<&str> {
    let made_it = |kind: &str, is_controller| kind == "ReplicaSet" && is_controller == Some(true);
    let mut owners = pod.owner_references().iter();
    owners.find(|owner| made_it(&owner.kind, owner.controller)).map(|owner| owner.name.as_str())
}

/// These Secrets, each name once: the API server applies no object that has one twice, although it creates such an object.
pub(super) fn named_once(secrets: &[LocalObjectReference]) -> Vec<LocalObjectReference> {
    let mut named = BTreeSet::new();
    secrets.iter().filter(|secret| named.insert(&secret.name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn program(containers: &Value) -> Option<Program> {
        let twice = json!([{ "name": "pull" }, { "name": "pull" }]);
        let spec = json!({ "containers": containers, "imagePullSecrets": twice });
        Program::of(&serde_json::from_value(json!({ "spec": spec })).unwrap())
    }

    #[test]
    fn the_program_of_a_pod_is_that_of_its_own_container() {
        let proxy = json!({ "name": "proxy", "image": "proxy" });
        let own = json!({ "name": "operator", "image": "mine", "imagePullPolicy": "Always" });
        let expected = Program {
            pull_policy: "Always".to_owned(),
            pull_secrets: vec![LocalObjectReference { name: "pull".to_owned() }],
            ..Program::public("mine")
        };
        assert_eq!(program(&json!([proxy, own])), Some(expected));
        assert_eq!(program(&json!([proxy])), None);
        assert_eq!(program(&json!([{ "name": "operator" }])), None);
        assert_eq!(Program::of(&Pod::default()), None);
    }

    #[test]
    fn a_configured_image_replaces_the_image_of_the_pod() {
        let own = Program { pull_policy: "Always".to_owned(), ..Program::public("mine") };
        let theirs = Program { image: "theirs".to_owned(), ..own.clone() };
        assert_eq!(Program::with_image(Some(own.clone()), None), Some(own.clone()));
        assert_eq!(Program::with_image(Some(own), Some("theirs")), Some(theirs));
        assert_eq!(Program::with_image(None, Some("theirs")), Some(Program::public("theirs")));
        assert_eq!(Program::with_image(None, None), None);
    }

    #[test]
    fn a_pod_gets_the_placement_of_the_template_without_pod_affinity() {
        let nodes = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "preference": { "matchExpressions": [{ "key": "zone", "operator": "Exists" }] } },
        ] });
        let mut spec = json!({
            "containers": [],
            "nodeSelector": { "infra": "" },
            "tolerations": [{ "key": "infra", "operator": "Exists" }],
            "priorityClassName": "system-cluster-critical",
            "affinity": { "nodeAffinity": nodes, "podAntiAffinity": {} },
        });
        let replicas = json!({ "spec": { "selector": {}, "template": { "spec": spec } } });
        let placement = Placement::of(&serde_json::from_value(replicas).unwrap());
        spec["affinity"] = json!({ "nodeAffinity": nodes });
        assert_eq!(serde_json::to_value(placement.place(PodSpec::default())).unwrap(), spec);
        assert_eq!(Placement::default().place(PodSpec::default()), PodSpec::default());
    }

    #[test]
    fn a_pod_is_of_the_replica_set_that_controls_it() {
        let made_by = |owner: Value| {
            let pod: Pod =
                serde_json::from_value(json!({ "metadata": { "ownerReferences": [owner] } })).unwrap();
            replica_set_of(&pod).map(str::to_owned)
        };
        let owner = |kind: &str, controller: bool| json!({ "apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "1", "controller": controller });
        assert_eq!(made_by(owner("ReplicaSet", true)).as_deref(), Some("a"));
        assert_eq!(made_by(owner("ReplicaSet", false)), None);
        assert_eq!(made_by(owner("Node", true)), None);
    }
}
