//! Decides what to do about one PeerPod. Pure *(no client)*: all [`Facts`] are input, one [`Decision`] is the result.
//!
//! What always holds:
//! - [`Decision::Release`] requires the VM's observed absence or an administrator's annotation.
//! - [`Decision::Delete`] requires a PeerPod that is being deleted, a Pod that has ended (or a newer sibling that replaced
//!   this PeerPod), a VM that is proven to be that Pod's, and no other PeerPod that claims the VM.
//! - The operator waits for a terminating Pod until its grace period and [`SLACK`] are over. It never waits for the Pod object
//!   to be removed: that object may itself wait for this PeerPod.

use std::{cmp::Ordering, time::Duration};

use jiff::Timestamp;
use operator_kit::Message;

use crate::provider::{Error, ErrorClass, IdProblem, InstanceId, OwnVm, Stage, Vm, ownership};

/// How long the operator keeps a VM after its Pod's grace period.
pub const SLACK: Duration = Duration::from_secs(30);

/// All that the decision depends on.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// The PeerPod's deletionTimestamp; `None` while it is not being deleted.
    pub deleted: Option<Timestamp>,
    /// Whether the PeerPod has the finalizer that protects the VM.
    pub finalizer: bool,
    /// Whether an administrator's annotation abandons the VM.
    pub abandoned: bool,
    /// When the VM was first recorded for this Pod, to the second.
    pub recorded: Timestamp,
    /// The name of the Pod that owns the PeerPod, if a Pod owns it.
    pub pod: Option<String>,
    /// The longest name that cloud-api-adaptor gives to a VM on that cloud, in bytes.
    pub name_limit: usize,
    /// The state of that Pod.
    pub owner: Owner,
    /// Since when that Pod is in its present sandbox, at the latest.
    pub in_sandbox: InSandbox,
    /// The recorded identifier.
    pub instance: Result<InstanceId, IdProblem>,
    /// The other PeerPods of the same Pod that have the finalizer, are not being deleted and may be newer: the newest few first.
    pub siblings: Vec<Sibling>,
    /// A PeerPod that names the same VM and is not being deleted, or whose own Pod may still run.
    pub claimed_by: Option<Message>,
    /// What the cloud answered about the VM.
    pub vm: VmState,
    /// Whether the settings turn on cloud-api-adaptor's developer mode, in which no VM is deleted.
    pub developer_mode: bool,
    /// Whether the cloud accepted the VM's deletion in this reconcile.
    pub deletion_accepted: bool,
}

/// The state of the owning Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It does not exist, or another Pod has its name.
    Gone,
    /// Its containers have ended: Succeeded or Failed.
    Finished,
    /// It is being deleted, and its containers have their grace period to end. Only this process' own clock counts: the clock
    /// of the deletionTimestamp may be ahead of it or behind it.
    Terminating {
        /// The grace period.
        grace: Duration,
        /// For how long this process has known it.
        known_for: Duration,
    },
    /// It runs or may run.
    Running,
}

/// Since when a Pod is in its present sandbox, at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSandbox {
    /// Nothing shows it.
    Unknown,
    /// Since this time, by the earliest evidence.
    By(Timestamp),
    /// Since before every newer sibling: the evidence once [`contradicted`] a move of the Pod. Later evidence does not count: a
    /// container runtime that loses sight of a sandbox for a moment makes it look newer.
    Doubted,
}

impl Owner {
    /// What the deletion of this Pod's VM has to wait for, if anything.
    pub fn may_run(self) -> Option<Wait> {
        match self {
            Self::Gone | Self::Finished => None,
            Self::Running => Some(Wait::PodRuns),
            Self::Terminating { grace, known_for } => {
                let left = grace.saturating_add(SLACK).saturating_sub(known_for);
                (!left.is_zero()).then_some(Wait::PodEnds(left))
            }
        }
    }
}

/// Another PeerPod of the same Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// When its VM was first recorded for this Pod, to the second.
    pub recorded: Timestamp,
    /// What the cloud says about its VM.
    pub vm: VmState,
}

/// What is known about a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmState {
    /// The cloud was not asked, because the decision does not depend on it.
    NotAsked,
    /// The cloud answered that it does not exist.
    Absent,
    /// It exists.
    Present(Vm),
    /// The cloud could not answer.
    Unanswered(Error),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is nothing to do.
    Nothing,
    /// A newer sibling replaced this PeerPod: delete the object. The operator then deletes its VM as for any other.
    Supersede,
    /// Keep all VMs, report why, reconcile again later.
    Keep(Blocked),
    /// Delete the VM, then ask for it again at once.
    Delete(OwnVm),
    /// Change nothing until this has happened.
    Wait(Wait),
    /// The cloud could not answer: try again as the error's class asks.
    Retry(Error),
    /// Remove the finalizer.
    Release(Release),
    /// Change nothing until a person corrects the problem.
    Refuse(Blocked),
}

