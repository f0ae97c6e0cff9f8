//! Removes everything that was created for a configuration that is being deleted *(client required)*.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;

use super::{
    conditions::Reason,
    findings::{Findings, RoomError, UNWATCHED_RESYNC},
    rooms::Rooms,
};
use crate::api::v1alpha1::PeerPodConfig;

/// When to reconcile again while not all nodes and DaemonSets have been listed.
pub(super) const NOT_YET_SEEN: Duration = Duration::from_secs(1);

/// How often the operator checks what is left.
const AGAIN: Duration = Duration::from_secs(1);

/// What is left, and when to check again; `None` if nothing is left. `configs`: all, this one among them.
pub(super) async fn clean_up(
    rooms: &Rooms,
    config: &PeerPodConfig,
    configs: &[Arc<PeerPodConfig>],
) -> Result<Option<Findings>, RoomError> {
    let has_admission = rooms.admission.remove(config, configs).await?;
    let left = clean_up_nodes(rooms, config, configs, has_admission).await?;
    Ok(left
        .map(|(message, again)| Findings { again: Some(again), ..Findings::of(Reason::Deleting, message) }))
}

/// What is left on nodes, or that the admission is left, and when to check again; `None` if nothing is left.
async fn clean_up_nodes(
    rooms: &Rooms,
    config: &PeerPodConfig,
    configs: &[Arc<PeerPodConfig>],
    has_admission: bool,
) -> Result<Option<(String, Duration)>, RoomError> {
    let unseen = || Some(("the operator is still reading nodes".to_owned(), NOT_YET_SEEN));
    let Some(requests) = rooms.adaptor.node_requests(configs).await else { return Ok(unseen()) };
    let Some(pass) = rooms.capacity.pass(&requests).await? else { return Ok(unseen()) };
    let name = config.name_any();
    let summary = pass.summaries.iter().find(|summary| summary.name == name);
    let pending = summary.map_or(0, |it| it.pending.len());
    let again = pass.again.unwrap_or(AGAIN);
    if has_admission {
        let message = format!("{pending} nodes still advertise VMs; the operator is deleting objects");
        return Ok(Some((message, again.min(AGAIN))));
    }
    if pending > 0 {
        let why = summary.map(|it| it.hindrance().1).unwrap_or_default();
        // Failed writes to nodes back off.
        return Ok(Some((format!("{pending} nodes still advertise VMs{why}"), again)));
    }
    if let Some((nodes, other)) = summary.and_then(|it| it.retained.as_ref()) {
        let message = format!(
            "{nodes} nodes still advertise VMs: the selector of PeerPodConfig {other} is invalid, so they may be \
             its nodes; correct that selector"
        );
        // The correction is watched.
        return Ok(Some((message, pass.again.unwrap_or(UNWATCHED_RESYNC))));
    }
    // Two cloud-api-adaptors on one node would share its socket and port: no other configuration may get these nodes while Pods
    // of this one run there.
    if rooms.adaptor.remove(config).await? {
        let message = "the Pods of cloud-api-adaptor have not ended yet; if a node does not answer, delete its Pod with \
             --force, or delete the node";
        // The end of the DaemonSet is watched.
        return Ok(Some((message.to_owned(), UNWATCHED_RESYNC)));
    }
    rooms.adaptor.annotate_service_account(configs).await?;
    Ok(None)
}
