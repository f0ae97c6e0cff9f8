//! Maps a decision to a condition *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use operator_kit::{
    Message,
    conditions::{MESSAGE_LIMIT, NewCondition, is_true},
    text::cut,
};

use super::{
    decide::{Decision, Wait},
    reasons::{ConditionType, Reason},
};
use crate::{api::v1alpha1::PeerPod, provider::ErrorClass};

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
        Decision::Keep(kept) => kept.reported(),
        Decision::Refuse(blocked) => blocked.reported(),
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

/// The reasons of the conditions that are True in its status.
fn reasons(peerpod: &PeerPod) -> impl Iterator<Item = &str> {
    let conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|it| it.status == "True").map(|it| it.reason.as_str())
}

/// Whether the condition that is True has this reason.
pub(super) fn has_reason(peerpod: &PeerPod, reason: Reason) -> bool {
    reasons(peerpod).any(|it| it == reason.as_str())
}

/// Why a person must act, as its status says. A VM that is kept on purpose needs no one.
pub(super) fn stalled(peerpod: &PeerPod) -> Option<Reason> {
    let is_stalled = |it: &Reason| it.condition_type() == ConditionType::Stalled && !it.keeps_vm();
    reasons(peerpod).filter_map(Reason::named).find(is_stalled)
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
