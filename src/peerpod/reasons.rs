//! Why a person has to know of a PeerPod, what the condition says, and whether the state may end without an event *(no client)*.

use operator_kit::{Message, conditions::reasons};
use serde::{Deserialize, Serialize};

use super::object::MOST_FINALIZERS;
use crate::{
    api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION},
    provider::{IdProblem, ownership},
};

/// The condition that is True while one of its reasons applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The operator waits for something that ends without a person's help.
    Reconciling,
    /// A person must act.
    Stalled,
}

operator_kit::labels! {
    /// The condition's type.
    pub ConditionType {
        Reconciling => "Reconciling",
        Stalled => "Stalled",
    }
}

reasons! {
    /// Why a PeerPod is not simply alive or gone. The texts are the documentation of the conditions.
    pub enum Reason of ConditionType;

    /// The PeerPod is being deleted and its Pod still runs or ends. The operator keeps the VM until the Pod has ended;
    /// with byom also as long as cloud-api-adaptor may still return the machine.
    WaitingForPod => Reconciling, Normal;
    /// The deletion takes longer than `--slow-after`. The message says what the operator waits for.
    DeletionSlow => Reconciling, Warning;
    /// The operator cannot reach the cloud, or the cloud failed. The operator tries again with growing pauses.
    CloudUnavailable => Reconciling, Warning;
    /// The cloud asked for fewer calls. The operator tries again later.
    CloudThrottled => Reconciling, Normal;
    /// The cloud refuses the credentials, they lack a right, or the operator cannot use the file that has them. Correct the
    /// credentials, the rights or the file. The operator tries again by itself.
    Unauthorized => Stalled, Warning;
    /// The cloud refuses the deletion in the present state of the VM, or of what belongs to it. The
    /// operator's log names the call and the answer. Change that state in the cloud. The operator tries again with growing pauses.
    /// A 429, `rateLimitExceeded` or `userRateLimitExceeded` needs no action: the cloud takes no more calls for that VM, or in its
    /// project, for now.
    /// The operator itself refuses a VM whose tag `caa-cluster-uid` names another cluster.
    CloudRefused => Stalled, Warning;
    /// The operator cannot use the settings. The message names the key to correct. The operator reads changed files at
    /// once.
    InvalidSettings => Stalled, Warning;
    /// This operator does not support the cloud that the PeerPod names, or its settings name another cloud.
    UnknownProvider => Stalled, Warning;
    /// No Pod owns the PeerPod, so nothing proves which Pod the VM belongs to. A PeerPod that is not being deleted has this reason,
    /// too.
    NoOwner => Stalled, Warning;
    /// The PeerPod has more than 16 finalizers, or more than 1 KiB of them, or one with a name that is not valid. The operator
    /// does not read them, so it changes nothing. Remove the finalizers of others.
    TooManyFinalizers => Stalled, Warning;
    /// The recorded identifier is empty, or it is not a permanent identifier of a VM.
    InvalidInstanceID => Stalled, Warning;
    /// The VM's name is not that of a VM of this Pod, or the VM has no sign that cloud-api-adaptor made it, or it was made more than
    /// an hour before the PeerPod.
    NotThisPodsVM => Stalled, Warning;
    /// Another PeerPod names the same VM, its Pod's VMs have the same name, and it is not being deleted or its Pod may still run
    /// on the VM. One of an earlier start of the same Pod that cloud-api-adaptor has released does not count. If aws or
    /// alibabacloud has only a part of the VM left, a PeerPod of a Pod of any name or of none counts. With byom also:
    /// another Pod of the same name may have the machine, which is not recorded for it; or a PeerPod of a Pod of any name names it,
    /// has the finalizer and is not being deleted; or the pool gave the machine to this Pod again after it was available or another Pod's, and any
    /// PeerPod names it that is not being deleted or whose Pod may still run.
    ClaimedByAnother => Stalled, Warning;
    /// The Pod has several PeerPods, and the operator cannot tell which of their VMs the Pod runs on. It keeps all of
    /// them until the Pod ends, or until a PeerPod that is made later replaces them.
    AmbiguousSiblings => Stalled, Warning;
    /// The settings turn on developer mode (`PODVM_DEVELOPER_MODE` or `PEERPODS_DEVELOPER_MODE`), so the VM is kept for
    /// debugging. It is deleted when developer mode is turned off.
    DeveloperMode => Stalled, Normal;
    /// The Pod runs, and the cloud does not have its VM any more. The operator changes nothing. Delete the Pod, so that its
    /// controller makes another one.
    VMGone => Stalled, Warning;
    /// The Pod runs, and its VM is off. The operator changes nothing. The Pod does not recover when the VM is started again. Delete the
    /// Pod, so that its controller makes another one.
    VMStopped => Stalled, Warning;
}

/// Who is to do something about a PeerPod.
enum Concern {
    /// Nobody for now: its VM stays on purpose.
    VmStays,
    /// Nobody: it ends by itself.
    Passes,
    /// Who gets the alert `PeerPodVMsLost`.
    LostVm,
    /// A person must act, or the deletion is slow.
    NeedsHelp,
}

impl Reason {
    const fn concern(self) -> Concern {
        match self {
            Self::WaitingForPod | Self::DeveloperMode => Concern::VmStays,
            Self::CloudUnavailable | Self::CloudThrottled => Concern::Passes,
            Self::VMGone | Self::VMStopped => Concern::LostVm,
            Self::DeletionSlow
            | Self::Unauthorized
            | Self::CloudRefused
            | Self::InvalidSettings
            | Self::UnknownProvider
            | Self::NoOwner
            | Self::TooManyFinalizers
            | Self::InvalidInstanceID
            | Self::NotThisPodsVM
            | Self::ClaimedByAnother
            | Self::AmbiguousSiblings => Concern::NeedsHelp,
        }
    }

