//! Tracks what was reported about each PeerPod *(no client)*, so that a report is written once; and since when its deletion could proceed,
//! and the number of attempts, so that a slow deletion is reported. No decision depends on it. If it is lost, reports are repeated.

use std::{collections::HashMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use operator_kit::{Message, metrics::Counted};
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::{
    conditions::{ConditionUpdate, slow},
    decide::{Decision, Wait},
    outcome::{Outcome, StatusUpdate},
    reasons::Reason,
};
use crate::{api::v1alpha1::PeerPod, metrics::Metrics};

/// What is stored between two reconciles. PeerPods without problems have no entry.
pub(super) struct ReportTracker {
    slow_after: SignedDuration,
    metrics: Metrics,
    table: Mutex<HashMap<ObjectRef<PeerPod>, Entry>>,
}

#[derive(Default)]
struct Entry {
    /// When the cloud accepted the deletion of the VM, for a PeerPod that is not being deleted itself: a newer one replaced it.
    accepted: Option<Timestamp>,
    /// Until when the Pod needed the VM, another start of it was under way, or developer mode kept the VM, as far as is known.
    kept_until: Option<Timestamp>,
    /// Reconciles since then.
    attempts: u32,
    /// What was logged last: the outcome, and the reason in the condition.
    logged: Option<(&'static str, Option<Reason>)>,
    /// What was reported about a slow deletion.
    reported: Option<Reported>,
    /// The reason in the condition, by which the metrics count the PeerPod as held until this is dropped.
    held: Option<(Reason, Counted)>,
}

/// A reconcile that ended.
#[derive(Clone, Copy)]
pub(super) struct Ended<'a> {
    /// How.
    pub(super) outcome: &'a Outcome<'a>,
    /// Since when the VM's deletion is due, if it is.
    pub(super) deleted: Option<Timestamp>,
    /// Why a person must act, as the status says until now.
    pub(super) stalled: Option<Reason>,
    /// The next one starts after this time at the latest.
    pub(super) again: Duration,
    /// When it ended.
    pub(super) now: Timestamp,
}

struct Reported {
    at: Timestamp,
    outcome: &'static str,
    condition: ConditionUpdate,
}

impl ReportTracker {
    /// Reports deletions that take longer than `slow_after`, and repeats the report after each further such period.
    pub(super) fn new(slow_after: Duration, metrics: Metrics) -> Self {
        let slow_after = SignedDuration::try_from(slow_after).unwrap_or(SignedDuration::MAX);
        Self { slow_after, metrics, table: Mutex::default() }
    }

    /// The report about a reconcile. `None` leaves the status as it is.
    pub(super) fn ended(&self, key: &ObjectRef<PeerPod>, ended: Ended<'_>) -> Option<StatusUpdate> {
        let mut table = self.table.lock();
        if let Outcome::Decided(Decision::Nothing) = ended.outcome {
            remove(&mut table, key);
            return Some(StatusUpdate { condition: None, repeat: false });
        }
        let entry = table.entry(key.clone()).or_default();
        let update = entry.update(ended, self.slow_after);
        let condition = update.as_ref().and_then(|update| update.condition.as_ref());
        entry.log(ended.outcome, condition, ended.again);
        match (&update, ended.stalled) {
            (Some(_), _) => entry.count_held(condition.map(|condition| condition.reason), &self.metrics),
            (None, Some(reason)) => entry.count_held(Some(reason), &self.metrics),
            (None, None) => {}
        }
        update
    }

    /// Forgets a PeerPod that was removed, or that this process no longer reconciles.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        remove(&mut self.table.lock(), key);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.table.lock().retain(|key, _| exists(key));
    }
}

/// Removes an entry. An empty map gives back the memory that thousands of entries took.
fn remove(table: &mut HashMap<ObjectRef<PeerPod>, Entry>, key: &ObjectRef<PeerPod>) {
    if table.remove(key).is_some() && table.is_empty() {
        *table = HashMap::new();
    }
}