impl Decision {
    /// The values of the metric label and the log field, with their meaning.
    pub const LABELS: [(&str, &str); 9] = [
        ("nothing", "there is nothing to do"),
        ("supersede", "a newer PeerPod of the same Pod replaced this one; the operator deletes this object"),
        (
            "keep",
            "the operator keeps all VMs: it cannot tell which of them the Pod runs on, or developer mode is on",
        ),
        (
            "delete",
            "the operator deletes the VM; it logs each such call, and the same reconcile ends with another \
             decision",
        ),
        ("wait_for_pod", "the Pod may still run on the VM"),
        ("wait_for_machine", "the cloud accepted the deletion and still shows the VM"),
        ("retry", "the cloud failed; the table of error classes says when the operator tries again"),
        ("release", "the operator removes the finalizer"),
        ("refuse", "the operator does nothing until a person corrects the problem"),
    ];

    /// The metric label and the log field.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Supersede => "supersede",
            Self::Keep(_) => "keep",
            Self::Delete(_) => "delete",
            Self::Wait(Wait::PodRuns | Wait::PodEnds(_)) => "wait_for_pod",
            Self::Wait(Wait::VmDeletion(_)) => "wait_for_machine",
            Self::Retry(_) => "retry",
            Self::Release(_) => "release",
            Self::Refuse(_) => "refuse",
        }
    }

    /// The class of the cloud's error that caused it, if an error did.
    pub const fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Retry(error) => Some(error.class),
            Self::Refuse(Blocked::NotSupported(_)) => Some(ErrorClass::NotSupported),
            _ => None,
        }
    }
}

/// What the operator waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The Pod may still run on the VM.
    PodRuns,
    /// The Pod is terminating; reconcile again after this time at the latest.
    PodEnds(Duration),
    /// The cloud is deleting the VM; reconcile again after this time at the earliest, and with growing delays.
    VmDeletion(Duration),
}

/// Why the finalizer may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The VM was observed to be absent.
    Absent,
    /// An administrator abandoned the VM.
    Abandoned,
}

/// Why the operator does nothing, so that the condition can say what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// No Pod owns the PeerPod, so nothing proves which Pod the VM belongs to.
    NoOwner,
    /// The identifier names no VM.
    BadInstance(IdProblem),
    /// The VM is not this Pod's.
    NotOwn(ownership::NotOwn),
    /// Another PeerPod needs the same VM.
    Claimed(Message),
    /// This operator does not support that cloud.
    NotSupported(Message),
    /// It is unknown which of several VMs the Pod runs on.
    Ambiguous,
    /// The settings turn on developer mode.
    DeveloperMode,
}

/// Decides. See the [module](self) for what always holds.
pub fn decide(facts: Facts) -> Decision {
    if !facts.finalizer {
        return Decision::Nothing;
    }
    if facts.deleted.is_none() {
        return live(facts);
    }
    if facts.abandoned {
        return Decision::Release(Release::Abandoned);
    }
    if facts.vm == VmState::Absent {
        return Decision::Release(Release::Absent);
    }
    if let Some(wait) = wait_for_pod(&facts) {
        return Decision::Wait(wait);
    }
    if let Err(problem) = facts.instance {
        return Decision::Refuse(Blocked::BadInstance(problem));
    }
    match facts.vm {
        VmState::Absent => Decision::Release(Release::Absent),
        VmState::NotAsked => Decision::Wait(Wait::VmDeletion(Duration::ZERO)),
        VmState::Unanswered(error) => unanswered(error),
        VmState::Present(vm) => {
            let Some(pod) = facts.pod else { return Decision::Refuse(Blocked::NoOwner) };
            if let Some(claimant) = facts.claimed_by {
                return Decision::Refuse(Blocked::Claimed(claimant));
            }
            match ownership::verify(vm, &pod, facts.name_limit) {
                Err(not_own) => Decision::Refuse(Blocked::NotOwn(not_own)),
                Ok(own) if facts.deletion_accepted || own.vm().stage == Stage::Leaving => {
                    Decision::Wait(Wait::VmDeletion(Duration::ZERO))
                }
                Ok(_) if facts.developer_mode => Decision::Refuse(Blocked::DeveloperMode),
                Ok(own) => Decision::Delete(own),
            }
        }
    }
}

/// What the VM's deletion has to wait for because of its Pod. Observation checks this first and saves cloud calls that would not
/// change the decision.
pub fn wait_for_pod(facts: &Facts) -> Option<Wait> {
    let wait = facts.owner.may_run()?;
    (!is_superseded(facts)).then_some(wait)
}

/// Whether a newer sibling has replaced the PeerPod. Then observation asks for no further sibling.
pub fn is_superseded(facts: &Facts) -> bool {
    sibling_order(facts) == SiblingOrder::Superseded
}

