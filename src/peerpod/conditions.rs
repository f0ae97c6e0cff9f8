//! Maps a decision to a condition, an event and a metric label *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use operator_kit::{
    Message,
    conditions::{MESSAGE_LIMIT, NewCondition, is_true, reasons},
    text::cut,
};

use super::{
    decide::{Blocked, Decision, Kept, LostState, Wait},
    object::MOST_FINALIZERS,
};
use crate::{
    api::v1alpha1::{PeerPod, RELEASE_ABANDON, RELEASE_ANNOTATION},
    provider::ErrorClass,
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
    /// The PeerPod has more than 32 finalizers, or one with a name that is not valid. The operator does not read them, so it
    /// changes nothing. Remove the finalizers of others.
    TooManyFinalizers => Stalled, Warning;
    /// The recorded identifier is empty, or it is not a permanent identifier of a VM.
    InvalidInstanceID => Stalled, Warning;
    /// The VM's name is not that of a VM of this Pod, or the VM has no sign that cloud-api-adaptor made it, or it was made more than
    /// an hour before the PeerPod.
    NotThisPodsVM => Stalled, Warning;
    /// Another PeerPod names the same VM, its Pod's VMs have the same name, and it is not being deleted or its Pod may still run
    /// on the VM. One of an earlier start of the same Pod that cloud-api-adaptor has released does not count. If aws or
    /// alibabacloud has only a part of the VM left, a PeerPod of a Pod of any name or of none counts. With byom also:
    /// another Pod of the same name may have the machine, which is not recorded for it; or the pool gave the machine to this Pod
    /// again after it was available, and such a PeerPod of a Pod of any name names it.
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
    /// The Pod runs, and its VM is off. The operator changes nothing. Start the VM, or delete the Pod.
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
            Self::Stopped => "the VM of this Pod is off; start the VM, or delete the Pod",
        }
    }
}

/// The reason of the event about a finalizer that an administrator's annotation released. No condition has it, because the
/// object is removed.
pub const ABANDONED: &str = "Abandoned";

/// The text of the event [`ABANDONED`].
pub(super) const ABANDONED_NOTE: &str =
    "the operator removed the finalizer because of the annotation; it did not touch the VM, if there is one";

/// What [`ABANDONED`] means, for documentation.
pub const ABANDONED_DOC: &str = "The operator removed the finalizer because of an administrator's annotation. It made no \
                                 call to the cloud.";

/// The condition that stays True once evidence of where the Pod runs has contradicted a newer sibling. The operator itself reads
/// it, after a restart and in the other replica. It stays beside all other conditions.
pub const KEPT_FOR_POD: &str = "KeptForPod";

/// The reason of [`KEPT_FOR_POD`].
pub const POD_IS_OLDER: &str = "PodIsOlder";

/// What [`KEPT_FOR_POD`] means, for documentation.
pub const KEPT_FOR_POD_DOC: &str = "The Pod was in its sandbox already when a newer PeerPod of it was recorded, or the cloud made or \
     started this VM after that of the newer PeerPod, so the Pod may run on this VM. No newer PeerPod replaces this one as long as \
     the Pod lives. Nothing is to be done.";

/// The condition that reports one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Why.
    pub reason: Reason,
    /// The exact state, and what to do. The same state has the same text, so that it is written once.
    pub message: Message,
}

/// The condition that reports a decision; `None` for a decision that needs no attention.
pub fn condition_update(decision: &Decision) -> Option<ConditionUpdate> {
    let (reason, message) = match decision {
        Decision::Nothing
        | Decision::Supersede
        | Decision::Retire
        | Decision::Tidy
        | Decision::Delete(_)
        | Decision::Release(_)
        | Decision::Wait(Wait::Start | Wait::VmDeletion(_)) => return None,
        Decision::Wait(Wait::PodRuns) => (
            Reason::WaitingForPod,
            "the Pod may still run on this VM; the operator deletes the VM when the Pod has ended".into(),
        ),
        Decision::Wait(Wait::PodEnds(_)) => (
            Reason::WaitingForPod,
            "the Pod is ending; the operator deletes the VM when the Pod has ended or its grace period is over".into(),
        ),
        Decision::Wait(Wait::CleanUp(_)) => (
            Reason::WaitingForPod,
            "the Pod no longer needs the machine; cloud-api-adaptor may still return it itself, and would then take it from the next Pod; \
             the operator returns the machine after that"
                .into(),
        ),
        Decision::Retry(error) => {
            let message = match error.class {
                // The remaining time changes with every reconcile; the text must not.
                ErrorClass::Throttled { .. } => {
                    "the cloud asked for fewer calls; the operator tries again later".into()
                }
                _ => error.message.clone(),
            };
            (reason_of(error.class)?, message)
        }
        Decision::Keep(kept) => self::kept(*kept),
        Decision::Refuse(blocked) => self::blocked(blocked),
    };
    Some(ConditionUpdate { reason, message: within_limit(&message) })
}

