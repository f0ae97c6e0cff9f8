//! What can be decided.

use std::time::Duration;

use crate::{
    peerpod::reasons::{Blocked, Kept},
    provider::{Error, ErrorClass, OwnVm},
};

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
        "the operator keeps the VM of the PeerPod, and those of its Pod; the condition says why";
    Decision::Delete(_) => "delete",
        "the operator deletes the VM; it logs each such call, and the same reconcile ends with another decision";
    Decision::Wait(Wait::PodRuns | Wait::Start | Wait::PodEnds(_) | Wait::CleanUp(_)) => "wait_for_pod",
        "the Pod may still run on the VM, or be starting on another one, or cloud-api-adaptor may still clean up after it";
    Decision::Wait(Wait::VmDeletion(_)) => "wait_for_vm",
        "the cloud deletes the VM, or stops it first, and still shows it";
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
