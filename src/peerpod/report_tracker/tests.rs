use operator_kit::api_call::ApiError;
use prometheus_client::{encoding::text::encode, registry::Registry};

use super::{
    super::reasons::{Blocked, Kept},
    *,
};
use crate::provider::{Error, ErrorClass};

const AGAIN: Duration = Duration::from_secs(7);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn key() -> ObjectRef<PeerPod> {
    ObjectRef::new("web").within("shop")
}

/// A reconcile of a PeerPod that was deleted at second 0.
fn ended<'a>(second: i64, outcome: &'a Outcome<'_>) -> Ended<'a> {
    Ended { outcome, deleted: Some(at(0)), stalled: None, again: AGAIN, now: at(second) }
}

/// Slow after 300 s, about a PeerPod that was deleted at second 0.
struct Watched {
    tracker: ReportTracker,
    registry: Registry,
}

impl Watched {
    fn new() -> Self {
        let mut registry = Registry::default();
        let tracker = ReportTracker::new(Duration::from_secs(300), Metrics::new(&mut registry));
        Self { tracker, registry }
    }

    /// What is reported of a reconcile that ended at this second, after a deletion at second 0.
    fn reports(&self, second: i64, outcome: &Outcome<'_>) -> Option<StatusUpdate> {
        self.tracker.ended(&key(), ended(second, outcome))
    }

    fn ended(&self, second: i64, decision: &Decision) -> StatusUpdate {
        self.reports(second, &Outcome::Decided(decision)).unwrap()
    }

    fn holds(&self, reason: Reason, count: u8) {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = format!("peerpods_held{{reason=\"{}\"}} {count}\n", reason.as_str());
        assert!(text.contains(&line), "{line} is not in:\n{text}");
    }
}

fn failed(class: ErrorClass) -> Decision {
    Decision::Retry(Error::new(class, "the socket is closed"))
}

fn message(update: &StatusUpdate) -> &str {
    let condition = update.condition.as_ref().unwrap();
    assert_eq!(condition.reason, Reason::DeletionSlow);
    condition.message.for_status()
}

const ACCEPTED: Decision = Decision::Wait(Wait::VmDeletion(Duration::ZERO));

#[test]
fn a_slow_deletion_is_reported_again_on_a_new_outcome_or_when_due() {
    let watched = Watched::new();
    assert_eq!(watched.ended(300, &ACCEPTED), StatusUpdate { condition: None, repeat: false });
    let first = watched.ended(301, &ACCEPTED);
    let text = "the deletion of 1970-01-01T00:00:00Z is not done: 2 attempts, the next one at 1970-01-01T00:05:08Z: the cloud \
                deletes the VM, or stops it first, and still shows it";
    assert_eq!(message(&first), text);
    assert!(first.repeat);
    watched.holds(Reason::DeletionSlow, 1);
    for second in [310, 400, 600] {
        assert_eq!(watched.ended(second, &ACCEPTED), StatusUpdate { repeat: false, ..first.clone() });
    }
    let other = watched.ended(600, &failed(ErrorClass::Transient));
    assert!(other.repeat && message(&other).contains("6 attempts"), "{other:?}");
    assert!(message(&other).contains("(transient error): the socket is closed"), "{other:?}");
    assert!(!watched.ended(899, &failed(ErrorClass::Transient)).repeat);
    let again = watched.ended(900, &failed(ErrorClass::Transient));
    assert!(again.repeat && message(&again).contains("8 attempts"), "{again:?}");
    watched.holds(Reason::DeletionSlow, 1);
    watched.tracker.forget(&key());
    watched.holds(Reason::DeletionSlow, 0);
}

#[test]
fn errors_become_deletion_slow_unless_a_person_must_act() {
    let watched = Watched::new();
    let reason = |second, class| watched.ended(second, &failed(class)).condition.unwrap().reason;
    assert_eq!(reason(1, ErrorClass::Transient), Reason::CloudUnavailable);
    assert_eq!(reason(1, ErrorClass::Throttled { retry_after: Some(AGAIN) }), Reason::CloudThrottled);
    assert_eq!(reason(400, ErrorClass::Throttled { retry_after: Some(AGAIN) }), Reason::DeletionSlow);
    assert_eq!(reason(401, ErrorClass::Unauthorized), Reason::Unauthorized);
    watched.holds(Reason::Unauthorized, 1);
    watched.holds(Reason::DeletionSlow, 0);
    assert_eq!(reason(402, ErrorClass::Transient), Reason::DeletionSlow);
}

#[test]
fn the_time_for_which_a_pod_needs_its_vm_does_not_count() {
    let watched = Watched::new();
    let runs = watched.ended(5000, &Decision::Wait(Wait::PodRuns));
    assert_eq!(runs.condition.unwrap().reason, Reason::WaitingForPod);
    assert_eq!(watched.ended(5300, &ACCEPTED).condition, None);
    assert!(message(&watched.ended(5301, &ACCEPTED)).contains(": 2 attempts"));
}

