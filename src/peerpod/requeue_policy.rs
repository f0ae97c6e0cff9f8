//! When a PeerPod is looked at again without being told to *(no client)*.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use operator_kit::Backoff;

use super::decide::{Blocked, Decision, Wait};
use crate::{api::v1alpha1::PeerPod, provider::ErrorClass};

/// How often something that needs somebody's help is looked at without being told to.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// How often refused credentials are tried again: somebody may add a key or a right at the cloud, or put another file in
/// their place, and nothing here tells of it.
const REFUSED_RESYNC: Duration = Duration::from_secs(30);

/// While many wait, this much time for each of them, up to [`SLOW_RESYNC`]: all together cost little.
const SHARE: Duration = Duration::from_millis(100);

/// A cloud that asks for fewer calls and names no time gets this much.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// How often a Pod that keeps a VM is looked at without being told to.
const POD_RESYNC: Duration = Duration::from_secs(60);

/// The pauses between looks at each PeerPod.
#[derive(Default)]
pub(super) struct RequeuePolicy {
    failures: Backoff<ObjectRef<PeerPod>>,
    /// Looks at VMs that the cloud is deleting. Counted apart: one that goes at last is looked at soon, however often
    /// something failed before.
    going: Backoff<ObjectRef<PeerPod>>,
}

impl RequeuePolicy {
    /// The pause after this decision, where so many PeerPods wait; `None` where a watch tells of whatever comes next.
    pub(super) fn after(
        &self,
        key: &ObjectRef<PeerPod>,
        decision: &Decision,
        waiting: usize,
    ) -> Option<Duration> {
        Some(match decision {
            Decision::Nothing | Decision::Supersede | Decision::Release(_) => {
                self.settled(key);
                return None;
            }
            Decision::Wait(wait) => {
                self.failures.succeeded(key);
                match wait {
                    Wait::PodRuns => self.spread(shared(POD_RESYNC, waiting)),
                    Wait::PodEnds(left) => (*left).min(POD_RESYNC),
                    Wait::VmDeletion => self.going.failed(key),
                }
            }
            // What claims a VM may be the Pod of a PeerPod that goes, too, and of where a Pod runs its kubelet tells.
            Decision::Refuse(Blocked::Claimed(_)) | Decision::Keep(_) => {
                self.spread(shared(POD_RESYNC, waiting))
            }
            // Delete never comes here: it is either refused with an error or decided anew with its acceptance known.
            Decision::Refuse(_) | Decision::Delete(_) => self.spread(SLOW_RESYNC),
            Decision::Retry(error) => match error.class {
                ErrorClass::Throttled { retry_after } => {
                    let pause = retry_after.max(LEAST_PAUSE);
                    pause + self.failures.jitter(pause)
                }
                ErrorClass::Unauthorized => self.spread(shared(REFUSED_RESYNC, waiting)),
                ErrorClass::Invalid | ErrorClass::NotSupported => self.spread(SLOW_RESYNC),
                ErrorClass::Transient | ErrorClass::NotFound | ErrorClass::Refused => {
                    self.failures.failed(key)
                }
            },
        })
    }

    /// The pause after a call to the API server that failed, or that found the object changed.
    pub(super) fn failed(&self, key: &ObjectRef<PeerPod>) -> Duration {
        self.failures.failed(key)
    }

    /// Nothing is tried any more: it is done, or gone.
    pub(super) fn settled(&self, key: &ObjectRef<PeerPod>) {
        self.failures.succeeded(key);
        self.going.succeeded(key);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.failures.retain(&exists);
        self.going.retain(exists);
    }

    /// A little longer than `pause`, so that thousands that wait for the same thing do not come back at once.
    fn spread(&self, pause: Duration) -> Duration {
        pause + self.failures.jitter(pause / 4)
    }
}

/// This pause, or a longer one where so many PeerPods wait.
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
    fn what_waits_is_looked_at_soon_but_not_by_thousands_at_once() {
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
    fn what_failed_often_before_does_not_delay_a_vm_that_goes_at_last() {
        let waits =
            [Wait::VmDeletion, Wait::PodRuns, Wait::PodEnds(Duration::from_secs(10))].map(Decision::Wait);
        for wait in waits {
            let policy = RequeuePolicy::default();
            for _ in 0..10 {
                policy.failed(&key());
            }
            assert!(seconds(&policy, &retry(ErrorClass::Transient)) > 1.0);
            policy.after(&key(), &wait, 1);
            assert!(seconds(&policy, &retry(ErrorClass::Transient)) <= 1.0, "after {wait:?}");
            assert!(seconds(&policy, &Decision::Wait(Wait::VmDeletion)) <= 2.0, "after {wait:?}");
        }
    }

    #[test]
    fn a_vm_that_takes_long_to_go_is_looked_at_with_growing_pauses() {
        let policy = RequeuePolicy::default();
        let goes = || seconds(&policy, &Decision::Wait(Wait::VmDeletion));
        let all: f64 = (0..40).map(|_| goes()).sum();
        assert!(all > 1000.0, "{all}");
        assert!(goes() <= 300.0);
        assert_eq!(policy.after(&key(), &Decision::Nothing, 1), None);
        assert!(goes() <= 1.0);
    }

    #[test]
    fn what_a_pod_keeps_or_claims_is_looked_at_each_minute_and_what_needs_help_each_five() {
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
            (throttled(0), 1.0, 2.0),
            (throttled(20), 20.0, 40.0),
        ] {
            let pause = seconds(&policy, &decision);
            assert!((least..=most).contains(&pause), "{pause} s after {decision:?}");
        }
    }
}
