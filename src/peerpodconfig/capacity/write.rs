//! Writes to nodes *(client required)*.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
    headroom::Headroom,
    node::{MARK, NodeView},
    node_write::{NodeWrite, Written},
    nodes::Nodes,
};
use crate::api::v1alpha1::FIELD_MANAGER;

/// The most concurrent writes: enough for thousands of nodes in seconds, few enough not to load the API server.
const IN_FLIGHT: usize = 16;

/// The answer of an API server that does not know whether it wrote.
const GATEWAY_TIMEOUT: u16 = 504;

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
        self.failures.delays(&write.node, now) || self.conflicts.wait(write, now).is_some()
    }

    /// Whether a write to this node waits.
    pub(super) fn delays(&self, node: &Arc<str>, now: Instant) -> bool {
        self.failures.delays(node, now) || self.conflicts.delays(node, now)
    }

    /// Forgets who reset what. A pass that ended with its term may not have done what it noted.
    pub(super) fn forget_conflicts(&mut self) {
        self.conflicts = ConflictBackoff::default();
    }

    /// Does the writes that need [not wait](Self::refuses) `now`, several at once, and updates the stored nodes. The writes that add
    /// VMs start after those that take some away have ended, and add no more than the headroom.
    pub(super) async fn write(
        &mut self,
        nodes: &Nodes,
        writes: Vec<NodeWrite>,
        mut headroom: Headroom,
        now: Instant,
    ) -> Written {
        let mut outcome = Written::default();
        self.conflicts.forget_old(now);
        let (mut failed, mut untried) = (0, Vec::new());
        for group in headroom.groups(due(&mut self.failures, writes, now)) {
            let admitted = self.admit(&mut headroom, group, now, &mut outcome);
            let (failures, left) = self.write_group(nodes, admitted, &mut headroom, &mut outcome).await;
            failed += failures;
            untried.extend(left);
        }
        for node in &untried {
            self.conflicts.not_written(node);
        }
        if failed > 0 {
            self.failures.ended(untried, Instant::now());
        }
        outcome.failed = self.failures.all();
        outcome.contested.sort();
        let at_once = headroom.can_give_more().then_some(Duration::ZERO);
        let again = [outcome.again, self.failures.again(Instant::now()), at_once];
        outcome.again = again.into_iter().flatten().min();
        outcome
    }

    /// The writes that start `now`, as far as the headroom allows. Adds the contested nodes to the outcome.
    fn admit(
        &mut self,
        headroom: &mut Headroom,
        writes: Vec<NodeWrite>,
        now: Instant,
        outcome: &mut Written,
    ) -> Vec<NodeWrite> {
        let mut admitted = Vec::with_capacity(writes.len());
        for write in writes {
            let node = write.node.clone();
            // The planned write decides, as at the count: the peer pods of a node that must wait were not counted.
            let admission = match self.conflicts.wait(&write, now) {
                Some(wait) => Err(wait),
                None => match headroom.fit(write) {
                    None => {
                        self.failures.forget(&node);
                        continue;
                    }
                    Some(write) => self.conflicts.admit(&write, now).map(|()| write),
                },
            };
            match admission {
                Ok(write) => admitted.push(write),
                Err(wait) => {
                    outcome.again = Some(outcome.again.map_or(wait, |first| first.min(wait)));
                    outcome.contested.push(node);
                }
            }
        }
        admitted
    }

    /// Does these writes, until too many in a row have failed: a group whose writes all fail does not keep the next one from its
    /// turn. Returns how many failed, and the nodes that were not tried.
    async fn write_group(
        &mut self,
        nodes: &Nodes,
        writes: Vec<NodeWrite>,
        headroom: &mut Headroom,
        outcome: &mut Written,
    ) -> (usize, Vec<Arc<str>>) {
        let api = &self.nodes;
        let mut left = writes.into_iter();
        let mut running = stream::FuturesUnordered::new();
        let (mut failures, mut in_a_row) = (0, 0);
        loop {
            while running.len() < IN_FLIGHT && in_a_row < failures::MANY {
                let Some(write) = left.next() else { break };
                running.push(async move { (patch(api, &write).await, write) });
            }
            let Some((answer, write)) = running.next().await else { break };
            match answer {
                Ok(node) => {
                    let NodeWrite { node: name, resources, .. } = &write;
                    info!(node = %name, ?resources, "wrote the node's number of VMs");
                    nodes.wrote(&node);
                    self.failures.succeeded(&write.node);
                    headroom.done(&write.node);
                    outcome.reached.push(write.node);
                    in_a_row = 0;
                }
                // The watch delivers the new state.
                Err(error) if is_outdated(&write.node, &error) => {
                    self.conflicts.not_written(&write.node);
                    self.failures.succeeded(&write.node);
                    in_a_row = 0;
                }
                Err(error) => {
                    warn!(node = %write.node, %error, "writing the node's number of VMs failed");
                    self.conflicts.not_written(&write.node);
                    self.failures.failed(&write.node, error.to_string());
                    failures += 1;
                    in_a_row += 1;
                    if error.code().is_none_or(|code| code == GATEWAY_TIMEOUT) {
                        outcome.reached.push(write.node);
                    }
                }
            }
        }
        (failures, left.map(|write| write.node).collect())
    }
}

/// The writes to nodes that need not wait `now` after a failure.
fn due(failures: &mut Failures, mut writes: Vec<NodeWrite>, now: Instant) -> Vec<NodeWrite> {
    failures.retain(&writes);
    // As at the count: the peer pods of a node that must wait were not counted.
    writes.retain(|write| !failures.delays(&write.node, now));
    // Nodes whose last write succeeded do not wait for others.
    writes.sort_by_key(|write| failures.has(&write.node));
    writes
}

async fn patch(nodes: &Api<NodeView>, write: &NodeWrite) -> Result<NodeView, ApiError> {
    let params = PatchParams::apply(FIELD_MANAGER);
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
mod tests;