#[test]
fn a_deletion_of_a_peerpod_that_was_replaced_is_slow_from_its_acceptance_on() {
    let watched = Watched::new();
    let ended = |second, decision: &Decision| {
        let outcome = Outcome::Decided(decision);
        let ended = Ended { deleted: None, ..ended(second, &outcome) };
        watched.tracker.ended(&key(), ended).unwrap()
    };
    assert_eq!(ended(900, &Decision::Wait(Wait::Start)).condition, None);
    assert_eq!(ended(1000, &ACCEPTED).condition, None);
    assert_eq!(ended(1300, &ACCEPTED).condition, None);
    assert_eq!(
        ended(1299, &failed(ErrorClass::Transient)).condition.unwrap().reason,
        Reason::CloudUnavailable
    );
    let slow = ended(1301, &ACCEPTED);
    assert!(
        message(&slow).contains("1970-01-01T00:16:40Z") && message(&slow).contains(": 4 attempts"),
        "{slow:?}"
    );
    // The next one begins anew.
    ended(1302, &Decision::Wait(Wait::Start));
    assert_eq!(ended(1303, &ACCEPTED).condition, None);
}

#[test]
fn the_time_for_which_developer_mode_keeps_a_vm_does_not_count() {
    let watched = Watched::new();
    watched.ended(90_000, &Decision::Refuse(Blocked::DeveloperMode));
    assert_eq!(watched.ended(90_300, &ACCEPTED).condition, None);
    assert!(message(&watched.ended(90_301, &ACCEPTED)).contains(": 2 attempts"));
}

#[test]
fn a_failing_api_server_is_reported_when_the_deletion_is_slow() {
    let watched = Watched::new();
    let failed = |second| {
        let error = ApiError::TimedOut;
        watched.reports(second, &Outcome::Failed(&error))
    };
    assert_eq!(failed(10), None, "the former report stays");
    assert!(message(&failed(301).unwrap()).contains(": 2 attempts"));
    assert!(!failed(302).unwrap().repeat);
}

#[test]
fn a_condition_omits_api_server_messages_about_other_objects() {
    let text = "pods \"payroll\" is forbidden: no get in the namespace \"bank\"";
    let status = kube::core::Status::failure(text, "Forbidden").with_code(403);
    let error = ApiError::Failed(kube::Error::Api(status.boxed()));
    let watched = Watched::new();
    let update = watched.reports(301, &Outcome::Failed(&error)).unwrap();
    assert!(message(&update).ends_with(": the API server answered with the status 403"), "{update:?}");
    assert!(update.condition.unwrap().message.for_log().contains(text));
}

#[test]
fn a_live_peerpod_is_never_slow_and_leaves_no_entry() {
    let watched = Watched::new();
    let ambiguous = Decision::Keep(Kept::Ambiguous);
    let ended = |decision: &Decision| {
        let outcome = &Outcome::Decided(decision);
        let ended = Ended { deleted: None, ..ended(5000, outcome) };
        watched.tracker.ended(&key(), ended).unwrap().condition
    };
    assert_eq!(ended(&ambiguous).unwrap().reason, Reason::AmbiguousSiblings);
    watched.holds(Reason::AmbiguousSiblings, 1);
    assert_eq!(ended(&Decision::Nothing), None);
    watched.holds(Reason::AmbiguousSiblings, 0);
    assert!(watched.tracker.table.lock().is_empty());
    assert_eq!(watched.tracker.table.lock().capacity(), 0);
}

#[test]
fn what_a_person_must_do_stays_while_a_peerpod_waits_for_its_turn() {
    let watched = Watched::new();
    let parked =
        |second, stalled| watched.tracker.ended(&key(), Ended { stalled, ..ended(second, &Outcome::Parked) });
    // After a start, only the status says it.
    assert_eq!(parked(400, Some(Reason::Unauthorized)), None);
    watched.holds(Reason::Unauthorized, 1);
    let reason = |second, class| watched.ended(second, &failed(class)).condition.unwrap().reason;
    assert_eq!(reason(401, ErrorClass::Unauthorized), Reason::Unauthorized);
    assert_eq!(parked(402, Some(Reason::Unauthorized)), None);
    watched.holds(Reason::Unauthorized, 1);
    assert_eq!(parked(403, None).unwrap().condition.unwrap().reason, Reason::DeletionSlow);
    watched.holds(Reason::Unauthorized, 0);
}

#[test]
fn the_same_decision_is_logged_once_although_the_peerpod_waited_for_its_turn_in_between() {
    let watched = Watched::new();
    let logged = || watched.tracker.table.lock()[&key()].logged;
    watched.ended(1, &failed(ErrorClass::Unauthorized));
    let first = logged();
    assert_eq!(watched.reports(2, &Outcome::Parked), None);
    assert_eq!((first.is_some(), logged()), (true, first));
}

#[test]
fn a_vm_that_stays_while_its_pod_may_start_is_not_overdue() {
    let watched = Watched::new();
    assert_eq!(watched.ended(5000, &Decision::Wait(Wait::Start)).condition, None);
    assert_eq!(watched.reports(5300, &Outcome::Parked), None);
    assert_eq!(
        watched.reports(5301, &Outcome::Parked).unwrap().condition.unwrap().reason,
        Reason::DeletionSlow
    );
}
