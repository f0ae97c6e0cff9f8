//! When a PeerPod is reconciled again without an event *(no client)*.

mod stuck;

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use operator_kit::{Backoff, backoff};
use parking_lot::Mutex;

use self::stuck::{Stuck, VMS_A_SECOND};
use super::decide::{Decision, Wait};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{Error, ErrorClass},
};

/// How often a PeerPod that needs a person's help is reconciled without an event, unless many are stuck.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// How often refused credentials are tried again: a key or a right may be added at the cloud, or a file replaced, and no event
/// shows it. Unless many are stuck.
const REFUSED_RESYNC: Duration = Duration::from_secs(30);

/// The delay of a parked PeerPod is this much for each unfinished one, up to [`SLOW_RESYNC`]: each of these reconciles costs a request
/// to the API server and none to the cloud. With up to 3,000 unfinished PeerPods there are at most 10 of them a second.
const PARKED_SHARE: Duration = Duration::from_millis(100);

/// PeerPods that were parked while a cloud wanted no calls return within this much for each unfinished one: at most 100 a second.
const RETURN_SHARE: Duration = Duration::from_millis(10);

/// The least delay after a cloud asked for fewer calls.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// How often a PeerPod that waits for its Pod, or of which the sweep found out something, is reconciled without an event, unless
/// many are stuck.
pub(super) const POD_RESYNC: Duration = Duration::from_secs(60);

/// What an error of this class means and what follows, for documentation.
pub fn doc(class: ErrorClass) -> String {
    match class {
        ErrorClass::NotFound => {
            "it does not exist: the deletion of a VM is done; any other call is tried again".to_owned()
        }
        ErrorClass::Unsettled { .. } => {
            "the absence may not last: the cloud may not show yet a VM that was recorded less than 2 min before its deletion, so \
             the operator asks a second time, 10 s later; or the pool of byom may give the Pod a machine again that it has lost \
             for less than 30 s, so the operator asks again after that time"
                .to_owned()
        }
        ErrorClass::Transient => {
            format!("the call may work later: the operator tries again {}", growing_pauses())
        }
        ErrorClass::Throttled { .. } => {
            "the cloud asked for fewer calls: the operator makes none to this cloud for the time that it asked for, or fewer a second if \
             it named none"
                .to_owned()
        }
        ErrorClass::Unauthorized => format!(
            "the cloud refuses the credentials, they lack a right, or the operator cannot use the file that has them: the operator \
             tries again every {}, {}, and at once when the settings change",
            in_words(REFUSED_RESYNC),
            less_often(REFUSED_RESYNC)
        ),
        ErrorClass::Invalid => format!(
            "the settings cannot work: the operator tries again every {}, {}, and at once when the settings change",
            in_words(SLOW_RESYNC),
            less_often(SLOW_RESYNC)
        ),
        ErrorClass::Refused => format!(
            "the cloud refuses the call in the present state of the VM, or of what belongs to it, or takes no more calls for that \
             VM, or in its project, for now: the operator tries again {}, {}",
            growing_pauses(),
            less_often(backoff::CAP)
        ),
        ErrorClass::NotSupported => {
            "this operator does not support it: the operator does nothing until the PeerPod or the settings change".to_owned()
        }
    }
}

/// How often a PeerPod that needs a person's help is reconciled.
const fn resync(may_end_with_pod: bool) -> Duration {
    if may_end_with_pod { POD_RESYNC } else { SLOW_RESYNC }
}

fn growing_pauses() -> String {
    format!("with pauses from {} to {}", in_words(backoff::BASE), in_words(backoff::CAP))
}

/// From how many stuck PeerPods on each of them waits for longer than this, as [`Stuck`] has it.
fn less_often(pause: Duration) -> String {
    let count = pause.as_secs() * u64::from(VMS_A_SECOND);
    let count =
        if count < 1000 { count.to_string() } else { format!("{},{:03}", count / 1000, count % 1000) };
    format!("with more than {count} such PeerPods less often")
}

/// A time in minutes, or in seconds if it is not a number of whole minutes.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds.is_multiple_of(60) { format!("{} min", seconds / 60) } else { format!("{seconds} s") }
}

