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

mod claim;
mod count;
mod holds;
pub mod limit;
mod node;
mod nodes;
pub mod plan;
pub mod selection;
pub mod spread;
mod summary;
mod write;

use std::{collections::BTreeSet, time::Duration};

use futures::Stream;
use kube::Client;
use tokio::sync::Mutex;

use self::{
    plan::{InUse, plan},
    write::Writer,
};
use crate::{permissions::Permission, runtime::api_call::ApiError};

pub use self::{
    claim::{BadResource, Claim},
    node::{Level, MARK, Node},
    nodes::Nodes,
    summary::{Summary, Verdict},
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

/// When to look again at shares that peer pods keep from being even. Nobody tells when these are gone.
const UNEVEN: Duration = Duration::from_secs(60);

/// Advertises VMs on nodes *(client required)*.
pub struct Capacity {
    client: Client,
    nodes: Nodes,
    writer: Writer,
    /// Two passes at once would each write what the other has written.
    turn: Mutex<()>,
}

/// What a pass did, and how everybody stands after it.
#[derive(Debug)]
pub struct Pass {
    /// One for each claim, in their order.
    pub summaries: Vec<Summary>,
    /// What became of the writes. What failed is for the caller to try again, after a while.
    pub written: Written,
    /// When another pass is due at the latest, if nothing happens.
    pub again: Option<Duration>,
}

/// It is not known how many peer pods run on nodes whose numbers are to change: nothing was written.
#[derive(Debug, thiserror::Error)]
#[error("counting the peer pods that run: {0}")]
pub struct CountError(#[from] ApiError);

impl Capacity {
    /// That of a cluster, and the [changes of its nodes](Nodes::watch): a stream that must be polled, each item of which
    /// asks for a pass.
    pub fn watch(client: Client) -> (Self, impl Stream<Item = ()> + Send + 'static) {
        let (nodes, changes) = Nodes::watch(client.clone());
        let writer = Writer::new(client.clone());
        (Self { client, nodes, writer, turn: Mutex::new(()) }, changes)
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Makes all nodes as these claims want them, which must be those of all configurations that are honoured, also of
    /// those that are being deleted. `None`, and nothing written, until all nodes have been seen.
    pub async fn pass(&self, claims: &[Claim]) -> Result<Option<Pass>, CountError> {
        let _turn = self.turn.lock().await;
        let resources: BTreeSet<_> = claims.iter().map(|claim| claim.resource.as_str()).collect();
        let mut in_use = InUse::default();
        let mut rounds = 0;
        let planned = loop {
            let Some(nodes) = self.nodes.snapshot() else { return Ok(None) };
            let planned = plan(claims, &nodes, &in_use);
            if planned.uncounted.is_empty() {
                break planned;
            }
            count::count(&self.client, &planned.uncounted, rounds >= ROUNDS, &resources, &mut in_use).await?;
            rounds += 1;
        };
        let mut summaries = planned.summaries;
        let mut written = Written::default();
        if !planned.writes.is_empty() {
            written = self.writer.write(&self.nodes, planned.writes).await;
            if let Some(nodes) = self.nodes.snapshot() {
                summaries = plan(claims, &nodes, &in_use).summaries;
            }
        }
        let uneven = summaries.iter().any(|summary| summary.uneven).then_some(UNEVEN);
        let again = [written.again, uneven].into_iter().flatten().min();
        Ok(Some(Pass { summaries, written, again }))
    }
}
