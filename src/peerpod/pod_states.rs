//! Since when this process has seen Pods in their present states, by its own monotonic clock *(no client)*.
//!
//! The API server's clock sets a Pod's deletionTimestamp. It may differ from every clock here by any time. So the operator keeps
//! a VM for the Pod's whole grace period from when this process first saw the Pod terminating. A restart of the operator starts
//! that time again: the end may be late, and is never early.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;

use crate::api::v1alpha1::PeerPod;

/// The states of Pods, by their PeerPods.
///
/// One state is the grace period of a Pod that terminates: a second deletion may shorten the period, and the kubelet then gives the
/// containers all of the new period. Nothing makes it longer. Another is whether the Pod may run.
pub(super) struct PodStates<S>(Mutex<HashMap<ObjectRef<PeerPod>, Seen<S>>>);

struct Seen<S> {
    /// The Pod's uid.
    pod: String,
    state: S,
    since: Instant,
}

impl<S> Default for PodStates<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: PartialEq> PodStates<S> {
    /// For how long this process has seen the Pod in this state.
    pub(super) fn known_for(&self, key: &ObjectRef<PeerPod>, pod: &str, state: S, now: Instant) -> Duration {
        let mut table = self.0.lock();
        match table.get(key) {
            Some(known) if known.pod == pod && known.state == state => {
                now.saturating_duration_since(known.since)
            }
            _ => {
                table.insert(key.clone(), Seen { pod: pod.to_owned(), state, since: now });
                Duration::ZERO
            }
        }
    }

    /// Forgets the Pod of a PeerPod that was removed, or whose Pod is in no such state.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        let mut table = self.0.lock();
        // An empty map gives back the memory that thousands of entries took.
        if table.remove(key).is_some() && table.is_empty() {
            *table = HashMap::new();
        }
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.0.lock().retain(|key, _| exists(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_grace_period_counts_from_when_it_was_first_seen() {
        let (grace_periods, start) = (PodStates::default(), Instant::now());
        let known_for = |peerpod: &str, pod, grace: u32, after: u32| {
            grace_periods.known_for(&ObjectRef::new(peerpod), pod, grace * SECOND, start + after * SECOND)
        };
        assert_eq!(known_for("a", "pod", 30, 0), Duration::ZERO);
        assert_eq!(known_for("a", "pod", 30, 20), 20 * SECOND);
        assert_eq!(known_for("b", "pod", 30, 25), Duration::ZERO, "each PeerPod by itself");
        assert_eq!(known_for("a", "pod", 10, 29), Duration::ZERO, "it was deleted once more");
        assert_eq!(known_for("a", "pod", 10, 35), 6 * SECOND);
        assert_eq!(known_for("a", "another", 10, 36), Duration::ZERO);
        assert_eq!(known_for("a", "another", 10, 35), Duration::ZERO, "no clock of its goes back");
    }

    #[test]
    fn removed_objects_are_forgotten() {
        let (grace_periods, start) = (PodStates::default(), Instant::now());
        let [a, b] = ["a", "b"].map(ObjectRef::new);
        for key in [&a, &b] {
            grace_periods.known_for(key, "pod", SECOND, start);
        }
        grace_periods.retain(|key| *key == a);
        assert_eq!(grace_periods.0.lock().len(), 1);
        assert_eq!(grace_periods.known_for(&a, "pod", SECOND, start + SECOND), SECOND);
        grace_periods.forget(&b);
        grace_periods.forget(&a);
        assert_eq!(grace_periods.0.lock().capacity(), 0);
    }
}
