//! Decides what to do about one PeerPod. Pure *(no client)*: all [`Facts`] are input, one [`Decision`] is the result.
//!
//! What always holds:
//! - [`Decision::Release`] requires the VM's observed absence or an administrator's annotation.
//! - [`Decision::Delete`] requires a PeerPod that is being deleted or has lost its finalizer, a Pod that has ended (or a newer
//!   sibling that replaced this PeerPod), a VM that is proven to be that Pod's and is not much older than its record, and no other
//!   PeerPod that claims the VM.
//! - Nothing is done about a PeerPod whose finalizers are not all known.
//! - At a cloud that reuses identifiers, cloud-api-adaptor has time to clean up by itself before the operator returns a machine: a late
//!   clean-up would take it from the next Pod.
//! - The operator waits for a terminating Pod until its grace period and [`SLACK`] are over. It never waits for the Pod object
//!   to be removed: that object may itself wait for this PeerPod.

mod decision;
mod facts;

use std::{cmp::Ordering, iter, time::Duration};

use jiff::{SignedDuration, Timestamp};

pub use self::{
    decision::{Decision, Release, Wait},
    facts::{Facts, InSandbox, Owner, PeerPodFinding, SLACK, Sibling, VmState},
};
use super::reasons::{Blocked, Kept};
use crate::provider::{Error, ErrorClass, Stage, Vm, ownership};

/// The time after which the kubelet gives up the start of a sandbox: twice the default of its `runtimeRequestTimeout`. It does so
/// earlier if that is lower, or if it is started again itself.
const GIVEN_UP: SignedDuration = SignedDuration::from_mins(4);

/// The longest time from the record of a VM until the Pod is in its sandbox. cloud-api-adaptor waits 5 minutes for the VM's agent
/// (`PROXY_TIMEOUT`).
const STARTED_BY: SignedDuration = SignedDuration::from_mins(10);

/// What a PeerPod object alone says. It determines what else has to be observed, and how the decision is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The object alone determines the decision.
    Decided(Decision),
    /// It is not being deleted and does not have the finalizer.
    WithoutFinalizer,
    /// It is not being deleted and has the finalizer.
    Live,
    /// It is being deleted, and its finalizer is to stay until the VM is absent.
    Deleting,
}

impl Phase {
    /// The phase of this PeerPod.
    pub fn of(facts: &Facts) -> Self {
        match (facts.deleted, facts.finalizer) {
            _ if facts.unread_finalizers => Self::Decided(Decision::Refuse(Blocked::UnreadFinalizers)),
            (None, false) => Self::WithoutFinalizer,
            (None, true) => Self::Live,
            (Some(_), false) => Self::Decided(Decision::Nothing),
            (Some(_), true) if facts.abandoned => Self::Decided(Decision::Release(Release::Abandoned)),
            (Some(_), true) => Self::Deleting,
        }
    }
}

/// Decides. See the [module](self) for what always holds.
pub fn decide(facts: &Facts) -> Decision {
    match Phase::of(facts) {
        Phase::Decided(decision) => decision,
        Phase::WithoutFinalizer => without_finalizer(facts),
        Phase::Live => live(facts),
        Phase::Deleting => deleting(facts),
    }
}

/// Decides on a PeerPod that is being deleted.
fn deleting(facts: &Facts) -> Decision {
    match (&facts.vm, wait_for_pod(facts), &facts.instance) {
        (VmState::Absent, _, _) => Decision::Release(Release::Absent),
        (_, Some(wait), _) => Decision::Wait(wait),
        (_, None, Err(problem)) => Decision::Refuse(Blocked::BadInstance(problem.clone())),
        (VmState::NotAsked, None, Ok(_)) => Decision::Wait(Wait::VmDeletion(Duration::ZERO)),
        (VmState::Unanswered(error), None, Ok(_)) => unanswered(error.clone()),
        (VmState::Present(vm), None, Ok(_)) => delete(vm, facts),
    }
}

