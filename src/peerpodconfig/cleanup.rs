//! Removes everything that was created for a configuration that is being deleted *(client required)*.

use std::{sync::Arc, time::Duration};

use kube::ResourceExt;

use super::{
    apply::Left,
    conditions::Reason,
    findings::{Findings, ReconcileError, UNWATCHED_RESYNC},
    rooms::Rooms,
};
use crate::api::v1alpha1::PeerPodConfig;

/// When to reconcile again while not all nodes and DaemonSets have been listed.
pub(super) const NOT_YET_SEEN: Duration = Duration::from_secs(1);

/// How often the operator checks what is left.
const AGAIN: Duration = Duration::from_secs(1);

const PODS_LEFT: &str = "the Pods of cloud-api-adaptor have not ended yet (`kubectl get pods -o wide -l \
                         app.kubernetes.io/name=cloud-api-adaptor`); if a node does not answer, delete its Pod with --force, or delete the \
                         node";

/// What is left, and when to check again; `None` if nothing is left. `configs`: all, this one among them.
pub(super) async fn clean_up(
    rooms: &Rooms,
    config: &PeerPodConfig,
    configs: &[Arc<PeerPodConfig>],
) -> Result<Option<Findings>, ReconcileError> {
    let left = |message: &str, again| {
        Ok(Some(Findings { again: Some(again), ..Findings::of(Reason::Deleting, message) }))
    };
    let unseen = || left("the operator is still reading nodes", NOT_YET_SEEN);
    let admission = rooms.admission.remove(config, configs).await?;
    let Some(requests) = rooms.adaptor.node_requests(configs).await else { return unseen() };
    let Some(pass) = rooms.capacity.pass(&requests).await? else { return unseen() };
    let name = config.name_any();
    let summary = pass.summaries.iter().find(|summary| summary.name == name);
    let pending = summary.map_or(0, |it| it.pending.len());
    let again = pass.again.unwrap_or(AGAIN);
    if let Some(Left { kept }) = admission {
        let kept = kept.map_or_else(String::new, |kept| format!(": {kept}"));
        let message = format!("{pending} nodes still advertise VMs; the operator is deleting objects{kept}");
        return left(&message, again.min(AGAIN));
    }
    if pending > 0 {
        let why = summary.map(|it| it.hindrance().1).unwrap_or_default();
        // Failed writes to nodes back off.
        return left(&format!("{pending} nodes still advertise VMs{why}"), again);
    }
    if let Some((nodes, other)) = summary.and_then(|it| it.retained.as_ref()) {
        let message = format!(
            "{nodes} nodes still advertise VMs: the selector of PeerPodConfig {other} is invalid, so they may be \
             its nodes; correct that selector"
        );
        // The correction is watched.
        return left(&message, pass.again.unwrap_or(UNWATCHED_RESYNC));
    }
    // Two cloud-api-adaptors on one node would share its socket and port: no younger configuration that is not yet deployed gets these
    // nodes while Pods of this one run there.
    if let Some(Left { kept }) = rooms.adaptor.remove(config).await? {
        let message = kept.unwrap_or_else(|| PODS_LEFT.to_owned());
        // The end of the DaemonSet is watched.
        return left(&message, UNWATCHED_RESYNC);
    }
    rooms.adaptor.annotate_service_account(configs).await?;
    Ok(None)
}
