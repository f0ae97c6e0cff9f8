//! cloud-api-adaptors that a configuration does not manage: those of other configurations, and those that this operator did not
//! install. Two on one node would share its socket and port.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec},
};
use kube::ResourceExt as _;

use super::{CONFIG_LABEL, Names, NodeSelection, selection::requirement_holds};
use crate::api::v1alpha1::PeerPodConfig;

/// The names in cloud-api-adaptor's own installations and in those of the controller that this operator replaces.
const NAMES: [&str; 2] = ["cloud-api-adaptor-daemonset", "peerpodconfig-ctrl-caa-daemon"];

/// The last part of every image's name, and the label `app` of the usual DaemonSet.
const ADAPTOR: &str = "cloud-api-adaptor";

/// A DaemonSet that conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The selected nodes that it runs on, in order.
    pub nodes: Vec<String>,
    /// The name of the other configuration that this operator created it for.
    pub of_config: Option<String>,
    /// Whether the controller that this operator replaces created it for this configuration.
    pub for_this: bool,
}

impl fmt::Display for Unmanaged {
    /// Names the conflict, and how to take over.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, nodes, of_config, for_this } = self;
        write!(f, "the DaemonSet {namespace}/{name}")?;
        match of_config {
            Some(config) => write!(f, " of PeerPodConfig {config}")?,
            None => f.write_str(", which this operator did not create,")?,
        }
        f.write_str(" runs cloud-api-adaptor on ")?;
        match &nodes[..] {
            [node] => write!(f, "the selected node {node}")?,
            nodes => {
                let first = nodes.first().map(String::as_str).unwrap_or_default();
                write!(f, "{} selected nodes, {first} among them", nodes.len())?;
            }
        }
        if let Some(config) = of_config {
            return write!(
                f,
                "; change the selectors so that no node is selected twice. If {config} is being deleted, \
                 the DaemonSet is deleted when its Pods have ended. If {config} no longer exists, run: \
                 kubectl --namespace {namespace} delete daemonset {name}"
            );
        }
        if *for_this {
            f.write_str(
                "; the controller that created it for this PeerPodConfig applies limit to each node since \
                 its v0.8.0; this operator applies limit to all nodes together, unless distribution is \
                 PerNode. To take over, stop that controller, otherwise it creates the DaemonSet again; end",
            )?;
        } else {
            f.write_str(". To take over, end")?;
        }
        write!(
            f,
            " the peer pods there, because their VMs lose their cloud-api-adaptor; then run: kubectl \
             --namespace {namespace} delete daemonset {name}"
        )
    }
}

/// The DaemonSets, except a configuration's own, that run cloud-api-adaptor on nodes that the configuration selects. One that is being
/// deleted counts until its Pods have ended. Taints do not count, because a taint may be removed later.
///
/// The operator adopts none, not even one that was created for this configuration: its selector cannot be changed, and replacing it
/// costs the VMs that it serves, so a person must decide when.
pub fn unmanaged_adaptors<'a>(
    daemon_sets: impl IntoIterator<Item = &'a DaemonSet>,
    config: &PeerPodConfig,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Vec<Unmanaged> {
    let selection = NodeSelection::of(&config.spec);
    let mut selected: Vec<_> = nodes.into_iter().filter(|node| selection.matches(node.labels())).collect();
    selected.sort_by_key(|node| node.name_any());
    let mut unmanaged: Vec<_> = daemon_sets
        .into_iter()
        .filter(|it| runs_anothers_adaptor(it, config))
        .map(|it| Unmanaged {
            namespace: it.namespace().unwrap_or_default(),
            name: it.name_any(),
            nodes: selected.iter().filter(|node| runs_on(it, node)).map(|node| node.name_any()).collect(),
            of_config: it.labels().get(CONFIG_LABEL).cloned(),
            for_this: it
                .owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == config.metadata.uid.as_ref()),
        })
        .filter(|it| !it.nodes.is_empty())
        .collect();
    unmanaged.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    unmanaged
}

