//! What the controller remembers of PeerPods between reconciles, and when it forgets which part *(no client)*.

use std::{sync::Arc, time::Duration};

use kube::runtime::reflector::ObjectRef;

use super::{
    index::Index, parking::Parking, pod_states::PodStates, pod_watch::PodWatch,
    report_tracker::ReportTracker, requeue_policy::RequeuePolicy,
};
use crate::api::v1alpha1::PeerPod;

/// All that is remembered of PeerPods, beside the index.
pub(super) struct Trackers {
    pub(super) requeue_policy: RequeuePolicy,
    pub(super) pod_watch: PodWatch,
    pub(super) report_tracker: ReportTracker,
    /// The observer notes these two.
    pub(super) grace_periods: Arc<PodStates<Duration>>,
    /// Whether the Pods may run whose VMs cloud-api-adaptor may clean up itself, at clouds that reuse identifiers.
    pub(super) clean_ups: Arc<PodStates<bool>>,
    pub(super) parking: Parking,
}

impl Trackers {
    /// Forgets a PeerPod that was removed.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        let Self { requeue_policy, pod_watch, report_tracker, grace_periods, clean_ups, parking } = self;
        requeue_policy.forget(key);
        pod_watch.stop_waiting(key);
        report_tracker.forget(key);
        grace_periods.forget(key);
        clean_ups.forget(key);
        parking.forget(key);
    }

    /// Forgets all PeerPods but those of the index.
    pub(super) fn retain(&self, index: &Index) {
        let Self { requeue_policy, pod_watch, report_tracker, grace_periods, clean_ups, parking } = self;
        let exists = |key: &ObjectRef<PeerPod>| index.contains(key);
        requeue_policy.retain(exists);
        pod_watch.retain(exists);
        report_tracker.retain(exists);
        grace_periods.retain(exists);
        clean_ups.retain(exists);
        parking.retain(exists);
    }

    /// Forgets what a PeerPod waits for, and what was reported about it, because this process does not lead. Delays after failures,
    /// and since when its Pod is known to terminate, hold in the next term, too.
    pub(super) fn stop(&self, key: &ObjectRef<PeerPod>) {
        self.pod_watch.stop_waiting(key);
        self.report_tracker.forget(key);
        self.parking.forget(key);
    }

    /// Forgets the failures of a PeerPod that was written, and what was reported about it. Its Pod may still terminate, so that stays
    /// known.
    pub(super) fn written(&self, key: &ObjectRef<PeerPod>) {
        self.requeue_policy.forget(key);
        self.report_tracker.forget(key);
    }
}