/// The reason for a class of errors. `None` for one that needs no attention.
pub const fn reason_of(class: ErrorClass) -> Option<Reason> {
    Some(match class {
        ErrorClass::Throttled { .. } => Reason::CloudThrottled,
        ErrorClass::Unauthorized => Reason::Unauthorized,
        ErrorClass::Refused => Reason::CloudRefused,
        ErrorClass::Invalid => Reason::InvalidSettings,
        ErrorClass::NotSupported => Reason::UnknownProvider,
        ErrorClass::NotFound | ErrorClass::Transient => Reason::CloudUnavailable,
        ErrorClass::Unsettled { .. } => return None,
    })
}

fn within_limit(message: &Message) -> Message {
    message.map(|text| cut(text, MESSAGE_LIMIT))
}

/// The condition of a slow deletion in this state.
pub(super) fn slow(deleted: Timestamp, state: &Message) -> ConditionUpdate {
    let message = state.map(|state| format!("the deletion of {deleted} is not done: {state}"));
    ConditionUpdate { reason: Reason::DeletionSlow, message: within_limit(&message) }
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

fn kept(kept: Kept) -> (Reason, Message) {
    match kept {
        Kept::Ambiguous => (
            Reason::AmbiguousSiblings,
            "the Pod has several PeerPods, and the operator cannot tell which one is the newest; it keeps all of them until the \
             Pod ends, or until a PeerPod that is made later replaces them"
                .into(),
        ),
        Kept::DeveloperMode => developer_mode(),
        Kept::Lost(state) => (state.reason(), state.text().into()),
        Kept::NoOwner => (
            Reason::NoOwner,
            Message::public(format!(
                "{NO_OWNER}, and nothing deletes the PeerPod; if no Pod uses the VM, delete the PeerPod, then the VM by hand. {COPIED}: {}, \
                 then delete the PeerPod",
                give_up()
            )),
        ),
    }
}

fn blocked(blocked: &Blocked) -> (Reason, Message) {
    let give_up = give_up();
    match blocked {
        Blocked::NoOwner => (
            Reason::NoOwner,
            Message::public(format!(
                "{NO_OWNER}; if no Pod uses the VM, delete it by hand; {give_up}. {COPIED}"
            )),
        ),
        Blocked::UnreadFinalizers => (
            Reason::TooManyFinalizers,
            Message::public(format!(
                "this PeerPod has more than {MOST_FINALIZERS} finalizers, or one with a name that is not valid; the operator \
                 changes nothing until the finalizers of others are removed"
            )),
        ),
        Blocked::BadInstance(problem) => {
            (Reason::InvalidInstanceID, Message::public(format!("{problem}; {give_up}")))
        }
        Blocked::NotOwn(not_own) => {
            let message = not_own.message();
            (
                Reason::NotThisPodsVM,
                message.map(|problem| format!("the operator does not delete this VM: {problem}; {give_up}")),
            )
        }
        Blocked::Claimed(other) => {
            (Reason::ClaimedByAnother, other.map(|other| format!("{other}; {give_up}")))
        }
        Blocked::NotSupported(message) => {
            (Reason::UnknownProvider, message.map(|message| format!("{message}; {give_up}")))
        }
        Blocked::DeveloperMode => developer_mode(),
    }
}

/// Whether the condition that is True has this reason.
pub(super) fn has_reason(peerpod: &PeerPod, reason: Reason) -> bool {
    let conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|it| it.status == "True").any(|it| it.reason == reason.as_str())
}

/// Whether its status has [`KEPT_FOR_POD`].
pub(super) fn is_kept_for_pod(peerpod: &PeerPod) -> bool {
    peerpod.status.as_ref().is_some_and(|status| is_true(&status.conditions, KEPT_FOR_POD))
}

/// Whether its status has a condition that a reconcile removes when nothing is wrong any more: any but [`KEPT_FOR_POD`].
pub(super) fn has_clearable_condition(peerpod: &PeerPod) -> bool {
    peerpod.status.iter().flat_map(|status| &status.conditions).any(|it| it.type_ != KEPT_FOR_POD)
}

/// The conditions for `update`, always both types in the same order, and [`KEPT_FOR_POD`]. A condition keeps its
/// transition time while its status stays.
pub fn conditions(
    update: Option<&ConditionUpdate>,
    kept_for_pod: bool,
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let of_update = update.into_iter().flat_map(|update| {
        ConditionType::ALL.into_iter().map(move |type_| {
            let is_true = update.reason.condition_type() == type_;
            let (reason, message) = if is_true {
                (update.reason.as_str(), update.message.for_status())
            } else {
                ("AsExpected", "")
            };
            NewCondition { type_: type_.as_str(), is_true, reason, message }
        })
    });
    let kept =
        NewCondition { type_: KEPT_FOR_POD, is_true: true, reason: POD_IS_OLDER, message: KEPT_FOR_POD_DOC };
    let all = of_update.chain(kept_for_pod.then_some(kept));
    all.map(|condition| condition.after(before, generation, now)).collect()
}

#[cfg(test)]
mod tests;
