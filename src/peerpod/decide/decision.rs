//! What can be decided.

use std::time::Duration;

use operator_kit::Message;

use super::facts::LostState;
use crate::provider::{Error, ErrorClass, IdProblem, OwnVm, ownership};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is nothing to do.
    Nothing,
    /// A newer sibling replaced this PeerPod: delete the object. The operator then deletes its VM as for any other.
    Supersede,
    /// The Pod has ended and cloud-api-adaptor left this PeerPod: delete the object. The operator then deletes its VM as for any
    /// other.
    Retire,
    /// It records a VM that is absent, and protects nothing: delete the object.
    Tidy,
    /// Keep all VMs, report why, reconcile again later.
    Keep(Kept),
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

/// Gives [`Decision`] its labels. The compiler reports a decision that is missing here.
macro_rules! labels {
    ($($decision:pat => $label:literal, $meaning:literal;)+) => {
        impl Decision {
            /// The values of the metric label and the log field, with their meaning.
            pub const LABELS: [(&str, &str); <[&str]>::len(&[$($label),+])] = [$(($label, $meaning)),+];

            /// The metric label and the log field.
            pub const fn as_str(&self) -> &'static str {
                match self { $($decision => $label),+ }
            }
        }
    };
}

labels! {
    Decision::Nothing => "nothing", "there is nothing to do";
    Decision::Supersede => "supersede",
        "a newer PeerPod of the same Pod replaced this one; the operator deletes this object";
    Decision::Retire => "retire",
        "the Pod has ended, and cloud-api-adaptor did not release the PeerPod; the operator deletes this object";
    Decision::Tidy => "tidy",
        "cloud-api-adaptor released this PeerPod, its VM is absent, and its Pod has a younger one; the operator deletes \
         this object";
    Decision::Keep(_) => "keep",
        "the operator keeps all VMs: it cannot tell which of them the Pod runs on, or developer mode is on, or the Pod's VM is \
         gone or off, or no Pod owns the PeerPod";
    Decision::Delete(_) => "delete",
        "the operator deletes the VM; it logs each such call, and the same reconcile ends with another decision";
    Decision::Wait(Wait::PodRuns | Wait::Start | Wait::PodEnds(_) | Wait::CleanUp(_)) => "wait_for_pod",
        "the Pod may still run on the VM, or be starting on another one, or cloud-api-adaptor may still clean up after it";
    Decision::Wait(Wait::VmDeletion(_)) => "wait_for_vm",
        "the cloud accepted the deletion and still shows the VM";
    Decision::Retry(_) => "retry", "the cloud failed; the table of error classes says when the operator tries again";
    Decision::Release(_) => "release", "the operator removes the finalizer";
    Decision::Refuse(_) => "refuse", "the operator does nothing until a person corrects the problem";
}

impl Decision {
    /// The class of the cloud's error that caused it, if an error did.
    pub fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Retry(error) => {
                Some(error.class).filter(|class| !matches!(class, ErrorClass::Unsettled { .. }))
            }
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
    /// Another start of the Pod may still be under way, or be cleaned up.
    Start,
    /// The Pod is terminating; reconcile again after this time at the latest.
    PodEnds(Duration),
    /// The Pod no longer needs the VM, and cloud-api-adaptor may still return it by an identifier that may be another Pod's by then; reconcile
    /// again after this time at the latest.
    CleanUp(Duration),
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

impl Release {
    /// The metric label and the log field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Why the operator keeps the VMs of a PeerPod that is not being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is unknown which of several VMs the Pod runs on.
    Ambiguous,
    /// The settings turn on developer mode. Without it, the operator would delete the PeerPod.
    DeveloperMode,
    /// The Pod runs and the VM does not.
    Lost(LostState),
    /// No Pod owns the PeerPod: no event deletes it, and its VM does not count as untracked.
    NoOwner,
}

/// Why the operator does nothing, so that the condition can say what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// No Pod owns the PeerPod, so nothing proves which Pod the VM belongs to.
    NoOwner,
    /// It has more finalizers than the operator reads, or longer ones, so the operator does not know whether its own is there.
    UnreadFinalizers,
    /// The identifier names no VM.
    BadInstance(IdProblem),
    /// The VM is not this Pod's.
    NotOwn(ownership::NotOwn),
    /// Another PeerPod, or another Pod of the same name, may need the same VM. It says which.
    Claimed(Message),
    /// This operator does not support that cloud.
    NotSupported(Message),
    /// The settings turn on developer mode.
    DeveloperMode,
}