    /// Whether the alert `PeerPodsNeedHelp` counts PeerPods with it: a person must act, or the deletion is slow. Left out: what ends by
    /// itself, what the user chose, and what the alert `PeerPodVMsLost` reports.
    pub const fn needs_help(self) -> bool {
        matches!(self.concern(), Concern::NeedsHelp)
    }

    /// Whether the alert `PeerPodVMsLost` counts PeerPods with it.
    pub const fn is_of_lost_vm(self) -> bool {
        matches!(self.concern(), Concern::LostVm)
    }

    /// Whether the VM is to stay for now, so that its deletion is not overdue.
    pub(super) const fn keeps_vm(self) -> bool {
        matches!(self.concern(), Concern::VmStays)
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

impl Kept {
    /// The reason of its condition, and the text.
    pub(super) fn reported(self) -> (Reason, Message) {
        match self {
            Self::Ambiguous => (
                Reason::AmbiguousSiblings,
                "the Pod has several PeerPods, and the operator cannot tell which one is the newest; it keeps all of them until the \
                 Pod ends, or until a PeerPod that is made later replaces them"
                    .into(),
            ),
            Self::DeveloperMode => developer_mode(),
            Self::Lost(state) => (state.reason(), state.text().into()),
            Self::NoOwner => (
                Reason::NoOwner,
                Message::public(format!(
                    "{NO_OWNER}, and nothing deletes the PeerPod; if no Pod uses the VM, delete the PeerPod, then the VM by hand. {COPIED}: {}, \
                     then delete the PeerPod",
                    give_up()
                )),
            ),
        }
    }

    /// Whether the end of a Pod may end it. No watch shows that Pod, so no event may come.
    pub(super) const fn may_end_with_pod(self) -> bool {
        match self {
            Self::Ambiguous | Self::DeveloperMode | Self::Lost(_) => true,
            // Nothing ends it without an event. The slow resync only writes a report that failed or was removed.
            Self::NoOwner => false,
        }
    }
}

/// What became of the VM of a Pod that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LostState {
    /// It is gone.
    Gone,
    /// It is off.
    Stopped,
}

operator_kit::labels! {
    /// How `status` and the metrics name it.
    pub LostState {
        Gone => "Gone",
        Stopped => "Stopped",
    }
}

impl LostState {
    /// The reason of the PeerPod's condition, and of the events on PeerPod and Pod.
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::Gone => Reason::VMGone,
            Self::Stopped => Reason::VMStopped,
        }
    }

    /// What they say.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Gone => {
                "the cloud does not have the VM of this Pod any more; delete the Pod, so that its controller makes another one"
            }
            Self::Stopped => {
                "the VM of this Pod is off, and the Pod does not recover when the VM is started again; delete the Pod, so that its \
                 controller makes another one"
            }
        }
    }
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

impl Blocked {
    /// The reason of its condition, and the text.
    pub(super) fn reported(&self) -> (Reason, Message) {
        let give_up = give_up();
        match self {
            Self::NoOwner => (
                Reason::NoOwner,
                Message::public(format!(
                    "{NO_OWNER}; if no Pod uses the VM, delete it by hand; {give_up}. {COPIED}"
                )),
            ),
            Self::UnreadFinalizers => (
                Reason::TooManyFinalizers,
                Message::public(format!(
                    "this PeerPod has more than {MOST_FINALIZERS} finalizers, or more than 1 KiB of them, or one with a name that \
                     is not valid; the operator changes nothing until the finalizers of others are removed"
                )),
            ),
            Self::BadInstance(problem) => {
                (Reason::InvalidInstanceID, Message::public(format!("{problem}; {give_up}")))
            }
            Self::NotOwn(not_own) => {
                let message = not_own.message();
                (
                    Reason::NotThisPodsVM,
                    message
                        .map(|problem| format!("the operator does not delete this VM: {problem}; {give_up}")),
                )
            }
            Self::Claimed(other) => {
                (Reason::ClaimedByAnother, other.map(|other| format!("{other}; {give_up}")))
            }
            Self::NotSupported(message) => {
                (Reason::UnknownProvider, message.map(|message| format!("{message}; {give_up}")))
            }
            Self::DeveloperMode => developer_mode(),
        }
    }

    /// Whether it may end with a Pod, without an event: the claimant may be the Pod of another deleted PeerPod. A person corrects the
    /// others, often at the cloud, where no watch shows it.
    pub(super) const fn may_end_with_pod(&self) -> bool {
        match self {
            Self::Claimed(_) => true,
            Self::NoOwner
            | Self::UnreadFinalizers
            | Self::BadInstance(_)
            | Self::NotOwn(_)
            | Self::NotSupported(_)
            | Self::DeveloperMode => false,
        }
    }
}

/// How an administrator releases the PeerPod nevertheless.
fn give_up() -> String {
    format!(
        "to release this PeerPod without deleting its VM, annotate this PeerPod {RELEASE_ANNOTATION}={RELEASE_ABANDON}"
    )
}

fn developer_mode() -> (Reason, Message) {
    let message = format!(
        "the settings turn on developer mode (PODVM_DEVELOPER_MODE or PEERPODS_DEVELOPER_MODE is true), so the operator keeps this \
         VM; it deletes the VM when developer mode is turned off; {}",
        give_up()
    );
    (Reason::DeveloperMode, Message::public(message))
}

const NO_OWNER: &str = "no Pod owns this PeerPod, so nothing proves which Pod the VM belongs to";

/// What else a PeerPod without an owner may be.
const COPIED: &str =
    "If the PeerPod comes from a backup, the VM may be another cluster's, whose Pods do not show here";