/// Decides on a VM that is there and that its Pod does not need any more.
fn delete(vm: &Vm, facts: &Facts) -> Decision {
    let Some(pod) = &facts.pod else {
        // It may be a copy from another cluster, whose Pods do not show here that they use the VM.
        let older = ownership::ensure_not_older(vm, facts.recorded).err();
        return Decision::Refuse(older.map_or(Blocked::NoOwner, Blocked::NotOwn));
    };
    if let Some(claimant) = &facts.claimed_by {
        return Decision::Refuse(Blocked::Claimed(claimant.clone()));
    }
    let own = match ownership::verify(vm.clone(), pod, facts.name_limit) {
        Err(not_own) => return Decision::Refuse(Blocked::NotOwn(not_own)),
        Ok(own) => own,
    };
    if facts.deletion_accepted || own.vm().stage == Stage::Leaving {
        return Decision::Wait(Wait::VmDeletion(Duration::ZERO));
    }
    if let Err(not_own) = ownership::ensure_not_older(own.vm(), facts.recorded) {
        return Decision::Refuse(Blocked::NotOwn(not_own));
    }
    if facts.developer_mode { Decision::Refuse(Blocked::DeveloperMode) } else { Decision::Delete(own) }
}

/// Decides on a PeerPod without the finalizer. cloud-api-adaptor removes it after a start of the Pod that failed, and then makes
/// another VM and PeerPod, so such PeerPods pile up. The youngest of a Pod is never touched.
fn without_finalizer(facts: &Facts) -> Decision {
    if !facts.has_younger {
        return Decision::Nothing;
    }
    match &facts.vm {
        VmState::Absent => Decision::Tidy,
        VmState::Present(_) if facts.abandoned => Decision::Nothing,
        // A late clean-up of a failed start may take the finalizer off the wrong PeerPod.
        VmState::Present(vm) => match sibling_order(facts) {
            SiblingOrder::Newest => Decision::Nothing,
            SiblingOrder::Superseded if !facts.developer_mode && !facts.clean_up.is_zero() => {
                Decision::Wait(Wait::CleanUp(facts.clean_up))
            }
            SiblingOrder::Superseded => match delete(vm, facts) {
                Decision::Refuse(Blocked::NotOwn(_) | Blocked::NoOwner | Blocked::DeveloperMode) => {
                    Decision::Nothing
                }
                decision => decision,
            },
            SiblingOrder::Unclear => unclear(facts),
        },
        VmState::Unanswered(error) if error.class != ErrorClass::NotSupported => {
            Decision::Retry(error.clone())
        }
        VmState::NotAsked | VmState::Unanswered(_) => Decision::Nothing,
    }
}

/// What the VM's deletion has to wait for because of its Pod. The observer checks this first and saves cloud calls that would not
/// change the decision.
pub fn wait_for_pod(facts: &Facts) -> Option<Wait> {
    match facts.owner.may_run() {
        Some(wait) if !is_superseded(facts) => Some(wait),
        _ => (!facts.clean_up.is_zero()).then_some(Wait::CleanUp(facts.clean_up)),
    }
}

/// Whether a newer sibling has replaced the PeerPod. Then the observer asks for no further sibling.
pub fn is_superseded(facts: &Facts) -> bool {
    sibling_order(facts) == SiblingOrder::Superseded
}

/// Whether this PeerPod's VM must be kept for as long as its Pod lives: evidence of where the Pod runs, or the order in which the
/// cloud made the VMs, contradicts a newer sibling. The index and the condition `KeptForPod` remember this, because that order is lost
/// when a VM stops or a host starts all VMs again. From then on the Pod counts as [`InSandbox::BeforeAllNewer`].
pub fn must_keep_for_pod(facts: &Facts) -> bool {
    facts.owner.may_run().is_some()
        && !is_superseded(facts)
        && facts.siblings.iter().any(|sibling| {
            let may_be_its = match &sibling.vm {
                VmState::Present(vm) => is_another_own(vm, facts),
                VmState::NotAsked | VmState::Unanswered(_) => true,
                VmState::Absent => false,
            };
            let was_made_before =
                || matches!(&sibling.vm, VmState::Present(vm) if order_at_cloud(facts, vm) == Some(Ordering::Greater));
            may_be_its
                && facts.recorded < sibling.recorded
                && (was_in_sandbox_before(facts, sibling) || was_made_before())
        })
}

