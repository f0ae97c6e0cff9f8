//! Writes to nodes *(client required)*.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use operator_kit::api_call::{self, ApiError};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    conflict_backoff::ConflictBackoff,
    failures::{self, Failures},
    node::{MARK, NodeView},
    nodes::Nodes,
    plan::NodeWrite,
};
use crate::api::v1alpha1::FIELD_MANAGER;

/// The most concurrent writes: enough for thousands of nodes in seconds, few enough not to load the API server.
const IN_FLIGHT: usize = 16;

/// The answer of an API server that does not know whether it wrote.
const GATEWAY_TIMEOUT: u16 = 504;

/// The results of the writes of one pass.
#[derive(Debug, Default)]
pub struct Written {
    /// How many nodes were written to.
    pub written: usize,
    /// The nodes that were written to, and those that may have been written to, as no answer came.
    pub reached: Vec<Arc<str>>,
    /// How many nodes had been removed or recreated by then. The watch delivers their new state.
    pub outdated: usize,
    /// Nodes that others reset again and again, and that wait to be corrected, by name.
    pub contested: Vec<Arc<str>>,
    /// Nodes whose writes failed, in this pass or a former one, and the errors, by name. They wait for another try.
    pub failed: Vec<(Arc<str>, String)>,
    /// How many nodes were not tried after too many failures.
    pub untried: usize,
    /// When another pass is due for all of these.
    pub again: Option<Duration>,
}

/// Writes to nodes.
#[derive(Debug)]
pub(super) struct Writer {
    nodes: Api<NodeView>,
    conflicts: ConflictBackoff,
    failures: Failures,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self { nodes: Api::all(client), conflicts: ConflictBackoff::default(), failures: Failures::default() }
    }

    /// Whether this write must wait.
    pub(super) fn refuses(&self, write: &NodeWrite, now: Instant) -> bool {
        self.failures.delays(&write.node, now) || self.conflicts.refuses(write, now)
    }

    /// Whether a write to this node waits.
    pub(super) fn delays(&self, node: &Arc<str>, now: Instant) -> bool {
        self.failures.delays(node, now) || self.conflicts.delays(node, now)
    }

    /// Does the writes that need [not wait](Self::refuses) `now`, in this order but several at once, and updates the stored nodes.
    pub(super) async fn write(&mut self, nodes: &Nodes, writes: Vec<NodeWrite>, now: Instant) -> Written {
        let mut outcome = Written::default();
        let admitted = admit(&mut self.failures, &self.conflicts, writes, now, &mut outcome);
        let mut left = admitted.into_iter();
        let mut running = stream::FuturesUnordered::new();
        let (mut failures, mut in_a_row) = (0, 0);
        let api = &self.nodes;
        loop {
            while running.len() < IN_FLIGHT && in_a_row < failures::MANY {
                let Some(write) = left.next() else { break };
                running.push(async move { (patch(api, &write).await, write) });
            }
            let Some((answer, write)) = running.next().await else { break };
            match answer {
                Ok(node) => {
                    info!(node = %write.node, resources = ?write.resources, "wrote the node's number of VMs");
                    nodes.wrote(&node);
                    self.failures.succeeded(&write.node);
                    outcome.written += 1;
                    outcome.reached.push(write.node);
                    in_a_row = 0;
                }
                Err(error) if is_outdated(&write.node, &error) => {
                    self.conflicts.not_written(&write.node);
                    self.failures.succeeded(&write.node);
                    outcome.outdated += 1;
                    in_a_row = 0;
                }
                Err(error) => {
                    warn!(node = %write.node, %error, "writing the node's number of VMs failed");
                    self.conflicts.not_written(&write.node);
                    self.failures.failed(&write.node, error.to_string(), Instant::now());
                    failures += 1;
                    in_a_row += 1;
                    if error.code().is_none_or(|code| code == GATEWAY_TIMEOUT) {
                        outcome.reached.push(write.node);
                    }
                }
            }
        }
        let untried: Vec<_> = left.map(|write| write.node).collect();
        for node in &untried {
            self.conflicts.not_written(node);
        }
        outcome.untried = untried.len();
        if failures > 0 {
            self.failures.ended(untried, Instant::now());
        }
        outcome.failed = self.failures.all();
        outcome.again = [outcome.again, self.failures.again(Instant::now())].into_iter().flatten().min();
        outcome
    }
}

