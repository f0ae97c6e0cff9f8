//! The next step of a candidate for a lease *(no client)*.
//!
//! A candidate trusts no wall clock, neither its own nor the holder's. By its own monotonic clock it counts how long the Lease is
//! unchanged, from the moment that it saw it. The holder counts from before it sent its write, and gives up [`DURATION`] −
//! [`RENEW_DEADLINE`] before another may begin. So no two hold the lease at once, however long messages take and whatever the
//! clocks say, if clocks run about equally fast (a difference of a third is tolerated).
//!
//! That clock does not advance while the machine is suspended (`CLOCK_MONOTONIC`). A holder that wakes up continues for the rest
//! of its time, although another may hold the lease by then. Its next write, due within 2 s, detects that. Machines that run
//! Kubernetes are usually not suspended. If one is, two holders may act at once for that time, and their work must tolerate it.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// How long others wait for a holder that no longer renews.
pub const DURATION: Duration = Duration::from_secs(15);

/// How long a holder acts after the start of its last write that succeeded.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The time from the start of one write to the start of the next one.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The content of a Lease. If two are equal, the holder did not renew it between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The holder; empty if there is none.
    pub(super) holder: String,
    /// How long the holder wants others to wait, if it says so.
    pub(super) duration: Option<Duration>,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
    /// How often the holder changed.
    pub(super) transitions: i32,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Write the Lease, as [`Candidate::claim`] says: to take it, or to keep it.
    Write,
    /// Nothing, until this moment or until the Lease changes.
    Wait(Instant),
    /// Act no more.
    Lost(Loss),
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Loss {
    #[error("renewing the lease failed for {RENEW_DEADLINE:?}")]
    Expired,
    #[error("{0} took it")]
    Taken(String),
    #[error("another process took the lease")]
    Cleared,
}

/// One that wants a lease, or holds it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    identity: String,
    seen: Option<Seen>,
    /// While it holds the lease: until when.
    until: Option<Instant>,
    /// No write starts before.
    rests_until: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Seen {
    record: Record,
    /// When the record was first seen as it is.
    since: Instant,
}

impl Candidate {
    /// A candidate that has seen nothing yet. No two may ever have the same identity.
    pub(super) fn new(identity: String) -> Self {
        Self { identity, seen: None, until: None, rests_until: None }
    }

    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Until when it may act, if it holds the lease.
    pub(super) fn holds_until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether it has ever known the Lease's content.
    pub(super) fn has_seen(&self) -> bool {
        self.seen.is_some()
    }

    /// The holder, as far as is known; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| &seen.record.holder)
    }

    /// Notes the Lease's content; `None`: it does not exist. If a Lease is removed, its holder keeps the time that it would have
    /// had, because it does not know yet; also if another program creates it again, without any content. (A candidate that starts
    /// just then knows no holder, and does not wait.)
    pub(super) fn observe(&mut self, now: Instant, record: Option<Record>) {
        // What a holder released still says when that was.
        let record = record.filter(|record| *record != Record::default());
        let record = match (record, &self.seen) {
            (Some(record), Some(seen)) if record == seen.record => return,
            (None, Some(_)) => return,
            (record, _) => record.unwrap_or_default(),
        };
        if self.until.is_none() {
            // The reason to wait, another process's write, is known now.
            self.rests_until = None;
        }
        self.seen = Some(Seen { record, since: now });
    }

    pub(super) fn decide(&self, now: Instant) -> Step {
        let wait = |until: Instant| if now < until { Step::Wait(until) } else { Step::Write };
        let rests_until = self.rests_until.unwrap_or(now);
        let Some(Seen { record, since }) = &self.seen else { return Step::Wait(now + RENEW_DEADLINE) };
        let own = record.holder == self.identity;
        match self.until {
            Some(_) if !own && record.holder.is_empty() => Step::Lost(Loss::Cleared),
            Some(_) if !own => Step::Lost(Loss::Taken(record.holder.clone())),
            Some(until) if now >= until => Step::Lost(Loss::Expired),
            Some(until) => wait(rests_until.min(until)),
            // Its own record: from a write that seemed lost, or from a term that ended without a successor.
            None if own || record.holder.is_empty() => wait(rests_until),
            // A holder of this program acts for its own duration, whatever someone has written into the Lease.
            None => wait(rests_until.max(*since + record.duration.map_or(DURATION, |it| it.max(DURATION)))),
        }
    }

    /// What to write to take or keep the lease. It must replace exactly what was observed last.
    pub(super) fn claim(&self, wall: Timestamp) -> Record {
        let before = self.seen.as_ref().map(|seen| &seen.record);
        let (acquired, transitions) = match before {
            Some(own) if own.holder == self.identity => (own.acquired, own.transitions),
            Some(other) if *other != Record::default() => (Some(wall), other.transitions.saturating_add(1)),
            _ => (Some(wall), 0),
        };
        Record {
            holder: self.identity.clone(),
            duration: Some(DURATION),
            acquired,
            renewed: Some(wall),
            transitions,
        }
    }

    /// What to write to release the lease, so that others need not wait.
    pub(super) fn resignation(&self, wall: Timestamp) -> Record {
        Record { holder: String::new(), ..self.claim(wall) }
    }

    /// The write that started at `started` succeeded; this is the Lease's content since.
    pub(super) fn wrote(&mut self, started: Instant, now: Instant, record: Record) {
        self.seen = Some(Seen { record, since: now });
        self.rests_until = Some(started + RETRY_PERIOD);
        // A term that ran out before the answer arrived has ended, and its work was dropped.
        if self.until.is_none_or(|until| now < until) {
            self.until = Some(started + RENEW_DEADLINE);
        }
    }

    /// The write that started at `started` failed, or its outcome is unknown.
    pub(super) fn failed(&mut self, started: Instant) {
        self.rests_until = Some(started + RETRY_PERIOD);
    }

    /// It acts no more.
    pub(super) fn step_down(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests;
