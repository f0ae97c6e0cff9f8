//! How many VMs each node may run, and the writes that advertise it.
//!
//! ```text
//! watch ─► nodes ─┐
//! configurations ─┴► plan ─► count (where a number would change) ─► plan ─► write ─► summaries
//!                    (pure)  (reads Pods)                                   (one for each node that differs)
//! ```
//!
//! It observes in `nodes.rs` and `count.rs`, computes the desired numbers in `assignment.rs` (which nodes a configuration has) and
//! `plan.rs` (what these advertise), applies them in `write.rs`, and says what it found in `summary.rs`. Beside that, `usage.rs` shows in
//! the metrics what peer pods use.
//!
//! A node's number is an extended resource in its capacity and its allocatable resources. The operator writes both: the scheduler
//! reads the latter, and the kubelet derives it from the former only at its next status. The same write leaves a [mark](MARK) on
//! the node, by which the operator finds nodes that no configuration selects any more.
//!
//! A kubelet that restarts sets such resources to zero, and some cloud-api-adaptors remove them when they end. The watch shows
//! that, and the next pass corrects it: at once for the first time, and with growing delays if another program keeps undoing it.
//!
//! A node gets a larger share after other nodes have lost theirs. If a write to one of these fails, the others get as many VMs fewer.
//! So all nodes together advertise no more than the limit: see `headroom.rs`.

mod assignment;
mod conflict_backoff;
mod count;
mod failures;
mod headroom;
mod in_use;
pub mod limit;
mod node;
mod node_request;
mod node_write;
mod nodes;
pub mod plan;
mod recount;
pub mod spread;
mod summary;
mod taints;
mod usage;
mod write;

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::Stream;
use kube::{Api, Client};
use operator_kit::{Permission, api_call::ApiError, projection::reading};
use tokio::{sync::Mutex, time::Instant};

use self::{
    plan::{Plan, plan},
    recount::Recount,
    write::Writer,
};

pub use self::{
    assignment::owners,
    count::{POD, PodView},
    in_use::InUse,
    node::{Level, MARK, Node},
    node_request::{BadResource, NodeRequest},
    node_write::{NodeWrite, Written},
    nodes::{Nodes, list_nodes},
    summary::{Summary, survey},
};

/// What this may do in the cluster.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", &["nodes"], &["list", "watch"]),
    Permission::new("", &["nodes/status"], &["patch"]),
    Permission::new("", &["pods"], &["list"]),
];

/// After this many counts of single nodes in one pass, the pass counts all Pods, so that it ends.
const MOST_SINGLE: usize = 2;

/// Advertises VMs on nodes *(client required)*.
pub struct Capacity {
    pods: Api<PodView>,
    nodes: Nodes,
    /// Whether the next pass is the first since leadership changed: another process may have written to nodes meanwhile.
    is_first_of_term: AtomicBool,
    /// Two concurrent passes would each repeat the writes of the other.
    state: Mutex<PassState>,
}

/// The state that a pass leaves to the next one.
struct PassState {
    writer: Writer,
    recount: Recount,
}

/// The result of a pass.
#[derive(Debug)]
pub struct Pass {
    /// One for each request, in their order.
    pub summaries: Vec<Summary>,
    /// The results of the writes.
    pub written: Written,
    /// When another pass is due without an event.
    pub again: Option<Duration>,
}

