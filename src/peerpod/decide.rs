//! What to do about one PeerPod. Pure *(no client)*: everything that is known goes in, one [`Decision`] comes out.
//!
//! What always holds:
//! - [`Decision::Release`] needs either the machine's observed absence or an administrator's word.
//! - [`Decision::Delete`] needs a PeerPod that is being deleted, a Pod that is through (or a newer sibling that replaced
//!   this one), a machine proven to be that Pod's, and nobody else who claims it.
//! - A Pod that is going is waited for until its grace period and [`SLACK`] are over, never for its object: that may
//!   itself wait for this PeerPod.

use std::{cmp::Ordering, time::Duration};

use jiff::Timestamp;
use operator_kit::Message;

use crate::provider::{Error, ErrorClass, IdProblem, InstanceId, OwnVm, Vm, ownership};

/// How long after a Pod's grace period its VM is kept.
pub const SLACK: Duration = Duration::from_secs(30);

/// All that the decision depends on.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// When the PeerPod's deletion was asked for; `None` while it lives.
    pub deleted: Option<Timestamp>,
    /// Whether the finalizer that stands for the machine is there.
    pub finalizer: bool,
    /// Whether an administrator gave the machine up.
    pub abandoned: bool,
    /// When the machine was first recorded for this Pod, to the second.
    pub recorded: Timestamp,
    /// The name of the Pod that owns it, if one does.
    pub pod: Option<String>,
    /// The longest name that cloud-api-adaptor gives to a VM on that cloud, in bytes.
    pub name_limit: usize,
    /// How far that Pod is.
    pub owner: Owner,
    /// When that Pod was in its present sandbox already.
    pub in_sandbox: InSandbox,
    /// The recorded identifier.
    pub instance: Result<InstanceId, IdProblem>,
    /// The other living PeerPods with the finalizer that the same Pod owns and that may be newer: the newest few first.
    pub siblings: Vec<Sibling>,
    /// A PeerPod that names the same machine and is not being deleted, or whose own Pod may still run.
    pub claimed_by: Option<Message>,
    /// What the cloud says about the machine.
    pub machine: Machine,
    /// Whether the settings turn on cloud-api-adaptor's developer mode, in which no VM is deleted.
    pub developer_mode: bool,
    /// Whether the cloud accepted the machine's deletion in this very pass.
    pub deletion_accepted: bool,
}

/// How far the owning Pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It does not exist (any more), or another one has its name.
    Gone,
    /// Its containers are through: Succeeded or Failed.
    Finished,
    /// It is being deleted, and its containers have a while to end. By no clock but this process' own: that of its
    /// deletionTimestamp may be ahead of any here, or behind.
    Ending {
        /// How long they have.
        grace: Duration,
        /// For how long this is known.
        known_for: Duration,
    },
    /// It runs, or may do so.
    Running,
}

/// When a Pod was in its present sandbox already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSandbox {
    /// Nothing shows it.
    Unknown,
    /// Then, by whatever shows it at the earliest.
    By(Timestamp),
    /// Before every newer sibling: it was [`contradicted`] once that the Pod moved. What shows where a Pod runs may move later, as
    /// when a container runtime loses sight of a sandbox for a moment.
    Doubted,
}

impl Owner {
    /// What a machine of this Pod has to wait for, if it has to.
    pub fn may_run(self) -> Option<Wait> {
        match self {
            Self::Gone | Self::Finished => None,
            Self::Running => Some(Wait::PodRuns),
            Self::Ending { grace, known_for } => {
                let left = grace.saturating_add(SLACK).saturating_sub(known_for);
                (!left.is_zero()).then_some(Wait::PodEnds(left))
            }
        }
    }
}

/// Another PeerPod of the same Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// When its machine was first recorded for this Pod, to the second.
    pub recorded: Timestamp,
    /// What the cloud says about its machine.
    pub machine: Machine,
}