impl Entry {
    /// Takes in how a reconcile ended, and returns the report about it.
    fn update(&mut self, ended: Ended<'_>, slow_after: SignedDuration) -> Option<StatusUpdate> {
        let Ended { outcome, again, now, .. } = ended;
        self.attempts = self.attempts.saturating_add(1);
        let deleted = ended.deleted.or_else(|| self.accepted(outcome, now));
        if matches!(outcome, Outcome::Parked) && ended.stalled.is_some() {
            // While it waits for its turn, nothing shows that the person has acted.
            return None;
        }
        let slow = deleted.filter(|deleted| now > self.slow_at(*deleted, slow_after));
        let state = outcome.state(self.attempts, next_at(now, again));
        let update = if let (Some(deleted), Some(state)) = (slow, state) {
            Some(self.still_slow(deleted, &state, ended, slow_after))
        } else {
            self.reported = None;
            outcome.update()
        };
        let reason = update.as_ref().and_then(|it| it.condition.as_ref()).map(|it| it.reason);
        let is_starting = matches!(outcome, Outcome::Decided(Decision::Wait(Wait::Start)));
        if is_starting || reason.is_some_and(Reason::keeps_vm) {
            (self.kept_until, self.attempts) = (Some(now), 0);
        }
        update
    }

    /// Since when the cloud deletes the VM, by this outcome `now` or by an earlier one.
    fn accepted(&mut self, outcome: &Outcome, now: Timestamp) -> Option<Timestamp> {
        match outcome {
            Outcome::Decided(Decision::Wait(Wait::VmDeletion(_))) => {
                if self.accepted.is_none() {
                    (self.accepted, self.attempts) = (Some(now), 1);
                }
                self.accepted
            }
            Outcome::Decided(Decision::Retry(_)) | Outcome::Failed(_) | Outcome::Parked => self.accepted,
            Outcome::Decided(_) => {
                self.accepted = None;
                None
            }
        }
    }

    /// When a deletion becomes slow. The time during which the VM was to stay does not count.
    fn slow_at(&self, deleted: Timestamp, slow_after: SignedDuration) -> Timestamp {
        after(self.kept_until.map_or(deleted, |until| until.max(deleted)), slow_after)
    }

    /// The condition of a slow deletion: the same text until the outcome changes or the report is due again.
    fn still_slow(
        &mut self,
        deleted: Timestamp,
        state: &Message,
        ended: Ended<'_>,
        slow_after: SignedDuration,
    ) -> StatusUpdate {
        let (outcome, now) = (ended.outcome.as_str(), ended.now);
        match &self.reported {
            Some(reported) if reported.outcome == outcome && now < after(reported.at, slow_after) => {
                StatusUpdate { condition: Some(reported.condition.clone()), repeat: false }
            }
            _ => {
                let condition = slow(deleted, state);
                self.reported = Some(Reported { at: now, outcome, condition: condition.clone() });
                StatusUpdate { condition: Some(condition), repeat: true }
            }
        }
    }

    /// Logs the outcome, unless the last log was the same; a repetition is logged at debug level.
    fn log(&mut self, outcome: &Outcome, condition: Option<&ConditionUpdate>, again: Duration) {
        if matches!(outcome, Outcome::Parked) && condition.is_none() {
            // The next decision is compared with the last one.
            return outcome.log(None, again);
        }
        let (label, reason) = (outcome.as_str(), condition.map(|condition| condition.reason));
        let was_slow = self.logged.is_some_and(|(_, reason)| reason == Some(Reason::DeletionSlow));
        if self.logged.replace((label, reason)) == Some((label, reason)) {
            debug!(result = label, reason = reason.map(Reason::as_str), "as before");
            return;
        }
        match condition.filter(|condition| condition.reason == Reason::DeletionSlow) {
            Some(ConditionUpdate { reason, message }) if was_slow => {
                debug!(result = label, reason = reason.as_str(), "{}", message.for_log());
            }
            Some(ConditionUpdate { reason, message }) => {
                warn!(result = label, reason = reason.as_str(), "{}", message.for_log());
            }
            None => outcome.log(condition, again),
        }
    }

    fn count_held(&mut self, reason: Option<Reason>, metrics: &Metrics) {
        if self.held.as_ref().map(|(reason, _)| *reason) != reason {
            self.held = reason.map(|reason| (reason, metrics.held(reason.as_str())));
        }
    }
}

/// When the next reconcile starts at the latest, to the second.
fn next_at(now: Timestamp, again: Duration) -> Timestamp {
    let next = after(now, SignedDuration::try_from(again).unwrap_or(SignedDuration::MAX));
    Timestamp::from_second(next.as_second()).unwrap_or(now)
}

fn after(moment: Timestamp, pause: SignedDuration) -> Timestamp {
    moment.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
