//! How many VMs each node may run, and how nodes come to say so.
//!
//! ```text
//! watch ─► nodes ─┐
//! configurations ─┴► plan ─► count (where a number would change) ─► plan ─► write ─► summaries
//!                    (pure)  (reads Pods)                                   (one for each node that differs)
//! ```
//!
//! A node's number is an extended resource in its capacity and its allocatable resources. Both are written: a kubelet
//! makes the latter from the former, but not before its next status, and the scheduler reads the latter. The same write
//! leaves a [mark](MARK) on the node, by which nodes are found again that no configuration selects any more.
//!
//! Kubelets that restart set such resources to zero, and some cloud-api-adaptors remove them when they end. The watch
//! brings that, and the next pass puts it right: at once for the first time, and ever more slowly where somebody goes on
//! undoing it.

mod conflict_backoff;
mod count;
mod failures;
pub mod limit;
mod node;
mod node_request;
mod nodes;
pub mod plan;
mod recount;
pub mod selection;
pub mod spread;
mod summary;
mod taints;
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
use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client};
use operator_kit::{Permission, api_call::ApiError, projection::reading};
use tokio::{sync::Mutex, time::Instant};

use self::{
    count::PodView,
    plan::{InUse, NodeWrite, Plan, plan},
    recount::{Recount, UNEVEN},
    write::Writer,
};

pub use self::{
    node::{Level, MARK, Node},
    node_request::{BadResource, NodeRequest},
    nodes::Nodes,
    summary::{CapacityFinding, Summary},
    write::Written,
};

/// What this may do in the cluster.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("", &["nodes"], &["list", "watch"]),
    Permission::new("", &["nodes/status"], &["patch"]),
    Permission::new("", &["pods"], &["list"]),
];

/// After so many questions about single nodes in one pass all Pods are counted, so that a pass has an end.
const ROUNDS: usize = 2;

/// For so long there may have been no process to look again at what its predecessor wrote to.
const HAND_OVER: SignedDuration = SignedDuration::from_hours(1);

/// Advertises VMs on nodes *(client required)*.
pub struct Capacity {
    pods: Api<PodView>,
    nodes: Nodes,
    /// Whether another process may have written to nodes since the last pass.
    taken_over: AtomicBool,
    /// Two passes at once would each write what the other has written.
    turn: Mutex<Turn>,
}

/// What passes leave to each other.
struct Turn {
    writer: Writer,
    recount: Recount,
}

/// What a pass did, and how everybody stands after it.
#[derive(Debug)]
pub struct Pass {
    /// One for each request, in their order.
    pub summaries: Vec<Summary>,
    /// What became of the writes.
    pub written: Written,
    /// When another pass is due at the latest, if nothing happens.
    pub again: Option<Duration>,
}

/// It is not known how many peer pods run on nodes whose numbers are to change: nothing was written.
#[derive(Debug, thiserror::Error)]
#[error("counting the running peer pods failed: {0}")]
pub struct CountError(#[from] ApiError);

impl Capacity {
    /// That of a cluster, and the [changes of its nodes](Nodes::watch): a stream that must be polled, each item of which
    /// asks for a pass.
    pub fn watch(client: &Client) -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let pods = Api::all(reading(client, &count::POD));
        let client = reading(client, &node::NODE);
        let (nodes, changes) = Nodes::watch(client.clone());
        let turn = Turn { writer: Writer::new(client), recount: Recount::default() };
        (Self { pods, nodes, taken_over: AtomicBool::new(true), turn: Mutex::new(turn) }, changes)
    }

    /// Says that another process may have written to nodes since the last pass. For the first pass that is so anyway.
    pub fn taken_over(&self) {
        self.taken_over.store(true, Ordering::Relaxed);
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Which nodes each request selects, and which of them an older one has, in the order of the requests. `None` until all
    /// nodes have been seen.
    pub fn survey(&self, requests: &[NodeRequest]) -> Option<Vec<Summary>> {
        Some(plan::survey(requests, &self.nodes.snapshot()?))
    }

    /// Makes all nodes as these requests want them, which must be those of all configurations that are honoured, also of
    /// those that are being deleted. `None`, and nothing written, until all nodes have been seen.
    pub async fn pass(&self, requests: &[NodeRequest]) -> Result<Option<Pass>, CountError> {
        let Turn { writer, recount } = &mut *self.turn.lock().await;
        let Some(nodes) = self.nodes.snapshot() else { return Ok(None) };
        let now = Instant::now();
        if self.taken_over.swap(false, Ordering::Relaxed) {
            // What the other one meant to look at again nobody knows.
            let late = Timestamp::now() - HAND_OVER;
            let written = nodes.iter().filter(|node| node.written().is_some_and(|time| time > late));
            let advertise = written.filter(|node| node.mark().is_some());
            recount.schedule(advertise.map(|node| node.name().clone()), now);
        }
        let (mut in_use, due) = (recount.all(now), recount.due(now));
        let mut planned = plan(requests, &nodes, &in_use);
        if !(planned.is_settled() && due.is_empty()) {
            let waits = |node: &Arc<str>| writer.delays(node, now);
            in_use = recount.recent(waits, now);
            let refused = |write: &NodeWrite| writer.refuses(write, now);
            let Some(counted) = self.count(requests, due, refused, &mut in_use).await? else {
                return Ok(None);
            };
            planned = counted;
            recount.take(&in_use, waits, now);
        }
        let (mut summaries, moved) = (planned.summaries, !planned.writes.is_empty());
        let written = writer.write(&self.nodes, planned.writes, now).await;
        if moved {
            let reached: HashSet<_> = written.reached.iter().collect();
            planned.lowered.retain(|node| reached.contains(node));
            recount.schedule(planned.lowered, Instant::now());
            if let Some(nodes) = self.nodes.snapshot() {
                summaries = plan(requests, &nodes, &in_use).summaries;
            }
            for summary in &mut summaries {
                summary.hindered(&written);
            }
        }
        let uneven = summaries.iter().any(|summary| summary.uneven).then_some(UNEVEN);
        let again = [written.again, uneven, recount.next(Instant::now())].into_iter().flatten().min();
        Ok(Some(Pass { summaries, written, again }))
    }

    /// Counts the peer pods of these nodes, and of those whose numbers are to change; what is to be done then. Nothing is
    /// counted for a write that is `refused`, as it must wait.
    async fn count(
        &self,
        requests: &[NodeRequest],
        mut uncounted: Vec<Arc<str>>,
        refused: impl Fn(&NodeWrite) -> bool,
        in_use: &mut InUse,
    ) -> Result<Option<Plan>, CountError> {
        let resources: BTreeSet<_> = requests.iter().map(|request| request.resource.as_str()).collect();
        for round in 0.. {
            if !uncounted.is_empty() {
                count::count(&self.pods, &uncounted, round > ROUNDS, &resources, in_use).await?;
            }
            let Some(nodes) = self.nodes.snapshot() else { break };
            let planned = plan(requests, &nodes, in_use);
            let admitted = planned.writes.iter().filter(|write| !refused(write));
            let admitted: HashSet<_> = admitted.map(|write| &write.node).collect();
            uncounted = planned.uncounted.iter().filter(|node| admitted.contains(node)).cloned().collect();
            if uncounted.is_empty() {
                return Ok(Some(planned));
            }
        }
        Ok(None)
    }
}