/// What is known about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// It was not asked for, because the rest decides without it.
    NotAsked,
    /// The cloud says that it does not exist.
    Absent,
    /// It exists.
    Present(Vm),
    /// The question could not be answered.
    Unanswered(Error),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// All is as it should be.
    Nothing,
    /// A newer sibling replaced this PeerPod: delete the object, whose machine then goes the usual way.
    Supersede,
    /// Keep everything, say why, look again after a while.
    Keep(Refusal),
    /// Delete the machine, then look again at once.
    Delete(OwnVm),
    /// Leave it as it is until then.
    Wait(Wait),
    /// The cloud could not answer: try again by the error's class.
    Retry(Error),
    /// Take the finalizer away.
    Release(Release),
    /// Do not touch anything until somebody mends it.
    Refuse(Refusal),
}

impl Decision {
    /// What the metric label and the log field can be, with what it means.
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
            Self::Wait(Wait::MachineGoes) => "wait_for_machine",
            Self::Retry(_) => "retry",
            Self::Release(_) => "release",
            Self::Refuse(_) => "refuse",
        }
    }

    /// The class of the cloud's error that led to it, if one did.
    pub const fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Retry(error) => Some(error.class),
            Self::Refuse(Refusal::NotSupported(_)) => Some(ErrorClass::NotSupported),
            _ => None,
        }
    }
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The Pod may still run on the machine.
    PodRuns,
    /// The Pod is ending; look again after this time at the latest.
    PodEnds(Duration),
    /// The cloud is deleting the machine; look again with growing pauses.
    MachineGoes,
}

/// Why a finalizer may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The machine was seen to be absent.
    Absent,
    /// An administrator gave it up.
    Abandoned,
}

/// Why nothing is done, and what somebody can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No Pod owns the PeerPod, so no machine can be proven to be its.
    NoOwner,
    /// The identifier names no machine.
    BadInstance(IdProblem),
    /// The machine is not this Pod's.
    NotOwn(ownership::NotOwn),
    /// Another PeerPod needs the same machine.
    Claimed(Message),
    /// This operator cannot speak to that cloud.
    NotSupported(Message),
    /// Which of several machines the Pod runs on cannot be told.
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
    if facts.machine == Machine::Absent {
        return Decision::Release(Release::Absent);
    }
    if let Some(wait) = hold(&facts) {
        return Decision::Wait(wait);
    }
    if let Err(problem) = facts.instance {
        return Decision::Refuse(Refusal::BadInstance(problem));
    }
    match facts.machine {
        Machine::Absent => Decision::Release(Release::Absent),
        Machine::NotAsked => Decision::Wait(Wait::MachineGoes),
        Machine::Unanswered(error) => unanswered(error),
        Machine::Present(vm) => {
            let Some(pod) = facts.pod else { return Decision::Refuse(Refusal::NoOwner) };
            if let Some(claimant) = facts.claimed_by {
                return Decision::Refuse(Refusal::Claimed(claimant));
            }
            match ownership::verify(vm, &pod, facts.name_limit) {
                Err(not_own) => Decision::Refuse(Refusal::NotOwn(not_own)),
                Ok(_) if facts.deletion_accepted => Decision::Wait(Wait::MachineGoes),
                Ok(_) if facts.developer_mode => Decision::Refuse(Refusal::DeveloperMode),
                Ok(own) => Decision::Delete(own),
            }
        }
    }
}

/// What keeps a machine for the sake of its Pod. Observation asks this first, to spare the cloud calls that would
/// change nothing.
pub fn hold(facts: &Facts) -> Option<Wait> {
    let wait = facts.owner.may_run()?;
    (!is_superseded(facts)).then_some(wait)
}

/// Whether a newer sibling has replaced it. No further one needs to be asked for then.
pub fn is_superseded(facts: &Facts) -> bool {
    standing(facts) == Standing::Superseded
}

/// Whether what shows where the Pod runs is against a newer sibling. This is to be remembered as long as the Pod lives.
pub fn contradicted(facts: &Facts) -> bool {
    facts.finalizer
        && facts.owner.may_run().is_some()
        && !is_superseded(facts)
        && facts.siblings.iter().any(|sibling| {
            let may_be_its = match &sibling.machine {
                Machine::Present(vm) => is_another_own(vm, facts),
                Machine::NotAsked | Machine::Unanswered(_) => true,
                Machine::Absent => false,
            };
            may_be_its && facts.recorded < sibling.recorded && was_in_sandbox_before(facts, sibling)
        })
}