/// The operator could not count the peer pods on nodes whose numbers are to change, so it wrote nothing.
#[derive(Debug, thiserror::Error)]
#[error("counting the running peer pods failed: {0}")]
pub struct CountError(#[from] ApiError);

impl Capacity {
    /// The capacity of a cluster, and the [changes of its nodes](Nodes::watch): a stream that must be polled, each item of which
    /// requests a pass.
    pub fn watch(client: &Client) -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let pods = Api::all(reading(client, &count::POD));
        let client = reading(client, &node::NODE);
        let (nodes, changes) = Nodes::watch(client.clone());
        let state = PassState { writer: Writer::new(client), recount: Recount::default() };
        (Self { pods, nodes, is_first_of_term: AtomicBool::new(true), state: Mutex::new(state) }, changes)
    }

    /// Notes that another process may have written to nodes since the last pass. The first pass assumes so anyway.
    pub fn leadership_changed(&self) {
        self.is_first_of_term.store(true, Ordering::Relaxed);
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Which nodes each request selects, and which of them an older request has, in the order of the requests. `None` until the
    /// watch has listed all nodes.
    pub fn survey(&self, requests: &[NodeRequest]) -> Option<Vec<Summary>> {
        Some(survey(requests, &self.nodes.snapshot()?))
    }

    /// Writes all nodes as these requests want them. The requests must be those of all configurations that the controller honours,
    /// also of those that are being deleted. `None`, and nothing written, until the watch has listed all nodes.
    pub async fn pass(&self, requests: &[NodeRequest]) -> Result<Option<Pass>, CountError> {
        let PassState { writer, recount } = &mut *self.state.lock().await;
        let Some(nodes) = self.nodes.snapshot() else { return Ok(None) };
        let now = Instant::now();
        if self.is_first_of_term.swap(false, Ordering::Relaxed) {
            writer.forget_conflicts();
            // A predecessor may have written to any of them and not counted them again. One that lost its share has lost its mark.
            let owners = owners(requests, &nodes);
            let has_share =
                |node: &Node| owners.get(&**node.name()).is_some_and(|request| request.shares_out());
            let written = nodes.iter().filter(|node| node.mark().is_some() || has_share(node));
            recount.schedule(written.map(|node| node.name().clone()), now);
        }
        let waits = |node: &Arc<str>| writer.delays(node, now);
        recount.share(requests, waits);
        let (mut in_use, due) = (recount.all(waits, now), recount.due(now));
        let mut planned = plan(requests, &nodes, &in_use);
        if !(planned.is_settled() && due.is_empty()) {
            let refused = |write: &NodeWrite| writer.refuses(write, now);
            let Some(counted) = self.count(requests, due, refused, &mut in_use).await? else {
                return Ok(None);
            };
            planned = counted;
            recount.take(&in_use, now.elapsed(), waits, now);
        }
        let Plan { writes, headroom, mut summaries, lowered, .. } = planned;
        let has_writes = !writes.is_empty();
        let written = writer.write(&self.nodes, writes, headroom, now).await;
        if has_writes {
            recount.schedule(reached(lowered, &written), Instant::now());
            self.refresh_summaries(&mut summaries, requests, &in_use, &written);
        }
        let uneven = summaries.iter().any(|summary| summary.is_uneven).then_some(recount.uneven());
        let again = [written.again, uneven, recount.next(Instant::now())].into_iter().flatten().min();
        Ok(Some(Pass { summaries, written, again }))
    }

    /// After writes: the summaries of the nodes as they are now, with what prevented writes.
    fn refresh_summaries(
        &self,
        summaries: &mut Vec<Summary>,
        requests: &[NodeRequest],
        in_use: &InUse,
        written: &Written,
    ) {
        if let Some(nodes) = self.nodes.snapshot() {
            *summaries = plan(requests, &nodes, in_use).summaries;
        }
        for summary in summaries {
            summary.hindered(written);
        }
    }

    /// Counts the peer pods of these nodes and of those whose numbers are to change, and returns the plan. It does not count for a
    /// write that is `refused`, because that write must wait.
    async fn count(
        &self,
        requests: &[NodeRequest],
        mut uncounted: Vec<Arc<str>>,
        refused: impl Fn(&NodeWrite) -> bool,
        in_use: &mut InUse,
    ) -> Result<Option<Plan>, CountError> {
        let resources: BTreeSet<_> = requests.iter().map(|request| request.resource.as_str()).collect();
        let mut counts = 0;
        loop {
            if !uncounted.is_empty() {
                count::count(&self.pods, &uncounted, counts >= MOST_SINGLE, &resources, in_use).await?;
                counts += 1;
            }
            let Some(nodes) = self.nodes.snapshot() else { return Ok(None) };
            let planned = plan(requests, &nodes, in_use);
            let admitted = planned.writes.iter().filter(|write| !refused(write));
            let admitted: HashSet<_> = admitted.map(|write| &write.node).collect();
            uncounted = planned.uncounted.iter().filter(|node| admitted.contains(node)).cloned().collect();
            if uncounted.is_empty() {
                return Ok(Some(planned));
            }
        }
    }
}

/// Those of the nodes that a write may have reached.
fn reached(mut nodes: Vec<Arc<str>>, written: &Written) -> Vec<Arc<str>> {
    let reached: HashSet<_> = written.reached.iter().collect();
    nodes.retain(|node| reached.contains(node));
    nodes
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::StreamExt;
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::{Value, json};

    use super::*;

    const VM: &str = "kata.peerpods.io/vm";

    fn list(path: &str, items: &[Value]) -> Call {
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items,
        });
        Call::get(path).answer(Answer::object(&list))
    }

    /// A worker that advertises one VM.
    fn marked(number: u32) -> Value {
        let (name, one) = (format!("node-{number}"), json!({ VM: "1" }));
        json!({
            "metadata": {
                "name": name, "uid": name, "labels": { "node.kubernetes.io/worker": "" }, "annotations": { MARK: VM },
            },
            "status": { "capacity": one, "allocatable": one },
        })
    }

    /// The request of a configuration with this limit.
    fn limited(limit: u32) -> NodeRequest {
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config" }, "spec": { "limit": limit },
        }));
        NodeRequest::of(&config.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn all_nodes_that_may_have_shares_are_counted_once_after_another_process_may_have_written_to_them()
    {
        const PODS: &str = "/api/v1/pods";
        // Many nodes cost one list, as at any other count.
        for (nodes, lists) in [(3, 4), (200, 1)] {
            let mut all: Vec<_> = (0..nodes).map(marked).collect();
            // It has lost its share.
            let labels = json!({ "node.kubernetes.io/worker": "" });
            all.push(json!({ "metadata": { "name": "without", "uid": "without", "labels": labels } }));
            all.push(json!({ "metadata": { "name": "other", "uid": "other" } }));
            let mut calls = vec![list("/api/v1/nodes", &all)];
            calls.extend((0..2 * lists).map(|_| list(PODS, &[])));
            let server = ApiServer::expecting(calls);
            let (capacity, changes) = Capacity::watch(&server.client());
            pin!(changes).next().await.unwrap();
            let requests = [limited(nodes)];
            for _ in 0..2 {
                for again in [Some(Duration::from_secs(5)), None, None] {
                    let pass = capacity.pass(&requests).await.unwrap().unwrap();
                    assert_eq!((pass.again, pass.written.reached.len()), (again, 0), "{pass:?}");
                    tokio::time::advance(Duration::from_secs(5)).await;
                }
                capacity.leadership_changed();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_of_a_term_that_ended_meanwhile_are_no_conflict_with_another_program() {
        let labels = json!({ "node.kubernetes.io/worker": "" });
        let node = json!({ "metadata": { "name": "node", "uid": "node", "labels": labels } });
        let mut calls = vec![list("/api/v1/nodes", &[node])];
        for _ in 0..8 {
            calls.push(list("/api/v1/pods", &[]));
            calls.push(Call::patch("/api/v1/nodes/node/status").answer(Answer::hang()));
        }
        let server = ApiServer::expecting(calls);
        let (capacity, changes) = Capacity::watch(&server.client());
        pin!(changes).next().await.unwrap();
        let requests = [limited(1)];
        for _ in 0..8 {
            let pass = tokio::time::timeout(Duration::from_secs(1), capacity.pass(&requests)).await;
            assert!(pass.is_err(), "it waits for the API server, and for nothing else: {pass:?}");
            capacity.leadership_changed();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn peer_pods_over_the_limit_are_counted_again_until_they_have_ended() {
        const PODS: &str = "/api/v1/pods";
        let mut node = marked(0);
        let two = json!({ VM: "2" });
        node["status"] = json!({ "capacity": two, "allocatable": two });
        let containers = json!([{ "name": "a", "resources": { "requests": { VM: "1" } } }]);
        let pod = json!({
            "metadata": { "name": "a" }, "spec": { "nodeName": "node-0", "containers": containers },
            "status": { "phase": "Running" },
        });
        let running = || list(PODS, &[pod.clone(), pod.clone()]);
        let lowered = Call::patch("/api/v1/nodes/node-0/status")
            .body_with(json!({ "status": { "capacity": { VM: "1" } } }))
            .answer(Answer::object(&marked(0)));
        let calls = [list("/api/v1/nodes", &[node]), running(), running(), list(PODS, &[]), lowered];
        let server = ApiServer::expecting(calls);
        let (capacity, changes) = Capacity::watch(&server.client());
        pin!(changes).next().await.unwrap();
        let requests = [limited(1)];
        // A node is also counted soon after the first pass of a term, and after its share was lowered.
        for (again, reached) in [(5, 0), (60, 0), (5, 1)] {
            let pass = capacity.pass(&requests).await.unwrap().unwrap();
            let again = Duration::from_secs(again);
            assert_eq!((pass.again, pass.written.reached.len()), (Some(again), reached), "{pass:?}");
            tokio::time::advance(again).await;
        }
    }
}
