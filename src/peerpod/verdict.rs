//! What a decision means to people: condition, event and metric label in one *(no client)*.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::decide::{Decision, Refusal, Release, Wait};
use crate::{
    api::v1alpha1::{PeerPod, RELEASE_ABANDON, RELEASE_ANNOTATION},
    provider::ErrorClass,
    runtime::{
        conditions::{MESSAGE_LIMIT, condition, is_true, reasons},
        text::cut,
    },
};

/// The condition that is True while a verdict stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something is waited for that goes by itself.
    Reconciling,
    /// Somebody's help is needed.
    Stalled,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Reconciling, Self::Stalled];

    /// The condition's type.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

reasons! {
    //! Why a PeerPod is not simply alive or gone. The texts are the documentation of the conditions.

    /// The PeerPod is being deleted while its Pod still runs or ends; the machine is kept until the Pod is through.
    WaitingForPod => Reconciling, Normal;
    /// The deletion takes longer than `--slow-after`; the message says where it stands.
    DeletionSlow => Reconciling, Warning;
    /// The cloud cannot be reached or failed; it is tried again with growing pauses.
    CloudUnavailable => Reconciling, Warning;
    /// The cloud asked for fewer calls and is left alone for a while.
    CloudThrottled => Reconciling, Normal;
    /// The credentials are refused or lack a right; mend them or the rights; they are tried again every 30 s.
    Unauthorized => Stalled, Warning;
    /// The settings cannot work; the message names the key to mend, changed files are read at once.
    InvalidSettings => Stalled, Warning;
    /// This operator does not speak to the cloud that the PeerPod names, or its settings name another one.
    UnknownProvider => Stalled, Warning;
    /// No Pod owns the PeerPod, so no machine can be proven to be its.
    NoOwner => Stalled, Warning;
    /// The recorded identifier is empty or names no machine for good.
    InvalidInstanceID => Stalled, Warning;
    /// The machine bears another name than a pod VM of this Pod would, or no sign that cloud-api-adaptor made it.
    NotThisPodsVM => Stalled, Warning;
    /// Another PeerPod names the same machine and stays, or its Pod may still run on it.
    ClaimedByAnother => Stalled, Warning;
    /// The Pod has several living PeerPods, and which machine it runs on cannot be told; all stay until the Pod goes.
    AmbiguousSiblings => Stalled, Warning;
}

/// The reason of the event about a finalizer that went on an administrator's word; no condition has it, as nothing is
/// left that could.
pub const ABANDONED: &str = "Abandoned";

/// What [`ABANDONED`] means, for documentation.
pub const ABANDONED_DOC: &str =
    "The finalizer was released because an administrator gave the machine up; the cloud was not touched.";

/// The condition that stays True once the evidence of where the Pod runs was against a newer sibling. It is for the operator
/// itself, after a restart and in its other replica, and stands beside whatever else there is to be told.
pub const KEPT_FOR_POD: &str = "KeptForPod";

/// The reason of [`KEPT_FOR_POD`].
const POD_IS_OLDER: &str = "PodIsOlder";

/// What [`KEPT_FOR_POD`] means, for documentation.
pub const KEPT_FOR_POD_DOC: &str = "The Pod was in its sandbox already when a newer PeerPod of it was recorded, so it may run on this \
     machine. No newer PeerPod replaces this one as long as the Pod lives.";

/// What to tell about one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Why.
    pub reason: Reason,
    /// What exactly, and what to do. The same text for the same state, so that it is written once.
    pub message: String,
}

/// What is to be told, if anything is. A decision that goes on as it should says nothing.
pub fn verdict(decision: &Decision) -> Option<Verdict> {
    let (reason, message) = match decision {
        Decision::Nothing
        | Decision::Supersede
        | Decision::Delete(_)
        | Decision::Release(_)
        | Decision::Wait(Wait::MachineGoes) => return None,
        Decision::Wait(Wait::PodRuns) => (
            Reason::WaitingForPod,
            "the Pod may still run on this machine; it is deleted when the Pod has ended".to_owned(),
        ),
        Decision::Wait(Wait::PodEnds(_)) => (
            Reason::WaitingForPod,
            "the Pod is ending; the machine is deleted when it has ended or its grace period is over"
                .to_owned(),
        ),
        Decision::Retry(error) => {
            let message = match error.class {
                // The remaining time changes with every look; the text must not.
                ErrorClass::Throttled { .. } => {
                    "the cloud asked for fewer calls; trying again later".to_owned()
                }
                _ => error.message.clone(),
            };
            (reason_of(error.class), message)
        }
        Decision::Keep(refusal) | Decision::Refuse(refusal) => refused(refusal),
    };
    Some(Verdict { reason, message: cut(&message, MESSAGE_LIMIT) })
}

/// The reason that stands for a class of errors.
pub const fn reason_of(class: ErrorClass) -> Reason {
    match class {
        ErrorClass::Throttled { .. } => Reason::CloudThrottled,
        ErrorClass::Unauthorized => Reason::Unauthorized,
        ErrorClass::Invalid => Reason::InvalidSettings,
        ErrorClass::NotSupported => Reason::UnknownProvider,
        ErrorClass::NotFound | ErrorClass::Transient => Reason::CloudUnavailable,
    }
}

/// What is to be told of a deletion that takes long, and stands as it says.
pub(super) fn slow(deleted: Timestamp, standing: &str) -> Verdict {
    let message = format!("the deletion of {deleted} is not done: {standing}");
    Verdict { reason: Reason::DeletionSlow, message: cut(&message, MESSAGE_LIMIT) }
}

