//! Writes to nodes *(client required)*.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    holds::Holds,
    node::{MARK, NodeView},
    nodes::Nodes,
    plan::NodeWrite,
};
use crate::{
    api::v1alpha1::FIELD_MANAGER,
    runtime::api_call::{self, ApiError},
};

/// How many writes are under way at once: enough for thousands of nodes in seconds, few enough to leave an API server to
/// others.
const IN_FLIGHT: usize = 16;

/// After so many failures in one pass the rest waits for the next one: it is not the nodes that fail.
const MOST_FAILURES: usize = 16;

/// What became of the writes of one pass.
#[derive(Debug, Default)]
pub struct Written {
    /// How many nodes were written to.
    pub written: usize,
    /// How many nodes were gone, or others than meant, by then. The watch brings what comes next.
    pub outdated: usize,
    /// Nodes that others reset again and again, and that wait to be corrected.
    pub contested: Vec<Arc<str>>,
    /// When the first of these may be written to.
    pub again: Option<Duration>,
    /// What failed, and why. Nodes that were not tried after too many failures are not named.
    pub failed: Vec<(Arc<str>, String)>,
    /// How many nodes were not tried for that reason.
    pub untried: usize,
}

/// Writes to nodes.
#[derive(Debug)]
pub(super) struct Writer {
    nodes: Api<NodeView>,
    holds: Holds,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self { nodes: Api::all(client), holds: Holds::default() }
    }

    /// Writes, in this order but several at once, and tells the nodes what they are now.
    pub(super) async fn write(&self, nodes: &Nodes, writes: Vec<NodeWrite>) -> Written {
        let mut outcome = Written::default();
        let now = Instant::now();
        self.holds.sweep(now);
        let mut admitted = Vec::new();
        for write in writes {
            match self.holds.admit(&write, now) {
                Ok(()) => admitted.push(write),
                Err(hold) => {
                    outcome.again = Some(outcome.again.map_or(hold, |first| first.min(hold)));
                    outcome.contested.push(write.node);
                }
            }
        }
        let mut left = admitted.into_iter();
        let mut running = stream::FuturesUnordered::new();
        loop {
            while running.len() < IN_FLIGHT && outcome.failed.len() < MOST_FAILURES {
                let Some(write) = left.next() else { break };
                running.push(async move { (self.patch(nodes, &write).await, write) });
            }
            let Some((answer, write)) = running.next().await else { break };
            match answer {
                Ok(()) => {
                    info!(node = %write.node, resources = ?write.resources, "the node's VMs were written");
                    outcome.written += 1;
                }
                Err(error) => {
                    self.holds.not_written(&write.node);
                    if is_outdated(&error) {
                        outcome.outdated += 1;
                    } else {
                        warn!(node = %write.node, %error, "the node's VMs could not be written");
                        outcome.failed.push((write.node, error.to_string()));
                    }
                }
            }
        }
        outcome.untried = left.len();
        outcome
    }

    async fn patch(&self, nodes: &Nodes, write: &NodeWrite) -> Result<(), ApiError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        let patch = Patch::Merge(body(write));
        let answer = api_call::bounded(self.nodes.patch_status(&write.node, &params, &patch)).await?;
        nodes.wrote(&answer);
        Ok(())
    }
}

/// The patch of `nodes/status`, which may write annotations too: so a node and its mark are never at odds.
fn body(write: &NodeWrite) -> Value {
    let NodeWrite { node: _, uid, resources, mark } = write;
    let quantities: BTreeMap<_, _> =
        resources.iter().map(|(name, vms)| (name, vms.map(|vms| vms.to_string()))).collect();
    json!({
        // Nobody can change an object's uid: so this is refused where the node is another one by now.
        "metadata": { "uid": uid, "annotations": { MARK: mark } },
        "status": { "capacity": quantities, "allocatable": quantities },
    })
}

/// Whether the node is gone or another one, or somebody else wrote to it at the same time.
fn is_outdated(error: &ApiError) -> bool {
    matches!(error.code(), Some(404 | 409)) || error.is_of_field("metadata.uid")
}

#[cfg(test)]
mod tests {
    use super::*;

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
