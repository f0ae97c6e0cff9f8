//! The table of the families.

use operator_kit::{
    families,
    metrics::{Ahead, Counter, Gauge, Histogram, Moment},
};

families! {
    /// The families by name.
    pub(super) struct Families: "peerpod_operator_";

    /// Whether this process leads: 1, or 0 while it is ready to take over.
    leader: Gauge = "leader" [],
    /// Reconciles, by their result.
    reconciles: Counter = "reconciles_total" ["controller", "result"],
    /// How long a reconcile took.
    reconcile_duration: Histogram = "reconcile_duration_seconds" ["controller"],
    /// Decisions of the reconciles of PeerPods. The table of decisions describes each.
    decisions: Counter = "decisions_total" ["decision"],
    /// PeerPods that exist.
    peerpods: Gauge = "peerpods" ["provider"],
    /// PeerPods that changed and wait for their reconcile.
    peerpods_queued: Gauge = "peerpods_queued" ["provider"],
    /// PeerPods whose condition Reconciling or Stalled is True, by its reason.
    peerpods_held: Gauge = "peerpods_held" ["reason"],
    /// PeerPods that are being deleted and still have the finalizer.
    pending_deletions: Gauge = "pending_deletions" ["provider"],
    /// Since when the oldest pending deletion is due, in seconds since 1970: its request, or the end of the wait for its Pod or of developer
    /// mode, if this process saw that. PeerPods that still wait do not count. Absent if no deletion is pending.
    oldest_pending_deletion: Moment = "oldest_pending_deletion_timestamp_seconds" ["provider"],
    /// PeerPods whose finalizer this operator removed, by outcome.
    deletions: Counter = "deletions_total" ["provider", "outcome"],
    /// Time from a PeerPod's deletionTimestamp to the removal of its finalizer, including the time that its Pod took to
    /// end. The timestamp has whole seconds, so the value is up to 1 s too high.
    deletion_latency: Histogram = "deletion_latency_seconds" ["provider"],
    /// Reconciles of PeerPods that ended with an error of the cloud, by the error's class.
    provider_errors: Counter = "provider_errors_total" ["provider", "class"],
    /// Finished calls to a cloud, by result: ok, a class of error, or abandoned.
    provider_calls: Counter = "provider_calls_total" ["provider", "call", "result"],
    /// How long a call to a cloud took.
    provider_call_duration: Histogram = "provider_call_duration_seconds" ["provider", "call"],
    /// Calls to a cloud in progress.
    provider_calls_in_flight: Gauge = "provider_calls_in_flight" ["provider"],
    /// PeerPods that wait for their turn at their cloud.
    peerpods_parked: Gauge = "provider_calls_queued" ["provider"],
    /// Reconciles that have been busy at a cloud for more than 1 s, and so may free their slot for others.
    provider_calls_stalled: Gauge = "provider_calls_stalled" ["provider"],
    /// Whether the operator makes no calls to a cloud now because the cloud asked for fewer and named a time: 1 or 0.
    provider_throttled: Ahead = "provider_throttled" ["provider"],
    /// Until when a cloud asked for no calls, in seconds since 1970. 0 if it never asked.
    provider_throttled_until: Moment = "provider_throttled_until_timestamp_seconds" ["provider"],
    /// Whether deletions use the mounted settings: 1, or 0 while deletions wait or use the last good settings. Absent without
    /// the controller peerpod, which deletes.
    settings_valid: Gauge = "settings_valid" ["settings"],
    /// Changes of the mounted settings, accepted or rejected.
    settings_reloads: Counter = "settings_reloads_total" ["settings", "result"],
    /// VMs, and what came with them, that no PeerPod tracks, by what the sweep does about them, without those that it has deleted since
    /// it listed them. `spared`: a Pod of this name may run on it.
    untracked: Gauge = "untracked_resources" ["provider", "kind", "verdict"],
    /// PeerPods of running Pods whose VM is gone or off.
    lost_vms: Gauge = "lost_vms" ["provider", "state"],
    /// The time from one listing of a cloud to the next one, as `--sweep-interval` has it. Absent where this process does not lead,
    /// and with `--sweep=off`.
    sweep_interval: Gauge = "sweep_interval_seconds" ["provider"],
    /// When the last complete listing of a cloud began, in seconds since 1970. Absent before the first one, where this process
    /// does not lead, and with `--sweep=off`.
    last_listing: Moment = "sweep_last_listing_timestamp_seconds" ["provider"],
    /// Untracked VMs, and what came with them, that the sweep deleted.
    swept: Counter = "sweep_deletions_total" ["provider", "kind"],
}