/// The writes that need not wait `now`, in their order. Adds the contested nodes to the outcome.
fn admit(
    failures: &mut Failures,
    conflicts: &ConflictBackoff,
    mut writes: Vec<NodeWrite>,
    now: Instant,
    outcome: &mut Written,
) -> Vec<NodeWrite> {
    conflicts.forget_old(now);
    // Checked before any failure is forgotten, as at the count: the peer pods of a node that had to wait were not counted.
    let waiting: HashSet<_> =
        writes.iter().map(|write| write.node.clone()).filter(|node| failures.delays(node, now)).collect();
    failures.retain(&writes);
    writes.retain(|write| !waiting.contains(&write.node));
    writes.retain(|write| {
        let Err(wait) = conflicts.admit(write, now) else { return true };
        outcome.again = Some(outcome.again.map_or(wait, |first| first.min(wait)));
        outcome.contested.push(write.node.clone());
        false
    });
    outcome.contested.sort();
    // Nodes whose last write succeeded do not wait for others.
    writes.sort_by_key(|write| failures.has(&write.node));
    writes
}

async fn patch(nodes: &Api<NodeView>, write: &NodeWrite) -> Result<NodeView, ApiError> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    let patch = Patch::Merge(body(write));
    api_call::bounded(nodes.patch_status(&write.node, &params, &patch)).await
}

/// The patch of `nodes/status`, which may write annotations too: so a node and its mark always agree.
fn body(write: &NodeWrite) -> Value {
    let NodeWrite { node: _, uid, resources, mark } = write;
    let quantities: BTreeMap<_, _> =
        resources.iter().map(|(name, vms)| (name, vms.map(|vms| vms.to_string()))).collect();
    json!({
        // The uid of an object is immutable, so the API server refuses this if the node was recreated.
        "metadata": { "uid": uid, "annotations": { MARK: mark } },
        "status": { "capacity": quantities, "allocatable": quantities },
    })
}

/// Whether the node was removed or recreated.
fn is_outdated(node: &str, error: &ApiError) -> bool {
    error.is_absence_of(node) || error.is_of_field("metadata.uid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_does_so_for_the_whole_pass_though_others_are_forgotten_meanwhile() {
        let (mut failures, conflicts, now) =
            (Failures::default(), ConflictBackoff::default(), Instant::now());
        let write = |node: usize| NodeWrite {
            node: node.to_string().into(),
            uid: node.to_string().into(),
            resources: BTreeMap::new(),
            mark: None,
        };
        let all: Vec<_> = (0..failures::MANY).map(write).collect();
        failures.failed(&all[0].node, "no".into(), now);
        failures.ended(all[1..].iter().map(|write| write.node.clone()), now);
        assert!(all.iter().all(|write| failures.delays(&write.node, now)));
        let fewer = all[1..].to_vec();
        let mut outcome = Written::default();
        assert_eq!(admit(&mut failures, &conflicts, fewer.clone(), now, &mut outcome), []);
        assert_eq!(admit(&mut failures, &conflicts, fewer.clone(), now, &mut outcome), fewer);
    }

    #[test]
    fn the_patch_names_everything_absolutely() {
        let write = NodeWrite {
            node: "a".into(),
            uid: "u".into(),
            resources: [("x.y/new".into(), Some(3)), ("x.y/old".into(), None)].into(),
            mark: Some("x.y/new".into()),
        };
        let quantities = json!({ "x.y/new": "3", "x.y/old": null });
        assert_eq!(
            body(&write),
            json!({
                "metadata": { "uid": "u", "annotations": { MARK: "x.y/new" } },
                "status": { "capacity": quantities, "allocatable": quantities },
            })
        );
    }
}
