//! How many peer pods run on which node *(client required)*.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{Api, Resource, api::ListParams};
use operator_kit::{
    api_call::{self, ApiError},
    metadata,
    projection::{MOST, Members, Part, Projection},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    super::condition_view::{CONDITION, ConditionView, is_true},
    in_use::InUse,
    node::whole,
};

/// Up to this number of nodes, the operator lists the Pods of each node. Beyond that, one list of all Pods costs less.
const FEW: usize = 16;

/// The number of these lists at once.
const IN_FLIGHT: usize = 4;

/// Pods that have a node and may run there.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";

const CONTAINER: Members = &[("resources", Part::Only(&[("requests", Part::All)]))];

/// What is read of a Pod.
pub static POD: Projection = Projection {
    metadata: &[],
    rest: &[
        (
            "spec",
            // Many init containers do not hide the request of a container.
            Part::Apart(&[
                ("nodeName", Part::All),
                ("containers", Part::Only(CONTAINER)),
                ("initContainers", Part::Only(CONTAINER)),
            ]),
        ),
        ("status", Part::Only(&[("phase", Part::All), ("startTime", Part::All), ("conditions", CONDITION)])),
    ],
    // The requests of a hundred containers.
    most: 2 * MOST,
};

/// The part of a Pod that the operator reads. Of its metadata, which may be of any size, that is what identifies it.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = Pod)]
pub struct PodView {
    #[serde(default, with = "metadata::Stored")]
    metadata: ObjectMeta,
    spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecView {
    node_name: Option<String>,
    containers: Vec<ContainerView>,
    init_containers: Vec<ContainerView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    phase: Option<String>,
    start_time: Option<IgnoredAny>,
    conditions: Vec<ConditionView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerView {
    resources: ResourcesView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ResourcesView {
    requests: BTreeMap<String, Quantity>,
}

/// Counts on these nodes, and keeps the earlier counts of other nodes; or counts on all.
pub(super) async fn count(
    pods: &Api<PodView>,
    nodes: &[Arc<str>],
    all: bool,
    resources: &BTreeSet<&str>,
    counted: &mut InUse,
) -> Result<(), ApiError> {
    if all || nodes.len() > FEW {
        *counted = InUse::of_all(on_all_nodes(pods, resources).await?);
        return Ok(());
    }
    let lists = stream::iter(nodes.to_vec()).map(|node| on_node(pods, node, resources));
    let found: Vec<_> = lists.buffer_unordered(IN_FLIGHT).try_collect().await?;
    for (node, in_use) in found {
        counted.add(node, in_use);
    }
    Ok(())
}

async fn on_node(
    pods: &Api<PodView>,
    node: Arc<str>,
    resources: &BTreeSet<&str>,
) -> Result<(Arc<str>, BTreeMap<String, u32>), ApiError> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node},{RUNNING}"));
    let mut in_use = BTreeMap::new();
    api_call::for_each(pods, &params, |pod| add(&pod, resources, &mut in_use)).await?;
    Ok((node, in_use))
}

async fn on_all_nodes(
    pods: &Api<PodView>,
    resources: &BTreeSet<&str>,
) -> Result<HashMap<Arc<str>, BTreeMap<String, u32>>, ApiError> {
    let params = ListParams::default().fields(&format!("spec.nodeName!=,{RUNNING}"));
    let mut in_use = HashMap::<_, BTreeMap<_, _>>::new();
    let take = |pod: PodView| {
        if resources.iter().any(|resource| pod.requested(resource) > 0)
            && let Some(node) = pod.node()
        {
            add(&pod, resources, in_use.entry(node.into()).or_default());
        }
    };
    api_call::for_each(pods, &params, take).await?;
    Ok(in_use)
}

fn add(pod: &PodView, resources: &BTreeSet<&str>, in_use: &mut BTreeMap<String, u32>) {
    for resource in resources {
        let requested = pod.requested(resource);
        if requested > 0 {
            let sum = in_use.entry((*resource).to_owned()).or_default();
            *sum = sum.saturating_add(requested);
        }
    }
}

impl PodView {
    /// The node that it is on.
    pub fn node(&self) -> Option<&str> {
        self.spec.node_name.as_deref()
    }