/// Whether the evidence of where the Pod runs contradicts a newer sibling. The index remembers this as long as the Pod lives.
pub fn contradicted(facts: &Facts) -> bool {
    facts.finalizer
        && facts.owner.may_run().is_some()
        && !is_superseded(facts)
        && facts.siblings.iter().any(|sibling| {
            let may_be_its = match &sibling.vm {
                VmState::Present(vm) => is_another_own(vm, facts),
                VmState::NotAsked | VmState::Unanswered(_) => true,
                VmState::Absent => false,
            };
            may_be_its && facts.recorded < sibling.recorded && was_in_sandbox_before(facts, sibling)
        })
}

/// Decides on a PeerPod that is not being deleted: only its siblings matter.
fn live(facts: Facts) -> Decision {
    match sibling_order(&facts) {
        SiblingOrder::Newest => Decision::Nothing,
        SiblingOrder::Superseded if facts.developer_mode => Decision::Keep(Blocked::DeveloperMode),
        SiblingOrder::Superseded => Decision::Supersede,
        SiblingOrder::Unclear => {
            let states = [facts.vm].into_iter().chain(facts.siblings.into_iter().map(|it| it.vm));
            let error = states.into_iter().find_map(|vm| match vm {
                VmState::Unanswered(error) => Some(error),
                _ => None,
            });
            error.map_or(Decision::Keep(Blocked::Ambiguous), unanswered)
        }
    }
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

/// A PeerPod is superseded only if a sibling's VM is certainly newer and proven to be this Pod's. Everybody may write a PeerPod,
/// and a sibling that names a foreign VM, or none, replaces nothing. Observation adds two rules: a VM is as old as the first
/// record of it, and a VM that a PeerPod of another Pod names too counts as not asked for. No evidence, present or past, may show
/// that the Pod stayed in its sandbox, whatever VM a newer PeerPod names.
///
/// Of any set of siblings at least one is not superseded: "older" never contradicts the times of the records and, within one
/// second, follows the cloud's clock strictly.
fn sibling_order(facts: &Facts) -> SiblingOrder {
    let mut result = SiblingOrder::Newest;
    for sibling in &facts.siblings {
        let order = match &sibling.vm {
            VmState::Present(vm) if is_another_own(vm, facts) => compare_age(facts, sibling.recorded, vm),
            VmState::Present(_) | VmState::Absent => continue,
            VmState::NotAsked | VmState::Unanswered(_) => None,
        };
        match order {
            Some(Ordering::Less) if !was_in_sandbox_before(facts, sibling) => {
                return SiblingOrder::Superseded;
            }
            Some(Ordering::Less) | None => result = SiblingOrder::Unclear,
            Some(_) => {}
        }
    }
    result
}

/// Whether the Pod was in its sandbox before that sibling's VM was recorded. Then it does not run on the sibling's VM, which is
/// recorded before its sandbox is ready. The opposite proves nothing: a Pod can seem to have come later than it did.
fn was_in_sandbox_before(facts: &Facts, sibling: &Sibling) -> bool {
    match facts.in_sandbox {
        InSandbox::Unknown => false,
        InSandbox::By(time) => time < sibling.recorded,
        InSandbox::Doubted => true,
    }
}

/// Whether a sibling's VM is this Pod's and not the one that this PeerPod records. Remains of a VM are none.
fn is_another_own(vm: &Vm, facts: &Facts) -> bool {
    if matches!(vm.stage, Stage::Remains(_)) {
        return false;
    }
    let verify = |pod: &String| ownership::verify(vm.clone(), pod, facts.name_limit);
    let proven = facts.pod.as_ref().is_some_and(|pod| verify(pod).is_ok());
    proven && facts.instance.as_ref() != Ok(&vm.id)
}

/// Compares this PeerPod's age to a sibling's; `None` where the answer would be a guess. A PeerPod is created after its VM, so the
/// clocks of the cloud and of the API server must agree where both give a time. For an absent VM only the API server's counts.
fn compare_age(facts: &Facts, sibling_recorded: Timestamp, sibling: &Vm) -> Option<Ordering> {
    let by_object = facts.recorded.cmp(&sibling_recorded);
    let own_created = match &facts.vm {
        VmState::Present(vm) => vm.created,
        VmState::Absent => None,
        VmState::NotAsked | VmState::Unanswered(_) => return None,
    };
    match (own_created, sibling.created) {
        (Some(own), Some(other)) => {
            let by_cloud = own.cmp(&other);
            let agree = by_cloud.is_ne() && (by_object.is_eq() || by_object == by_cloud);
            agree.then_some(by_cloud)
        }
        _ => by_object.is_ne().then_some(by_object),
    }
}

#[cfg(test)]
pub(super) mod tests;