fn refused(refusal: &Refusal) -> (Reason, String) {
    let give_up = format!(
        "to release the PeerPod without deleting anything, annotate it {RELEASE_ANNOTATION}={RELEASE_ABANDON}"
    );
    match refusal {
        Refusal::NoOwner => (
            Reason::NoOwner,
            format!(
                "no Pod owns this PeerPod, so nothing proves that the machine is its; delete the machine by hand, or {give_up}"
            ),
        ),
        Refusal::BadInstance(problem) => (Reason::InvalidInstanceID, format!("{problem}; {give_up}")),
        Refusal::NotOwn(not_own) => {
            (Reason::NotThisPodsVM, format!("refusing to delete: {not_own}; {give_up}"))
        }
        Refusal::Claimed(other) => (
            Reason::ClaimedByAnother,
            format!("the PeerPod {other} names the same machine and still needs it; {give_up}"),
        ),
        Refusal::NotSupported(message) => (Reason::UnknownProvider, format!("{message}; {give_up}")),
        Refusal::Ambiguous => (
            Reason::AmbiguousSiblings,
            "the Pod has several PeerPods of which the newest cannot be told for certain; all stay until the Pod goes"
                .to_owned(),
        ),
    }
}

/// What an event says when a finalizer went on an administrator's word.
pub fn abandoned(release: Release) -> Option<&'static str> {
    (release == Release::Abandoned)
        .then_some("finalizer released by annotation; the machine, if there is one, was not touched")
}

/// Whether it says that it needs somebody's help.
pub(super) fn is_stalled(peerpod: &PeerPod) -> bool {
    peerpod.status.as_ref().is_some_and(|status| is_true(&status.conditions, Kind::Stalled.as_str()))
}

/// Whether the condition that is True has this reason.
pub(super) fn stands_because_of(peerpod: &PeerPod, reason: Reason) -> bool {
    let conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|it| it.status == "True").any(|it| it.reason == reason.as_str())
}

/// Whether its status has [`KEPT_FOR_POD`].
pub(super) fn is_kept_for_pod(peerpod: &PeerPod) -> bool {
    peerpod.status.as_ref().is_some_and(|status| is_true(&status.conditions, KEPT_FOR_POD))
}

/// Whether its status says anything that may no longer hold.
pub(super) fn says_something(peerpod: &PeerPod) -> bool {
    peerpod.status.iter().flat_map(|status| &status.conditions).any(|it| it.type_ != KEPT_FOR_POD)
}

/// The conditions that tell `verdict`, always both of its and in the same order, and [`KEPT_FOR_POD`]. A condition keeps its
/// transition time while its status stays.
pub fn conditions(
    verdict: Option<&Verdict>,
    kept_for_pod: bool,
    before: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let of_verdict = verdict.into_iter().flat_map(|verdict| {
        Kind::ALL.into_iter().map(move |kind| {
            let stands = verdict.reason.kind() == kind;
            let told = if stands { (verdict.reason.as_str(), &*verdict.message) } else { ("AsExpected", "") };
            condition((kind.as_str(), stands), told, before, generation, now)
        })
    });
    let kept = kept_for_pod
        .then(|| condition((KEPT_FOR_POD, true), (POD_IS_OLDER, KEPT_FOR_POD_DOC), before, generation, now));
    of_verdict.chain(kept).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::provider::Error;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_normal_deletion_says_nothing() {
        assert_eq!(verdict(&Decision::Wait(Wait::MachineGoes)), None);
        assert_eq!(verdict(&Decision::Release(Release::Absent)), None);
    }

    #[test]
    fn one_condition_is_true_and_a_transition_time_moves_only_with_its_status() {
        let stalled = Verdict { reason: Reason::NoOwner, message: "a".into() };
        let first = conditions(Some(&stalled), false, &[], Some(2), at(10));
        assert_eq!(first.iter().map(|c| c.status.as_str()).collect::<Vec<_>>(), ["False", "True"]);
        let other = Verdict { reason: Reason::ClaimedByAnother, message: "b".into() };
        let second = conditions(Some(&other), false, &first, Some(2), at(20));
        assert_eq!(second[1].last_transition_time, Time(at(10)));
        let waiting = Verdict { reason: Reason::WaitingForPod, message: "c".into() };
        let third = conditions(Some(&waiting), false, &second, Some(2), at(30));
        assert_eq!(third[1].last_transition_time, Time(at(30)));
    }

    #[test]
    fn a_machine_that_is_kept_for_its_pod_says_so_whatever_else_is_said() {
        let stalled = Verdict { reason: Reason::AmbiguousSiblings, message: "a".into() };
        let types =
            |conditions: &[Condition]| conditions.iter().map(|it| it.type_.clone()).collect::<Vec<_>>();
        let first = conditions(Some(&stalled), true, &[], None, at(10));
        assert_eq!(types(&first), ["Reconciling", "Stalled", "KeptForPod"]);
        let alone = conditions(None, true, &first, None, at(20));
        assert_eq!(alone, first[2..]);
        let mut peerpod = PeerPod::new("a", serde_json::from_value(serde_json::json!({})).unwrap());
        assert!(!is_kept_for_pod(&peerpod) && !says_something(&peerpod));
        for (conditions, says) in [(first, true), (alone, false)] {
            peerpod.status =
                Some(crate::api::v1alpha1::PeerPodStatus { conditions, observed_generation: None });
            assert!(is_kept_for_pod(&peerpod));
            assert_eq!(says_something(&peerpod), says);
        }
        assert_eq!(conditions(None, false, &[], None, at(30)), []);
    }

    #[test]
    fn whatever_a_cloud_says_is_cut_between_characters() {
        let error = Error::new(ErrorClass::Transient, "é".repeat(1 << 20));
        let verdict = verdict(&Decision::Retry(error)).unwrap();
        assert_eq!(verdict.message.len(), MESSAGE_LIMIT);
    }
}
