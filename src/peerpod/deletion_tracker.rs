//! Tracks deletions for reports *(no client)*: what was reported about each, since when it could proceed, and the number of
//! attempts. No decision depends on it. If it is lost, reports are repeated.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::runtime::{events::EventType, reflector::ObjectRef};
use operator_kit::{Message, api_call::ApiError, metrics::Counted};
use tracing::{debug, info, warn};

use super::{
    conditions::{ConditionUpdate, Reason, condition_update, slow},
    decide::{Decision, Wait},
};
use crate::{api::v1alpha1::PeerPod, metrics::Metrics, provider::ErrorClass};

/// What is stored between two reconciles. PeerPods without problems have no entry.
pub(super) struct DeletionTracker {
    slow_after: SignedDuration,
    metrics: Metrics,
    table: Mutex<HashMap<ObjectRef<PeerPod>, Entry>>,
}

#[derive(Default)]
struct Entry {
    /// Until when the Pod needed the VM, as far as is known.
    kept_until: Option<Timestamp>,
    /// Reconciles since then.
    attempts: u32,
    /// What was logged last: the outcome, and the reason in the condition.
    logged: Option<(&'static str, Option<Reason>)>,
    /// What was reported about a slow deletion.
    reported: Option<Reported>,
    held: Option<(Reason, Counted)>,
}

struct Reported {
    at: Timestamp,
    outcome: &'static str,
    condition: ConditionUpdate,
}

/// How a reconcile ended.
pub(super) enum Outcome<'a> {
    Decided(&'a Decision),
    /// The API server failed, so there was no decision, or it was not applied.
    Failed(&'a ApiError),
    /// All slots of the cloud are taken, so there was no decision.
    Parked,
}

/// What to write to the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatusUpdate {
    /// The condition; `None` clears it.
    pub(super) condition: Option<ConditionUpdate>,
    /// Whether to send an event even if the reason is not new.
    pub(super) repeat: bool,
}

impl DeletionTracker {
    /// Reports deletions that take longer than `slow_after`, and repeats the report after each further such period.
    pub(super) fn new(slow_after: Duration, metrics: Metrics) -> Self {
        let slow_after = SignedDuration::try_from(slow_after).unwrap_or(SignedDuration::MAX);
        Self { slow_after, metrics, table: Mutex::default() }
    }

    /// The report about a reconcile that ended; the next one starts after `again` at the latest. `None` leaves the status as it is.
    pub(super) fn ended(
        &self,
        key: &ObjectRef<PeerPod>,
        deleted: Option<Timestamp>,
        outcome: &Outcome,
        again: Duration,
        now: Timestamp,
    ) -> Option<StatusUpdate> {
        let mut table = self.table();
        if let Outcome::Decided(Decision::Nothing) = outcome {
            remove(&mut table, key);
            return Some(StatusUpdate { condition: None, repeat: false });
        }
        let entry = table.entry(key.clone()).or_default();
        entry.attempts = entry.attempts.saturating_add(1);
        let slow_at = deleted.map(|deleted| (deleted, self.slow_at(Some(entry), deleted)));
        let next = now.saturating_add(SignedDuration::try_from(again).unwrap_or(SignedDuration::MAX));
        let next = Timestamp::from_second(next.unwrap_or(now).as_second()).unwrap_or(now);
        let state = outcome.state(entry.attempts, next);
        let update = match (slow_at, state) {
            (Some((deleted, slow_at)), Some(state)) if now > slow_at => {
                Some(self.still_slow(entry, deleted, outcome.as_str(), &state, now))
            }
            _ => {
                entry.reported = None;
                match outcome {
                    Outcome::Decided(decision) => {
                        Some(StatusUpdate { condition: condition_update(decision), repeat: false })
                    }
                    Outcome::Failed(_) | Outcome::Parked => None,
                }
            }
        };
        if let Outcome::Decided(Decision::Wait(Wait::PodRuns | Wait::PodEnds(_))) = outcome {
            (entry.kept_until, entry.attempts) = (Some(now), 0);
        }
        let condition = update.as_ref().and_then(|update| update.condition.as_ref());
        entry.log(outcome, condition, again);
        if let Some(update) = &update {
            entry.count_held(update.condition.as_ref().map(|condition| condition.reason), &self.metrics);
        }
        update
    }

    /// The condition of a slow deletion: the same text until the outcome changes or the report is due again.
    fn still_slow(
        &self,
        entry: &mut Entry,
        deleted: Timestamp,
        outcome: &'static str,
        state: &Message,
        now: Timestamp,
    ) -> StatusUpdate {
        match &entry.reported {
            Some(reported) if reported.outcome == outcome && now < self.after(reported.at) => {
                StatusUpdate { condition: Some(reported.condition.clone()), repeat: false }
            }
            _ => {
                let condition = slow(deleted, state);
                entry.reported = Some(Reported { at: now, outcome, condition: condition.clone() });
                StatusUpdate { condition: Some(condition), repeat: true }
            }
        }
    }

    /// Forgets a PeerPod that was removed, or that this process no longer reconciles.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        remove(&mut self.table(), key);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.table().retain(|key, _| exists(key));
    }