/// A PeerPod that nobody deletes: only its siblings matter.
fn live(facts: Facts) -> Decision {
    match standing(&facts) {
        Standing::Newest => Decision::Nothing,
        Standing::Superseded if facts.developer_mode => Decision::Keep(Refusal::DeveloperMode),
        Standing::Superseded => Decision::Supersede,
        Standing::Unclear => {
            let machines = [facts.machine].into_iter().chain(facts.siblings.into_iter().map(|it| it.machine));
            let error = machines.into_iter().find_map(|machine| match machine {
                Machine::Unanswered(error) => Some(error),
                _ => None,
            });
            error.map_or(Decision::Keep(Refusal::Ambiguous), unanswered)
        }
    }
}

/// What follows from a question that the cloud did not answer.
pub fn unanswered(error: Error) -> Decision {
    match error.class {
        ErrorClass::NotSupported => Decision::Refuse(Refusal::NotSupported(error.message)),
        _ => Decision::Retry(error),
    }
}

/// Where a PeerPod stands among the living ones of its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Newest,
    Superseded,
    Unclear,
}

/// Superseded only if some sibling's machine is newer for certain and proven to be this Pod's: anybody may write a PeerPod,
/// and one that names a foreign machine, or none, has taken nobody's place. Observation adds that a machine is as old as the
/// first record of it, and that one which a PeerPod of another Pod names, too, counts as not asked for. And nothing may show, or
/// have shown, that the Pod stayed where it was, whatever machine somebody found for his PeerPod. Of any set of siblings at
/// least one is not superseded: "older" never contradicts the times of the records and, within one second, follows the
/// cloud's clock strictly.
fn standing(facts: &Facts) -> Standing {
    let mut standing = Standing::Newest;
    for sibling in &facts.siblings {
        let order = match &sibling.machine {
            Machine::Present(vm) if is_another_own(vm, facts) => order(facts, sibling.recorded, vm),
            Machine::Present(_) | Machine::Absent => continue,
            Machine::NotAsked | Machine::Unanswered(_) => None,
        };
        match order {
            Some(Ordering::Less) if !was_in_sandbox_before(facts, sibling) => return Standing::Superseded,
            Some(Ordering::Less) | None => standing = Standing::Unclear,
            Some(_) => {}
        }
    }
    standing
}

/// Whether the Pod was in its sandbox before that sibling's machine was recorded: so it is not in the sibling's machine, which
/// is recorded before its sandbox is ready. That it seems to have come there later proves nothing the other way round.
fn was_in_sandbox_before(facts: &Facts, sibling: &Sibling) -> bool {
    match facts.in_sandbox {
        InSandbox::Unknown => false,
        InSandbox::By(time) => time < sibling.recorded,
        InSandbox::Doubted => true,
    }
}

/// Whether a sibling's machine is this Pod's and not the one that this PeerPod records.
fn is_another_own(vm: &Vm, facts: &Facts) -> bool {
    let verify = |pod: &String| ownership::verify(vm.clone(), pod, facts.name_limit);
    let proven = facts.pod.as_ref().is_some_and(|pod| verify(pod).is_ok());
    proven && facts.instance.as_ref() != Ok(&vm.id)
}

/// How this PeerPod's age compares to a sibling's, `None` where that would be a guess. A PeerPod is made after its
/// machine, so where both clocks speak they must agree. A machine that is gone leaves the objects' clock alone.
fn order(facts: &Facts, sibling_recorded: Timestamp, sibling: &Vm) -> Option<Ordering> {
    let by_object = facts.recorded.cmp(&sibling_recorded);
    let own_created = match &facts.machine {
        Machine::Present(vm) => vm.created,
        Machine::Absent => None,
        Machine::NotAsked | Machine::Unanswered(_) => return None,
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