fn pod(daemon_set: &DaemonSet) -> Option<&PodSpec> {
    let spec: Option<&DaemonSetSpec> = (&daemon_set.spec).into();
    spec?.template.spec.as_ref()
}

/// Whether a DaemonSet says that it runs cloud-api-adaptor, whatever created it.
pub fn runs_adaptor(daemon_set: &DaemonSet) -> bool {
    let labels = daemon_set.labels();
    let images =
        || pod(daemon_set).into_iter().flat_map(|pod| &pod.containers).filter_map(|it| it.image.as_deref());
    labels.contains_key(CONFIG_LABEL)
        || NAMES.contains(&daemon_set.name_any().as_str())
        || labels.get("app").is_some_and(|app| app == ADAPTOR)
        || images().any(is_adaptor_image)
}

/// Whether an image is one of cloud-api-adaptor's.
pub fn is_adaptor_image(image: &str) -> bool {
    image.contains(ADAPTOR)
}

/// Whether a DaemonSet may take the socket or the port of a cloud-api-adaptor in this namespace, which is the operator's own. In any
/// other namespace, tenants may create DaemonSets with such a name, label or image. One of these counts only if it has Pods that use
/// the node's network or files, as every cloud-api-adaptor does. Pod security refuses such Pods, but not their DaemonSet.
pub fn may_conflict(daemon_set: &DaemonSet, namespace: Option<&str>) -> bool {
    let uses_node = |pod: &PodSpec| {
        pod.host_network == Some(true) || pod.volumes.iter().flatten().any(|it| it.host_path.is_some())
    };
    let is_own_namespace = || daemon_set.metadata.namespace.as_deref() == namespace;
    let runs_elsewhere = || has_pods(daemon_set) && pod(daemon_set).is_some_and(uses_node);
    runs_adaptor(daemon_set) && (is_own_namespace() || runs_elsewhere())
}

/// Whether it has a Pod on any node, also on one that it no longer selects.
pub fn has_pods(daemon_set: &DaemonSet) -> bool {
    let nodes =
        |status: &DaemonSetStatus| status.current_number_scheduled.saturating_add(status.number_misscheduled);
    daemon_set.status.as_ref().is_some_and(|status| nodes(status) > 0)
}

/// Whether a DaemonSet runs cloud-api-adaptor, on any nodes, and is not the configuration's own.
pub fn runs_anothers_adaptor(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    may_conflict(daemon_set, config.metadata.namespace.as_deref()) && !is_of(daemon_set, config)
}

/// Whether it is the configuration's own, also without its label.
fn is_of(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    daemon_set.namespace() == config.namespace() && daemon_set.name_any() == Names::of(config).adaptor
}

fn runs_on(daemon_set: &DaemonSet, node: &Node) -> bool {
    let Some(pod) = pod(daemon_set) else { return false };
    let labels = node.labels();
    let required = pod
        .affinity
        .as_ref()
        .and_then(|it| it.node_affinity.as_ref())
        .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|it| {
            let terms = &it.node_selector_terms;
            // The API server accepts no empty list: its terms were too large to be read.
            terms.is_empty() || terms.iter().any(|term| term_matches(term, node, labels))
        })
}

