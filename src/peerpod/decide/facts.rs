//! What a decision depends on.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use operator_kit::Message;

use super::decision::Wait;
use crate::{
    peerpod::reasons::LostState,
    provider::{Error, IdProblem, InstanceId, Vm},
};

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
    /// Whether the PeerPod has more finalizers than were read. Then it may have the finalizer or not.
    pub unread_finalizers: bool,
    /// Whether an administrator's annotation abandons the VM.
    pub abandoned: bool,
    /// When the VM was first recorded for this Pod, to the second.
    pub recorded: Timestamp,
    /// How long ago that was, by this process' clock. It only delays what is reported.
    pub age: SignedDuration,
    /// The name of the Pod that owns the PeerPod, if a Pod owns it.
    pub pod: Option<String>,
    /// The longest name that cloud-api-adaptor gives to a VM on that cloud, in bytes.
    pub name_limit: usize,
    /// The state of that Pod.
    pub owner: Owner,
    /// For how much longer cloud-api-adaptor may itself clean up the VM that the Pod no longer needs. Zero at a cloud that gives no
    /// identifier to another VM.
    pub clean_up: Duration,
    /// When that Pod was created, by the clock that also dates the records; `None` if it is not known, or if an earlier Pod may have
    /// had its name.
    pub pod_created: Option<Timestamp>,
    /// Since when that Pod is in its present sandbox, at the latest.
    pub in_sandbox: InSandbox,
    /// The recorded identifier.
    pub instance: Result<InstanceId, IdProblem>,
    /// Whether a PeerPod of the same Pod that is not being deleted was made later, with the finalizer or without.
    pub has_younger: bool,
    /// The other PeerPods of the same Pod that have the finalizer, are not being deleted and may be newer: the newest few first.
    pub siblings: Vec<Sibling>,
    /// What else needs the VM: a PeerPod that names it and is not being deleted or whose own Pod may still run, or a Pod that may
    /// have it without a record.
    pub claimed_by: Option<Message>,
    /// What the cloud answered about the VM.
    pub vm: VmState,
    /// What the sweep found out.
    pub finding: Option<PeerPodFinding>,
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
    /// It is being deleted, and its containers have their grace period to end. Only this process' own clock counts, because the
    /// clock of the deletionTimestamp may be ahead or behind.
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
    /// Since before every newer sibling was recorded: the PeerPod is [kept for its Pod](super::must_keep_for_pod). Later evidence
    /// does not count, because a sandbox looks newer after the container runtime has lost sight of it for a moment.
    BeforeAllNewer,
}

impl Facts {
    /// For how many VMs the cloud was asked.
    pub fn asked(&self) -> u32 {
        let states = [&self.vm].into_iter().chain(self.siblings.iter().map(|sibling| &sibling.vm));
        states.map(|vm| u32::from(*vm != VmState::NotAsked)).sum()
    }
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

/// What the sweep found out about one PeerPod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPodFinding {
    /// Its Pod runs, and its VM does not.
    Lost(LostState),
    /// It records no VM, and its Pod, which has ended, has none.
    NoVm,
    /// Its Pod has ended, and cloud-api-adaptor has not released it.
    Ended,
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