/// Decides on a PeerPod that is not being deleted. Its siblings matter, whether its VM is lost, and whether its Pod has ended and
/// cloud-api-adaptor had time to release it. A lost VM is only reported here: a kubelet or a person must end the Pod.
fn live(facts: &Facts) -> Decision {
    if facts.pod.is_none() {
        return Decision::Keep(Kept::NoOwner);
    }
    let has_ended = is_left_by_an_ended_pod(facts);
    match sibling_order(facts) {
        order if (has_ended || order == SiblingOrder::Superseded) && facts.developer_mode => {
            Decision::Keep(Kept::DeveloperMode)
        }
        _ if has_ended => Decision::Retire,
        SiblingOrder::Newest => match facts.finding {
            Some(PeerPodFinding::Lost(state)) => Decision::Keep(Kept::Lost(state)),
            Some(PeerPodFinding::NoVm | PeerPodFinding::Ended) | None => Decision::Nothing,
        },
        SiblingOrder::Superseded => Decision::Supersede,
        SiblingOrder::Unclear => unclear(facts),
    }
}

/// Whether the Pod has ended, and two rounds of the sweep have seen that. Then the observer asks for no sibling.
pub fn is_left_by_an_ended_pod(facts: &Facts) -> bool {
    facts.finding == Some(PeerPodFinding::Ended) && facts.owner == Owner::Finished
}

/// The decision when the cloud has not shown which VM is the newest. While a start that failed may still be cleaned up, that is no
/// problem yet.
fn unclear(facts: &Facts) -> Decision {
    let starts =
        facts.age < STARTED_BY && facts.siblings.iter().any(|it| may_be_of_an_earlier_start(facts, it));
    let mut states = iter::once(&facts.vm).chain(facts.siblings.iter().map(|it| &it.vm));
    let error = states.find_map(|vm| match vm {
        VmState::Unanswered(error) => Some(error.clone()),
        _ => None,
    });
    error.map_or_else(
        || if starts { Decision::Wait(Wait::Start) } else { Decision::Keep(Kept::Ambiguous) },
        unanswered,
    )
}

/// The decision when the cloud did not answer.
pub fn unanswered(error: Error) -> Decision {
    match error.class {
        ErrorClass::NotSupported => Decision::Refuse(Blocked::NotSupported(error.message)),
        _ => Decision::Retry(error),
    }
}

/// The position of a PeerPod among the live PeerPods of its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SiblingOrder {
    Newest,
    Superseded,
    Unclear,
}

/// A PeerPod is superseded only if a sibling's VM is certainly newer and proven to be this Pod's. Tenants may write PeerPods, so
/// a sibling that names a foreign VM, or none, replaces nothing. Observation adds two rules: a VM is as old as its first record,
/// and a VM that a PeerPod of another Pod names too counts as not asked for. If any evidence, present or past, shows that the Pod
/// stayed in its sandbox, no newer PeerPod supersedes this one, whatever VM it names.
///
/// Of any set of siblings at least one is not superseded: "older" never contradicts the times of the records and, within one
/// second, follows the cloud's order strictly.
fn sibling_order(facts: &Facts) -> SiblingOrder {
    let mut result = SiblingOrder::Newest;
    for sibling in &facts.siblings {
        let order = match &sibling.vm {
            // Soon it is absent, and replaces nothing.
            VmState::Present(vm) if vm.stage == Stage::Leaving => None,
            VmState::Present(vm) if is_another_own(vm, facts) => compare_age(facts, sibling.recorded, vm),
            VmState::Present(_) | VmState::Absent => continue,
            VmState::NotAsked | VmState::Unanswered(_) => None,
        };
        match order {
            Some(Ordering::Less)
                if !was_in_sandbox_before(facts, sibling) && !may_be_of_an_earlier_start(facts, sibling) =>
            {
                return SiblingOrder::Superseded;
            }
            Some(Ordering::Less) | None => result = SiblingOrder::Unclear,
            Some(_) => {}
        }
    }
    result
}