/// The delays between reconciles of each PeerPod.
#[derive(Default)]
pub(super) struct RequeuePolicy {
    failures: Backoff<ObjectRef<PeerPod>>,
    /// Reconciles of PeerPods whose VM the cloud is deleting. They count apart: earlier failures do not delay a deletion that
    /// makes progress.
    deleting: Backoff<ObjectRef<PeerPod>>,
    /// PeerPods that only a change from outside brings further. The operator may not learn of that change, so it reconciles them again.
    /// These reconciles have no longest delay: with one, their number would grow with the number of stuck PeerPods, and use up the cloud's
    /// quota. A change of the PeerPod or of the settings, and the end of the Pod that it waits for, has it reconciled at once.
    stuck: Mutex<Stuck>,
}

impl RequeuePolicy {
    /// The delay after this decision on a PeerPod, for which its cloud was asked for so many VMs; `None` if a watch delivers whatever
    /// comes next.
    pub(super) fn after(
        &self,
        key: &ObjectRef<PeerPod>,
        cloud: &'static str,
        decision: &Decision,
        asked: u32,
    ) -> Option<Duration> {
        let while_stuck = |least| self.while_stuck(key, cloud, asked, least);
        Some(match decision {
            Decision::Nothing
            | Decision::Supersede
            | Decision::Retire
            | Decision::Tidy
            | Decision::Release(_) => {
                self.forget(key);
                return None;
            }
            Decision::Wait(wait) => self.while_waiting(key, wait, while_stuck),
            Decision::Keep(kept) => while_stuck(resync(kept.may_end_with_pod())),
            Decision::Refuse(blocked) => while_stuck(resync(blocked.may_end_with_pod())),
            // Does not occur: its result is an error or a new decision.
            Decision::Delete(_) => while_stuck(SLOW_RESYNC),
            Decision::Retry(error) => self.after_error(key, error, while_stuck),
        })
    }

    /// The delay while it waits. What failed before no longer counts.
    fn while_waiting(
        &self,
        key: &ObjectRef<PeerPod>,
        wait: &Wait,
        while_stuck: impl Fn(Duration) -> Duration,
    ) -> Duration {
        self.failures.succeeded(key);
        match wait {
            Wait::PodRuns | Wait::Start => while_stuck(POD_RESYNC),
            // A tenant chooses the grace period of a Pod.
            Wait::PodEnds(left) | Wait::CleanUp(left) if *left > POD_RESYNC => {
                while_stuck(POD_RESYNC).min(*left)
            }
            Wait::PodEnds(left) | Wait::CleanUp(left) => {
                self.stuck.lock().remove(key);
                *left
            }
            Wait::VmDeletion(least) => {
                self.stuck.lock().remove(key);
                self.deleting.failed(key).max(*least)
            }
        }
    }

    /// The delay after a call to the cloud that failed.
    fn after_error(
        &self,
        key: &ObjectRef<PeerPod>,
        error: &Error,
        while_stuck: impl Fn(Duration) -> Duration,
    ) -> Duration {
        match error.class {
            // What was stuck before may still be, so it stays counted.
            ErrorClass::Throttled { retry_after } => {
                let pause = retry_after.unwrap_or_default().max(LEAST_PAUSE);
                pause + self.failures.jitter(pause)
            }
            ErrorClass::Unsettled { check_again_after } => check_again_after.max(LEAST_PAUSE),
            ErrorClass::Unauthorized => while_stuck(REFUSED_RESYNC),
            ErrorClass::Invalid | ErrorClass::NotSupported => while_stuck(SLOW_RESYNC),
            // A tenant can write thousands that a cloud refuses. An outage ends for all, so their delays stay short.
            ErrorClass::Refused => {
                let least = self.failures.failed(key);
                while_stuck(least)
            }
            ErrorClass::Transient | ErrorClass::NotFound => self.failures.failed(key),
        }
    }

    /// The delay for a parked PeerPod, while this many PeerPods are unfinished. It is called earlier if a slot is free. While the cloud
    /// wants no calls, none is called, so the delay ends soon after that time: of the PeerPods that are parked meanwhile, the first one that
    /// returns has the others called.
    pub(super) fn parked(&self, unfinished: usize, paused_for: Option<Duration>) -> Duration {
        let unfinished = u32::try_from(unfinished).unwrap_or(u32::MAX);
        let delay = self.spread(PARKED_SHARE.saturating_mul(unfinished).clamp(POD_RESYNC, SLOW_RESYNC));
        let Some(pause) = paused_for.map(|pause| pause.max(LEAST_PAUSE)) else { return delay };
        let period = pause.max(RETURN_SHARE.saturating_mul(unfinished));
        delay.min(pause + self.failures.jitter(period))
    }

    /// The delay after a call to the API server that failed, or that found the object changed.
    pub(super) fn failed(&self, key: &ObjectRef<PeerPod>) -> Duration {
        self.failures.failed(key)
    }