    /// When a deletion becomes slow. The time during which the Pod needed the VM does not count.
    fn slow_at(&self, entry: Option<&Entry>, deleted: Timestamp) -> Timestamp {
        self.after(entry.and_then(|entry| entry.kept_until).map_or(deleted, |until| until.max(deleted)))
    }

    fn after(&self, moment: Timestamp) -> Timestamp {
        moment.saturating_add(self.slow_after).unwrap_or(Timestamp::MAX)
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ObjectRef<PeerPod>, Entry>> {
        // Each entry is whole at any time.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes an entry. An empty map gives back the memory that thousands of entries took.
fn remove(table: &mut HashMap<ObjectRef<PeerPod>, Entry>, key: &ObjectRef<PeerPod>) {
    if table.remove(key).is_some() && table.is_empty() {
        *table = HashMap::new();
    }
}

impl Entry {
    /// Logs by `write` unless the last log was the same; a repetition is logged at debug level.
    fn logged(&mut self, outcome: &'static str, condition: Option<&ConditionUpdate>, write: impl FnOnce()) {
        let reason = condition.map(|condition| condition.reason);
        let slow_before = self.logged.is_some_and(|(_, reason)| reason == Some(Reason::DeletionSlow));
        let slow = condition.filter(|condition| condition.reason == Reason::DeletionSlow);
        if self.logged.replace((outcome, reason)) == Some((outcome, reason)) {
            debug!(outcome, reason = reason.map(Reason::as_str), "as before");
            return;
        }
        match slow {
            Some(ConditionUpdate { reason, message }) if slow_before => {
                debug!(outcome, reason = reason.as_str(), "{}", message.for_log());
            }
            Some(ConditionUpdate { reason, message }) => {
                warn!(outcome, reason = reason.as_str(), "{}", message.for_log());
            }
            None => write(),
        }
    }

    fn log(&mut self, outcome: &Outcome, condition: Option<&ConditionUpdate>, again: Duration) {
        self.logged(outcome.as_str(), condition, || {
            let decision = match outcome {
                Outcome::Failed(error) => {
                    return warn!(%error, ?again, "the API server failed; the operator tries again");
                }
                Outcome::Parked => return debug!("it waits for its turn at the cloud"),
                Outcome::Decided(decision) => decision,
            };
            let label = decision.as_str();
            match (decision, condition) {
                (Decision::Retry(error), _) if matches!(error.class, ErrorClass::Unsettled { .. }) => {
                    info!(decision = label, ?again, "{}", error.message.for_log());
                }
                (Decision::Retry(error), _) => {
                    let message = error.message.for_log();
                    warn!(decision = label, class = error.class.as_str(), ?again, "{message}");
                }
                (_, Some(ConditionUpdate { reason, message })) => {
                    let message = message.for_log();
                    match reason.event() {
                        EventType::Warning => warn!(decision = label, reason = reason.as_str(), "{message}"),
                        EventType::Normal => info!(decision = label, reason = reason.as_str(), "{message}"),
                    }
                }
                (Decision::Wait(Wait::Start), None) => {
                    info!(
                        decision = label,
                        ?again,
                        "another start of the Pod may still be under way, so all its VMs stay"
                    );
                }
                (_, None) => {
                    info!(
                        decision = label,
                        ?again,
                        "the cloud accepted the deletion; the operator checks again whether the VM is gone"
                    );
                }
            }
        });
    }

    fn count_held(&mut self, reason: Option<Reason>, metrics: &Metrics) {
        if self.held.as_ref().map(|(reason, _)| *reason) != reason {
            self.held = reason.map(|reason| (reason, metrics.held(reason.as_str())));
        }
    }
}

impl Outcome<'_> {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Decided(Decision::Retry(error)) => error.class.as_str(),
            Self::Decided(decision) => decision.as_str(),
            Self::Failed(_) => "api_server",
            Self::Parked => "parked",
        }
    }

    /// The state of a deletion that proceeds without help; `None` if a person must act, which has a condition of its own.
    fn state(&self, attempts: u32, next: Timestamp) -> Option<Message> {
        let attempts = if attempts == 1 { "1 attempt".to_owned() } else { format!("{attempts} attempts") };
        let tried = format!("{attempts}, the next one at {next}");
        match self {
            Self::Decided(Decision::Wait(Wait::VmDeletion(_))) => Some(Message::public(format!(
                "{tried}: the cloud accepted the deletion and still shows the VM"
            ))),
            Self::Decided(Decision::Retry(error)) => match error.class {
                ErrorClass::Transient | ErrorClass::NotFound => {
                    Some(error.message.map(|error| format!("{tried} (transient error): {error}")))
                }
                ErrorClass::Unsettled { .. } => Some(error.message.map(|error| format!("{tried}: {error}"))),
                ErrorClass::Throttled { .. } | ErrorClass::Queued { .. } => {
                    Some(Message::public(format!("{tried}: the cloud asked for fewer calls")))
                }
                ErrorClass::Unauthorized
                | ErrorClass::Refused
                | ErrorClass::Invalid
                | ErrorClass::NotSupported => None,
            },
            Self::Decided(_) => None,
            Self::Failed(error) => Some(error.message().map(|error| format!("{tried}: {error}"))),
            Self::Parked => Some(Message::public(
                "the operator is busy with other VMs of that cloud, which may hang; this one waits for its turn".to_owned(),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