/// Whether the Pod was in its sandbox before that sibling's VM was recorded. Then it does not run on the sibling's VM, because a
/// VM is recorded before its sandbox is ready. The opposite proves nothing: the evidence may be later than the Pod's start.
fn was_in_sandbox_before(facts: &Facts, sibling: &Sibling) -> bool {
    match facts.in_sandbox {
        InSandbox::Unknown => false,
        InSandbox::By(time) => time < sibling.recorded,
        // Such evidence was there once, and no newer sibling supersedes this PeerPod any more.
        InSandbox::BeforeAllNewer => true,
    }
}

/// Whether the sibling may be of an earlier start of the Pod than this PeerPod, although its VM was started and recorded later.
/// cloud-api-adaptor goes on with a start that the kubelet gave up, while the kubelet starts the Pod again. So where that start was
/// slow, both orders show its VM as the newer one, and the Pod runs on the other VM. It also goes on with the start of a Pod that is
/// gone, and then records the VM for the Pod that has the same name by then.
///
/// The kubelet gives up a start after [`GIVEN_UP`], so all starts within that time of the Pod's creation follow each other, if no
/// earlier Pod had its name. And [`STARTED_BY`] after this VM was recorded, the Pod is in its sandbox, which
/// [`was_in_sandbox_before`] sees, or will not be.
fn may_be_of_an_earlier_start(facts: &Facts, sibling: &Sibling) -> bool {
    let after = |time: Timestamp| sibling.recorded.duration_since(time);
    matches!(&facts.vm, VmState::Present(vm) if vm.stage == Stage::Present)
        && facts.owner.may_run().is_some()
        && facts.pod_created.is_none_or(|created| after(created) >= GIVEN_UP)
        && after(facts.recorded) < STARTED_BY
}

/// Whether a sibling's VM is this Pod's and not the one that this PeerPod records. Remains of a VM do not count.
fn is_another_own(vm: &Vm, facts: &Facts) -> bool {
    if matches!(vm.stage, Stage::Remains(_)) {
        return false;
    }
    let verify = |pod: &String| ownership::verify(vm.clone(), pod, facts.name_limit);
    let proven = facts.pod.as_ref().is_some_and(|pod| verify(pod).is_ok());
    proven && !facts.instance.as_ref().is_ok_and(|own| own.key() == vm.id.key())
}

/// Compares this PeerPod's age to a sibling's; `None` if the answer would be a guess. If two starts of one Pod overlap, the VM of
/// the first may be recorded last. So if the cloud has an order, it must agree with the order of the records. For an absent VM
/// only the records count.
fn compare_age(facts: &Facts, sibling_recorded: Timestamp, sibling: &Vm) -> Option<Ordering> {
    let by_object = facts.recorded.cmp(&sibling_recorded);
    match &facts.vm {
        // The Pod may run on this VM. It does not run on a stopped one.
        VmState::Present(vm) if vm.start.is_some() && sibling.start.is_none() => return None,
        VmState::NotAsked | VmState::Unanswered(_) => return None,
        VmState::Present(_) | VmState::Absent => {}
    }
    match order_at_cloud(facts, sibling) {
        Some(by_cloud) => {
            let agree = by_cloud.is_ne() && (by_object.is_eq() || by_object == by_cloud);
            agree.then_some(by_cloud)
        }
        None => by_object.is_ne().then_some(by_object),
    }
}

/// The order in which the cloud started or made this PeerPod's VM and a sibling's, if the cloud says so.
fn order_at_cloud(facts: &Facts, sibling: &Vm) -> Option<Ordering> {
    let VmState::Present(vm) = &facts.vm else { return None };
    let by_start = vm.start.zip(sibling.start).map(|(own, other)| own.cmp(&other));
    by_start.or_else(|| Some(vm.created?.cmp(&sibling.created?)))
}

#[cfg(test)]
pub(super) mod tests;