    /// Forgets its failures: it is done or removed.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        self.failures.succeeded(key);
        self.deleting.succeeded(key);
        self.stuck.lock().remove(key);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.failures.retain(&exists);
        self.deleting.retain(&exists);
        self.stuck.lock().retain(exists);
    }

    /// The delay for a stuck PeerPod: at least this, and longer while many are, for each VM that the cloud was asked for.
    fn while_stuck(
        &self,
        key: &ObjectRef<PeerPod>,
        cloud: &'static str,
        asked: u32,
        least: Duration,
    ) -> Duration {
        let pause = self.stuck.lock().add(key, cloud).saturating_mul(asked.max(1));
        self.spread(pause.max(least))
    }

    /// A little longer than `pause`, so that thousands that wait for the same thing do not return at the same time.
    fn spread(&self, pause: Duration) -> Duration {
        pause + self.failures.jitter(pause / 4)
    }
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::{
        super::reasons::{Blocked, Kept},
        *,
    };

    fn key() -> ObjectRef<PeerPod> {
        ObjectRef::new("web").within("shop")
    }

    fn seconds(policy: &RequeuePolicy, decision: &Decision) -> f64 {
        policy.after(&key(), "gcp", decision, 1).unwrap().as_secs_f64()
    }

    fn retry(class: ErrorClass) -> Decision {
        Decision::Retry(Error::new(class, "busy"))
    }

    /// This many of one namespace, as keys.
    fn crowd(count: usize) -> Vec<ObjectRef<PeerPod>> {
        (0..count).map(|number| ObjectRef::new(&number.to_string()).within("crowd")).collect()
    }

    /// Decisions on PeerPods that are stuck.
    fn stuck() -> [Decision; 8] {
        [
            Decision::Refuse(Blocked::Claimed("shop/other".into())),
            Decision::Refuse(Blocked::NoOwner),
            Decision::Keep(Kept::Ambiguous),
            Decision::Wait(Wait::PodRuns),
            Decision::Wait(Wait::PodEnds(Duration::from_secs(31_536_000))),
            retry(ErrorClass::Unauthorized),
            retry(ErrorClass::Invalid),
            retry(ErrorClass::NotSupported),
        ]
    }

    #[test]
    fn for_any_number_of_stuck_peerpods_a_cloud_is_asked_for_at_most_ten_vms_a_second() {
        const COUNT: usize = 20_000;
        for (decision, asked) in [
            (retry(ErrorClass::Unauthorized), 1),
            (retry(ErrorClass::Refused), 1),
            (Decision::Keep(Kept::Ambiguous), 5),
            (Decision::Wait(Wait::PodRuns), 0),
        ] {
            let (policy, crowd) = (RequeuePolicy::default(), crowd(COUNT));
            // At start all come at once. Each comes again after its delay.
            let mut times =
                (0..COUNT).map(|which| Reverse((Duration::ZERO, which))).collect::<BinaryHeap<_>>();
            let (from, period) = (Duration::from_secs(3000), Duration::from_secs(10_000));
            let until = from + period;
            let mut looks = 0;
            while let Some(Reverse((now, which))) = times.pop().filter(|Reverse((now, _))| *now < until) {
                looks += u32::from(now >= from);
                let pause = policy.after(&crowd[which], "gcp", &decision, asked).unwrap();
                times.push(Reverse((now + pause, which)));
            }
            let rate = f64::from(looks * asked.max(1)) / period.as_secs_f64();
            assert!((8.0..=10.0).contains(&rate), "{rate} VMs a second: {decision:?}");
        }
    }

    #[test]
    fn a_crowd_that_is_stuck_delays_neither_other_namespaces_nor_other_clouds() {
        for decision in stuck() {
            let policy = RequeuePolicy::default();
            let alone = seconds(&policy, &decision);
            for key in crowd(5000) {
                policy.after(&key, "gcp", &decision, 1);
            }
            let beside = seconds(&policy, &decision);
            assert!(
                (alone / 1.25..=alone * 1.25).contains(&beside),
                "{alone} s, then {beside} s: {decision:?}"
            );
            let own = policy.after(&crowd(1)[0], "gcp", &decision, 1).unwrap();
            assert!(own > Duration::from_secs(500), "{own:?} after {decision:?}");
            let elsewhere = policy.after(&crowd(1)[0], "azure", &decision, 1).unwrap();
            assert!(elsewhere <= SLOW_RESYNC * 5 / 4, "{elsewhere:?} after {decision:?}");
        }
    }

    #[test]
    fn finished_removed_and_deleting_peerpods_do_not_count_as_stuck() {
        type Ends = fn(&RequeuePolicy, &ObjectRef<PeerPod>);
        let unauthorized = retry(ErrorClass::Unauthorized);
        let ends: [Ends; 4] = [
            |policy, key| assert_eq!(policy.after(key, "gcp", &Decision::Nothing, 1), None),
            |policy, key| {
                let leaves = Decision::Wait(Wait::VmDeletion(Duration::ZERO));
                assert!(policy.after(key, "gcp", &leaves, 1).is_some());
            },
            |policy, key| policy.forget(key),
            |policy, gone| policy.retain(|key| key != gone),
        ];
        for end in ends {
            let (policy, crowd) = (RequeuePolicy::default(), crowd(2000));
            let pause = || policy.after(&crowd[0], "gcp", &unauthorized, 1).unwrap().as_secs();
            for key in &crowd {
                policy.after(key, "gcp", &unauthorized, 1);
            }
            assert!(pause() >= 200);
            for key in &crowd[1..] {
                end(&policy, key);
            }
            assert!((30..=37).contains(&pause()));
        }
    }

    #[test]
    fn parked_peerpods_are_reconciled_soon_but_not_thousands_at_once() {
        for (unfinished, least) in [(0, 60), (600, 60), (1000, 100), (3000, 300), (usize::MAX, 300)] {
            let pause = RequeuePolicy::default().parked(unfinished, None).as_secs();
            assert!((least..=least * 5 / 4).contains(&pause), "{pause} s with {unfinished}");
        }
    }

    #[test]
    fn peerpods_that_are_parked_in_a_pause_return_after_it_but_not_thousands_at_once() {
        for (unfinished, pause, least, most) in
            [(0, 5, 5, 10), (0, 0, 1, 2), (20_000, 5, 5, 205), (20_000, 60, 60, 260), (0, 600, 60, 75)]
        {
            let policy = RequeuePolicy::default();
            let paused_for = Some(Duration::from_secs(pause));
            let delays: Vec<_> = (0..1000).map(|_| policy.parked(unfinished, paused_for)).collect();
            let all = Duration::from_secs(least)..=Duration::from_secs(most);
            assert!(delays.iter().all(|delay| all.contains(delay)), "{delays:?}");
            assert!(delays.iter().max() > Some(&all.end().mul_f64(0.9)), "they return together");
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
            policy.after(&key(), "gcp", &wait, 1);
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
        assert_eq!(policy.after(&key(), "gcp", &Decision::Nothing, 1), None);
        assert!(goes() <= 1.0);
    }

    #[test]
    fn each_decision_has_its_requeue_delay() {
        let policy = RequeuePolicy::default();
        let ends = |left| Decision::Wait(Wait::PodEnds(Duration::from_secs(left)));
        let claimed = Decision::Refuse(Blocked::Claimed("shop/other".into()));
        let throttled =
            |seconds| retry(ErrorClass::Throttled { retry_after: Some(Duration::from_secs(seconds)) });
        for (decision, least, most) in [
            (Decision::Wait(Wait::PodRuns), 60.0, 75.0),
            (ends(5), 5.0, 5.0),
            (ends(500), 60.0, 75.0),
            (Decision::Wait(Wait::CleanUp(Duration::from_secs(5))), 5.0, 5.0),
            (Decision::Wait(Wait::CleanUp(Duration::from_secs(330))), 60.0, 75.0),
            (claimed, 60.0, 75.0),
            (Decision::Refuse(Blocked::NoOwner), 300.0, 375.0),
            (Decision::Keep(Kept::NoOwner), 300.0, 375.0),
            (retry(ErrorClass::Invalid), 300.0, 375.0),
            (retry(ErrorClass::Unauthorized), 30.0, 37.5),
            (retry(ErrorClass::Unsettled { check_again_after: Duration::from_secs(7) }), 7.0, 7.0),
            (Decision::Wait(Wait::VmDeletion(Duration::from_secs(40))), 40.0, 40.0),
            (throttled(0), 1.0, 2.0),
            (throttled(20), 20.0, 40.0),
        ] {
            let pause = seconds(&policy, &decision);
            assert!((least..=most).contains(&pause), "{pause} s after {decision:?}");
        }
        let one = RequeuePolicy::default().after(&key(), "gcp", &Decision::Keep(Kept::Ambiguous), 5);
        assert!((60..=75).contains(&one.unwrap().as_secs()), "{one:?}");
    }
}