    /// How many VMs of this extended resource the Pod has: one at most, as the admission makes a peer pod request one, on one
    /// container. A Pod without a VM that requests a million takes one from the other nodes, too.
    pub fn requested(&self, resource: &str) -> u32 {
        if !has_its_place(&self.status) {
            return 0;
        }
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let mut requests = containers.filter_map(|container| container.resources.requests.get(resource));
        u32::from(requests.any(|quantity| whole(quantity) > 0))
    }
}

/// Whether a scheduler or a kubelet found room for the Pod, and it has not ended. A user may create a Pod that names any node, but that
/// alone must take nothing from the other nodes.
fn has_its_place(StatusView { phase, start_time, conditions }: &StatusView) -> bool {
    if matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
        return false;
    }
    // The API server sets the condition when a scheduler binds the Pod, the kubelet for all others.
    start_time.is_some() || phase.as_deref() == Some("Running") || is_true(conditions, "PodScheduled")
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_counts_once_whatever_its_containers_request() {
        let [_, pod] = read_and_projected::<PodView>(
            &POD,
            &json!({
                "metadata": { "name": "a", "uid": "u", "annotations": { "fat": "x" } },
                "spec": {
                    "nodeName": "n",
                    "initContainers": [{ "name": "i", "env": [], "resources": { "requests": { "x.y/vm": "1" } } }],
                    "containers": [
                        { "name": "x", "resources": { "requests": { "x.y/vm": "1", "cpu": "100m" } } },
                        { "name": "y" },
                        { "name": "z", "resources": { "requests": { "x.y/vm": "1M" }, "limits": { "x.y/vm": "1M" } } },
                    ],
                },
                "status": { "conditions": [{ "type": "PodScheduled", "status": "True", "message": "m" }] },
            }),
        );
        assert_eq!((pod.node(), pod.metadata.uid.as_deref()), (Some("n"), Some("u")));
        let resources = BTreeSet::from(["x.y/vm", "x.y/other"]);
        let mut in_use = BTreeMap::from([("x.y/vm".to_owned(), 4)]);
        add(&pod, &resources, &mut in_use);
        assert_eq!(in_use, BTreeMap::from([("x.y/vm".to_owned(), 5)]));
    }

    #[test]
    fn oversized_containers_hide_no_vm_of_the_init_containers() {
        let many: serde_json::Map<_, _> =
            (0..64).map(|it| (format!("x.y/{}-{it}", "a".repeat(300)), json!("0"))).collect();
        let fat = json!({ "name": "i", "resources": { "requests": many } });
        let mut requests = many.clone();
        requests.insert("x.y/vm".to_owned(), json!("1"));
        let [read, projected] = read_and_projected::<PodView>(
            &POD,
            &json!({
                "metadata": { "name": "a" },
                "spec": {
                    // The order in which they are written.
                    "containers": vec![fat; 20],
                    "initContainers": [{ "name": "x", "resources": { "requests": requests } }],
                    "nodeName": "n",
                },
                "status": { "phase": "Running" },
            }),
        );
        assert_eq!([read, projected].map(|pod| pod.requested("x.y/vm")), [1, 1]);
    }

    #[test]
    fn a_pod_counts_only_while_it_is_scheduled_and_unfinished() {
        let taken = |status: serde_json::Value| {
            let resources = json!({ "requests": { "x.y/vm": "2" } });
            let [_, pod] = read_and_projected::<PodView>(
                &POD,
                &json!({
                    "metadata": { "name": "a" },
                    "spec": { "nodeName": "n", "containers": [{ "name": "x", "resources": resources }] },
                    "status": status,
                }),
            );
            pod.requested("x.y/vm")
        };
        let scheduled = |status: &str| json!([{ "type": "Other", "status": "True" }, { "type": "PodScheduled", "status": status }]);
        for (status, expected) in [
            (json!({}), 0),
            (json!({ "phase": "Pending" }), 0),
            (json!({ "phase": "Pending", "conditions": scheduled("False") }), 0),
            (json!({ "phase": "Pending", "conditions": scheduled("True") }), 1),
            (json!({ "phase": "Pending", "startTime": "2026-01-01T00:00:00Z" }), 1),
            (json!({ "phase": "Running" }), 1),
            (json!({ "phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z" }), 0),
            (json!({ "phase": "Failed", "conditions": scheduled("True") }), 0),
        ] {
            assert_eq!(taken(status.clone()), expected, "{status}");
        }
    }
}
