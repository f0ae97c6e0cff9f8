//! When a PeerPod is reconciled again without an event *(no client)*.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use operator_kit::Backoff;

use super::decide::{Blocked, Decision, Wait};
use crate::{api::v1alpha1::PeerPod, provider::ErrorClass};

/// How often a PeerPod that needs a person's help is reconciled without an event.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// How often refused credentials are tried again: a key or a right may be added at the cloud, or a file replaced, and no event
/// shows it.
const REFUSED_RESYNC: Duration = Duration::from_secs(30);

/// While many wait, the delay is this much for each of them, up to [`SLOW_RESYNC`]. So the total cost is small.
const SHARE: Duration = Duration::from_millis(100);

/// The least delay after a cloud asked for fewer calls, or when the calls to it queue.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// How often a PeerPod that waits for its Pod is reconciled without an event.
const POD_RESYNC: Duration = Duration::from_secs(60);

/// The delays between reconciles of each PeerPod.
#[derive(Default)]
pub(super) struct RequeuePolicy {
    failures: Backoff<ObjectRef<PeerPod>>,
    /// Reconciles of PeerPods whose VM the cloud is deleting. They count apart: earlier failures do not delay a deletion that
    /// makes progress.
    going: Backoff<ObjectRef<PeerPod>>,
}

impl RequeuePolicy {
    /// The delay after this decision, while this many PeerPods wait; `None` if a watch delivers whatever comes next.
    pub(super) fn after(
        &self,
        key: &ObjectRef<PeerPod>,
        decision: &Decision,
        waiting: usize,
    ) -> Option<Duration> {
        Some(match decision {
            Decision::Nothing | Decision::Supersede | Decision::Tidy | Decision::Release(_) => {
                self.settled(key);
                return None;
            }
            Decision::Wait(wait) => {
                self.failures.succeeded(key);
                match wait {
                    Wait::PodRuns => self.spread(shared(POD_RESYNC, waiting)),
                    Wait::PodEnds(left) => (*left).min(POD_RESYNC),
                    Wait::VmDeletion(least) => self.going.failed(key).max(*least),
                }
            }
            // The claimant may be the Pod of another deleted PeerPod, and only its kubelet shows where a Pod runs: both change
            // without an event here.
            Decision::Refuse(Blocked::Claimed(_)) | Decision::Keep(_) => {
                self.spread(shared(POD_RESYNC, waiting))
            }
            // Delete does not occur: its result is an error or a new decision.
            Decision::Refuse(_) | Decision::Delete(_) => self.spread(SLOW_RESYNC),
            Decision::Retry(error) => match error.class {
                ErrorClass::Throttled { retry_after } | ErrorClass::Queued { retry_after } => {
                    let pause = retry_after.max(LEAST_PAUSE);
                    pause + self.failures.jitter(pause)
                }
                ErrorClass::Unsettled { look_after } => look_after.max(LEAST_PAUSE),
                ErrorClass::Unauthorized => self.spread(shared(REFUSED_RESYNC, waiting)),
                ErrorClass::Invalid | ErrorClass::NotSupported => self.spread(SLOW_RESYNC),
                ErrorClass::Transient | ErrorClass::NotFound | ErrorClass::Refused => {
                    self.failures.failed(key)
                }
            },
        })
    }

    /// The delay for a parked PeerPod. It is called earlier if a slot is free.
    pub(super) fn parked(&self, waiting: usize) -> Duration {
        self.spread(shared(POD_RESYNC, waiting))
    }

    /// The delay after a call to the API server that failed, or that found the object changed.
    pub(super) fn failed(&self, key: &ObjectRef<PeerPod>) -> Duration {
        self.failures.failed(key)
    }

    /// Forgets its failures: it is done or removed.
    pub(super) fn settled(&self, key: &ObjectRef<PeerPod>) {
        self.failures.succeeded(key);
        self.going.succeeded(key);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.failures.retain(&exists);
        self.going.retain(exists);
    }

    /// A little longer than `pause`, so that thousands that wait for the same thing do not return at the same time.
    fn spread(&self, pause: Duration) -> Duration {
        pause + self.failures.jitter(pause / 4)
    }
}