/// A term without any requirement matches no node.
fn term_matches(term: &NodeSelectorTerm, node: &Node, labels: &BTreeMap<String, String>) -> bool {
    let holds = |it: &NodeSelectorRequirement, value: Option<&String>| {
        requirement_holds(&it.operator, it.values.as_deref().unwrap_or_default(), value)
    };
    let (expressions, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
    let (expressions, fields) = (expressions.unwrap_or_default(), fields.unwrap_or_default());
    let name = node.name_any();
    let field = |it: &NodeSelectorRequirement| (it.key == "metadata.name").then_some(&name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|it| holds(it, labels.get(&it.key)))
        && fields.iter().all(|it| holds(it, field(it)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(daemon_set: &Value) -> Vec<Unmanaged> {
        let daemon_set: DaemonSet = serde_json::from_value(daemon_set.clone()).unwrap();
        let node = |name: &str, labels: Value| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap()
        };
        let nodes = [
            node("b", json!({ "peer": "yes", "zone": "2" })),
            node("a", json!({ "peer": "yes", "zone": "1" })),
            node("c", json!({ "zone": "1" })),
        ];
        let config = serde_json::from_value(json!({
            "metadata": { "name": "config", "uid": "1-2-3" }, "spec": { "nodeSelector": { "peer": "yes" } },
        }));
        unmanaged_adaptors([&daemon_set], &config.unwrap(), &nodes)
    }

    /// A DaemonSet with a Pod.
    fn daemon_set(metadata: &Value, pod: &Value) -> Value {
        json!({
            "metadata": metadata,
            "spec": { "selector": {}, "template": { "spec": pod } },
            "status": { "currentNumberScheduled": 1 },
        })
    }

    fn names(daemon_set: &Value) -> Vec<String> {
        found(daemon_set).into_iter().flat_map(|it| it.nodes).collect()
    }

    #[test]
    fn an_unmanaged_daemon_set_is_recognized_by_name_label_or_image() {
        let plain = json!({ "containers": [{ "name": "x", "image": "x" }] });
        let image = json!({ "containers": [{ "name": "x", "image": "r/org/cloud-api-adaptor:v1" }] });
        let on_host = json!({ "hostNetwork": true, "containers": image["containers"] });
        for (metadata, pod) in [
            (json!({ "name": "cloud-api-adaptor-daemonset" }), &plain),
            (json!({ "name": "peerpodconfig-ctrl-caa-daemon" }), &plain),
            (json!({ "name": "x", "labels": { "app": "cloud-api-adaptor" } }), &plain),
            (json!({ "name": "x" }), &image),
            (json!({ "name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z" }), &image),
            (json!({ "name": "older-cloud-api-adaptor", "labels": { CONFIG_LABEL: "older" } }), &plain),
            (json!({ "name": "config-cloud-api-adaptor", "namespace": "elsewhere" }), &on_host),
        ] {
            assert_eq!(names(&daemon_set(&metadata, pod)), ["a", "b"]);
        }
        for (metadata, pod) in [
            (json!({ "name": "x", "labels": { "app": "y" } }), &plain),
            (json!({ "name": "config-cloud-api-adaptor", "labels": { CONFIG_LABEL: "config" } }), &image),
            (json!({ "name": "config-cloud-api-adaptor" }), &image),
        ] {
            assert_eq!(names(&daemon_set(&metadata, pod)), [""; 0]);
        }
    }

    #[test]
    fn in_another_namespace_only_one_that_uses_the_node_conflicts() {
        let of = |labels: &Value| json!({ "name": "x", "namespace": "shop", "labels": labels });
        let with = |further: Value| {
            let mut pod = json!({ "containers": [{ "name": "x", "image": "cloud-api-adaptor" }] });
            pod.as_object_mut().unwrap().append(&mut further.as_object().unwrap().clone());
            pod
        };
        for labels in [json!({ "app": "cloud-api-adaptor" }), json!({ CONFIG_LABEL: "older" })] {
            for harmless in [
                json!({}),
                json!({ "hostNetwork": false, "volumes": [] }),
                json!({ "volumes": [{ "name": "a", "emptyDir": {} }] }),
            ] {
                assert_eq!(names(&daemon_set(&of(&labels), &with(harmless))), [""; 0]);
            }
            for host in [
                json!({ "hostNetwork": true }),
                json!({ "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "hostPath": { "path": "/run" } }] }),
            ] {
                assert_eq!(names(&daemon_set(&of(&labels), &with(host))), ["a", "b"]);
            }
        }
    }

    #[test]
    fn in_another_namespace_one_that_gets_no_pods_does_not_conflict() {
        let pod = json!({ "containers": [], "hostNetwork": true });
        let with_status = |namespace: &str, status: Value| {
            let labels = json!({ "app": "cloud-api-adaptor" });
            let mut it = daemon_set(&json!({ "name": "x", "namespace": namespace, "labels": labels }), &pod);
            it["status"] = status;
            let it: DaemonSet = serde_json::from_value(it).unwrap();
            may_conflict(&it, Some("own"))
        };
        for none in [
            json!(null),
            json!({}),
            json!({ "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 3 }),
        ] {
            assert!(!with_status("shop", none.clone()), "{none}");
            assert!(with_status("own", none.clone()), "{none}");
        }
        for some in [
            json!({ "currentNumberScheduled": 1 }),
            json!({ "numberMisscheduled": 1 }),
            json!({ "currentNumberScheduled": i32::MAX, "numberMisscheduled": 1 }),
        ] {
            assert!(with_status("shop", some.clone()), "{some}");
        }
    }

    #[test]
    fn only_selected_nodes_that_it_runs_on_count() {
        let on = |placement: Value| {
            let mut pod = json!({ "containers": [{ "name": "x", "image": "cloud-api-adaptor" }] });
            pod.as_object_mut().unwrap().append(&mut placement.as_object().unwrap().clone());
            names(&daemon_set(&json!({ "name": "x" }), &pod))
        };
        let term = |term: Value| {
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": term,
            } } } })
        };
        assert_eq!(on(json!({ "nodeSelector": { "zone": "1" } })), ["a"]);
        assert_eq!(on(json!({ "nodeSelector": { "zone": "3" } })), [""; 0]);
        let zone = json!({ "key": "zone", "operator": "In", "values": ["2"] });
        assert_eq!(on(term(json!([{ "matchExpressions": [zone] }]))), ["b"]);
        let name = json!({ "key": "metadata.name", "operator": "In", "values": ["a"] });
        assert_eq!(on(term(json!([{ "matchFields": [name] }, { "matchExpressions": [zone] }]))), ["a", "b"]);
        assert_eq!(on(term(json!([{ "matchFields": [name], "matchExpressions": [zone] }]))), [""; 0]);
        assert_eq!(on(term(json!([{}]))), [""; 0]);
    }

    #[test]
    fn the_message_says_how_to_take_over() {
        let unmanaged = found(&daemon_set(
            &json!({ "name": "cloud-api-adaptor-daemonset", "namespace": "caa" }),
            &json!({ "containers": [], "hostNetwork": true }),
        ));
        let text = unmanaged[0].to_string();
        assert!(text.contains("caa/cloud-api-adaptor-daemonset"), "{text}");
        assert!(text.contains("2 selected nodes, a among them"), "{text}");
        assert!(
            text.ends_with("kubectl --namespace caa delete daemonset cloud-api-adaptor-daemonset"),
            "{text}"
        );
        assert!(!text.contains("limit"), "{text}");
    }

    #[test]
    fn the_message_names_the_configuration_of_another_daemon_set() {
        let metadata = json!({ "name": "a", "namespace": "own", "labels": { CONFIG_LABEL: "older" } });
        let text =
            found(&daemon_set(&metadata, &json!({ "containers": [], "hostNetwork": true })))[0].to_string();
        assert!(text.contains("own/a of PeerPodConfig older runs") && text.contains("selectors"), "{text}");
    }

    #[test]
    fn the_message_names_the_controller_that_made_it_for_this_configuration() {
        let owned_by = |uid: &str| {
            let owner =
                json!({ "apiVersion": "x/v1", "kind": "PeerPodConfig", "name": "config", "uid": uid });
            let metadata = json!({
                "name": "peerpodconfig-ctrl-caa-daemon", "namespace": "caa", "ownerReferences": [owner],
            });
            found(&daemon_set(&metadata, &json!({ "containers": [], "hostNetwork": true }))).remove(0)
        };
        let (own, of_another) = (owned_by("1-2-3"), owned_by("4"));
        assert!(own.for_this && !of_another.for_this);
        let text = own.to_string();
        assert!(text.contains("since its v0.8.0") && text.contains("stop that controller"), "{text}");
        assert!(
            text.ends_with("kubectl --namespace caa delete daemonset peerpodconfig-ctrl-caa-daemon"),
            "{text}"
        );
    }
}