/// This delay, or a longer one while many PeerPods wait.
fn shared(pause: Duration, waiting: usize) -> Duration {
    SHARE.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX)).clamp(pause, SLOW_RESYNC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Error;

    fn key() -> ObjectRef<PeerPod> {
        ObjectRef::new("web").within("shop")
    }

    fn seconds(policy: &RequeuePolicy, decision: &Decision) -> f64 {
        policy.after(&key(), decision, 1).unwrap().as_secs_f64()
    }

    fn retry(class: ErrorClass) -> Decision {
        Decision::Retry(Error::new(class, "busy"))
    }

    #[test]
    fn waiting_peerpods_are_reconciled_soon_but_not_thousands_at_once() {
        for (waiting, seconds) in [(0, 30), (1, 30), (300, 30), (1000, 100), (3000, 300), (usize::MAX, 300)] {
            assert_eq!(shared(REFUSED_RESYNC, waiting).as_secs(), seconds, "{waiting}");
        }
        let claimed = Decision::Refuse(Blocked::Claimed("shop/other".into()));
        let all = [
            claimed,
            Decision::Keep(Blocked::Ambiguous),
            Decision::Wait(Wait::PodRuns),
            retry(ErrorClass::Unauthorized),
        ];
        for decision in all {
            let pause = RequeuePolicy::default().after(&key(), &decision, 5000).unwrap().as_secs_f64();
            assert!((300.0..=375.0).contains(&pause), "{pause} s after {decision:?}");
        }
    }

    #[test]
    fn earlier_failures_do_not_delay_a_deletion_that_makes_progress() {
        let waits = [Wait::VmDeletion(Duration::ZERO), Wait::PodRuns, Wait::PodEnds(Duration::from_secs(10))]
            .map(Decision::Wait);
        for wait in waits {
            let policy = RequeuePolicy::default();
            for _ in 0..10 {
                policy.failed(&key());
            }
            assert!(seconds(&policy, &retry(ErrorClass::Transient)) > 1.0);
            policy.after(&key(), &wait, 1);
            assert!(seconds(&policy, &retry(ErrorClass::Transient)) <= 1.0, "after {wait:?}");
            assert!(
                seconds(&policy, &Decision::Wait(Wait::VmDeletion(Duration::ZERO))) <= 2.0,
                "after {wait:?}"
            );
        }
    }

    #[test]
    fn a_slow_deletion_is_checked_with_growing_delays() {
        let policy = RequeuePolicy::default();
        let goes = || seconds(&policy, &Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
        let all: f64 = (0..40).map(|_| goes()).sum();
        assert!(all > 1000.0, "{all}");
        assert!(goes() <= 300.0);
        assert_eq!(policy.after(&key(), &Decision::Nothing, 1), None);
        assert!(goes() <= 1.0);
    }

    #[test]
    fn what_waits_for_a_pod_is_reconciled_each_minute_and_what_needs_help_each_five() {
        let policy = RequeuePolicy::default();
        let ends = |left| Decision::Wait(Wait::PodEnds(Duration::from_secs(left)));
        let claimed = Decision::Refuse(Blocked::Claimed("shop/other".into()));
        let throttled = |seconds| retry(ErrorClass::Throttled { retry_after: Duration::from_secs(seconds) });
        for (decision, least, most) in [
            (Decision::Wait(Wait::PodRuns), 60.0, 75.0),
            (ends(5), 5.0, 5.0),
            (ends(500), 60.0, 60.0),
            (claimed, 60.0, 75.0),
            (Decision::Refuse(Blocked::NoOwner), 300.0, 375.0),
            (retry(ErrorClass::Invalid), 300.0, 375.0),
            (retry(ErrorClass::Unauthorized), 30.0, 37.5),
            (retry(ErrorClass::Unsettled { look_after: Duration::from_secs(7) }), 7.0, 7.0),
            (Decision::Wait(Wait::VmDeletion(Duration::from_secs(40))), 40.0, 40.0),
            (throttled(0), 1.0, 2.0),
            (throttled(20), 20.0, 40.0),
        ] {
            let pause = seconds(&policy, &decision);
            assert!((least..=most).contains(&pause), "{pause} s after {decision:?}");
        }
    }
}
