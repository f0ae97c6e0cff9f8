//! Learns how many requests a second a cloud takes, from its refusals *(no client)*.
//!
//! There is no rate until the first refusal. From then on it is learnt in phases:
//!
//! 1. *Search*. Refusals arrive earlier than answers, so the first one says little. The rate starts low and grows every second
//!    until the cloud refuses again.
//! 2. *Measure*. The cloud has no burst left now. The client measures for some seconds how many requests the cloud takes at that
//!    rate.
//! 3. *Probe*. The measured rate grows with each request until the next refusal. An early refusal confirms the measured rate. A
//!    cloud without bursts, which wants a gap between requests, refused every second request before and takes more now.
//! 4. *Hold*. A rate without a refusal for a while grows, and faster each time. At the next refusal it is measured again.
//!
//! A cloud that says how long to wait has a new burst after that time, so nothing can be measured then. But its burst was spent at
//! each refusal, so between two of them it took no more than its rate allows:
//!
//! - *Approach*. The rate is the most that the cloud took between two refusals, and falls slowly if it takes less. It grows soon, and
//!   after each refusal later.
//!
//! A low rate also grows while no request waits, except during a measurement: it may be so low that too little work is under way for
//! one to wait.
//!
//! While the cloud takes nothing at all, other clients use its whole quota. That says nothing about the rate, so the search
//! begins again.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::Turn;

/// How long the client remembers the requests that the cloud took.
const WINDOW: Duration = Duration::from_secs(10);

/// At the first refusal, the requests that the cloud took within this time count.
const RECENT: Duration = Duration::from_secs(2);

/// More requests than these are not remembered.
const COUNTED: usize = 1000;

/// The share of the cloud's capacity that the client uses.
pub(super) const CAUTION: f64 = 0.97;

/// No rate is lower, in requests a second.
pub(super) const LEAST: f64 = 0.5;

/// The least rate after the first refusal, in requests a second.
pub(super) const START: f64 = 5.0;

/// The factor by which the rate then grows, and how often, until the next refusal.
const SEARCH: f64 = 1.5;
pub(super) const STEP: Duration = Duration::from_secs(1);

/// A measurement ends after this many requests and the shortest time, or after the longest time.
const ENOUGH: u32 = 60;
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(6);

/// The factor by which each request raises a measured rate, until the next refusal.
const PROBE: f64 = 1.012;

/// A rate that rose by more than this factor was not the cloud's limit. The search overshoots by [`SEARCH`] at most, so a cloud
/// that wants a gap takes at least 4/3 of what it took of every second request. A cloud with a burst refuses before 1.2.
pub(super) const RISEN: f64 = 1.3;

/// How long a rate must have caused no refusal until it grows, and by which factor. Each growth squares the factor of the next
/// one, up to the most: a rate that was measured while others used the quota is far too low.
pub(super) const CALM: Duration = Duration::from_secs(300);
pub(super) const GROWTH: f64 = 1.1;
const MOST_GROWTH: f64 = 2.0;

/// How long a rate must have caused no refusal in the first approach. This doubles with each refusal, up to [`CALM`].
const APPROACH: Duration = Duration::from_secs(5);

/// About how long a request may wait for its turn, if each work under way has one that waits. A call with eight requests then ends
/// within its deadline, a minute.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// So much work may always be under way. Two requests of a burst may leave at once, so only a third one waits and shows that a low rate
/// should grow.
pub(super) const LEAST_AT_ONCE: usize = 3;

/// With so much work under way requests wait, and show by themselves that a rate is too low.
pub(super) const UNLIMITED: usize = 160;

/// A request among those of its phase. Many more may leave until it is answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// At which rate it left. 0 if none was learnt.
    rate: f64,
    /// How many had left, with this one.
    number: u32,
}

#[derive(Debug, Default)]
pub(super) struct Rhythm {
    /// When the requests left that the cloud took within the last [`WINDOW`].
    taken: VecDeque<Instant>,
    pub(super) learnt: Option<Learnt>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Learnt {
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) phase: Phase,
    /// When the phase began. A refusal of a request that left before says nothing about it.
    begun: Instant,
    /// When the rate last changed.
    changed: Instant,
    /// How many requests left in this phase.
    sent: u32,
    /// When the last request left, or should have left: a late request does not delay those behind it.
    left: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    Search,
    Measure,
    Probe {
        /// The rate that was measured.
        measured: f64,
    },
    Hold {
        /// How much earlier than its turn a request may leave after a late one, as a share of the gap between two requests.
        early: f64,
        /// The factor by which the rate grows next.
        growth: f64,
    },
    Approach {
        /// The most that the cloud took between two refusals, in requests a second.
        most: f64,
        /// How long the rate must have caused no refusal until it grows.
        calm: Duration,
        /// The factor by which the rate grows next.
        growth: f64,
    },
}

impl Rhythm {
    /// How much work may be under way at the present rate, if there is one.
    pub(super) fn most_at_once(&mut self, now: Instant) -> Option<usize> {
        self.conclude(now);
        let learnt = self.learnt.as_mut()?;
        // So little work may be under way because of this rate that no request waits and shows that it is too low.
        if learnt.most_at_once() < UNLIMITED {
            learnt.recover(now);
        }
        Some(learnt.most_at_once())
    }

    /// Lets a request leave, or says when it may.
    pub(super) fn turn(&mut self, now: Instant) -> Result<Sent, Instant> {
        self.conclude(now);
        let Some(learnt) = self.learnt.as_mut() else { return Ok(Sent::default()) };
        if learnt.next() > now {
            // A rate at which no request has to wait shows nothing about a higher one.
            learnt.grow(now);
            return Err(learnt.next());
        }
        let early = if let Phase::Hold { early, .. } = learnt.phase { early } else { 1.0 - CAUTION };
        let earliest = now.checked_sub(Duration::from_secs_f64(early / learnt.rate)).unwrap_or(now);
        learnt.left = learnt.next().max(earliest);
        learnt.sent = learnt.sent.saturating_add(1);
        Ok(Sent { rate: learnt.rate, number: learnt.sent })
    }

    pub(super) fn answered(&mut self, left: Instant, now: Instant) {
        while self.taken.len() >= COUNTED
            || self.taken.front().is_some_and(|first| now.saturating_duration_since(*first) > WINDOW)
        {
            self.taken.pop_front();
        }
        self.taken.push_back(left);
    }

    pub(super) fn refused(&mut self, turn: Turn, says_how_long: bool, now: Instant) {
        let Some(Learnt { rate, phase, begun, .. }) = self.learnt else {
            let recent = self.taken.iter().filter(|it| now.saturating_duration_since(**it) <= RECENT).count();
            let rate = number(recent) * CAUTION / RECENT.as_secs_f64();
            return self.enter(Phase::Search, rate.max(START), now);
        };
        if turn.left <= begun {
            return;
        }
        let refused = turn.sent.rate;
        match phase {
            Phase::Approach { most, calm, .. } => self.approach(turn, begun, most, (2 * calm).min(CALM), now),
            _ if says_how_long => self.approach(turn, begun, 0.0, APPROACH, now),
            Phase::Measure => {}
            Phase::Search | Phase::Hold { .. } => self.enter(Phase::Measure, rate, now),
            // The cloud wants a gap, so no request may leave early. It took the request before.
            Phase::Probe { measured } if refused > measured * RISEN => {
                self.enter(Phase::hold(1.0 - CAUTION), refused * CAUTION / PROBE, now);
            }
            // Two requests of a burst may leave at once.
            Phase::Probe { measured } => self.enter(Phase::hold(1.0), measured, now),
        }
    }

    /// Holds what the cloud took between two refusals, the last of them of this request, or nearly what it took at most before.
    fn approach(&mut self, turn: Turn, begun: Instant, most: f64, calm: Duration, now: Instant) {
        let Turn { left, sent: Sent { rate, number }, .. } = turn;
        let taken = number.saturating_sub(1);
        if taken == 0 {
            return self.enter(Phase::Search, rate.min(START), now);
        }
        let between = left.saturating_duration_since(begun);
        // The first requests of a phase may leave at once.
        let took = (f64::from(taken) / between.as_secs_f64()).min(rate);
        let most = took.max(most / GROWTH);
        self.enter(Phase::Approach { most, calm, growth: GROWTH }, most * CAUTION, now);
    }

    /// Ends a measurement that has lasted long enough.
    fn conclude(&mut self, now: Instant) {
        let Some(Learnt { rate, phase: Phase::Measure, begun, sent, .. }) = self.learnt else { return };
        let passed = now.saturating_duration_since(begun);
        let taken = || self.taken.iter().filter(|left| **left > begun);
        // Where nothing is taken, there is no more to measure.
        if passed < SHORTEST || (passed < LONGEST && sent < ENOUGH && taken().next().is_some()) {
            return;
        }
        let between = taken().min().zip(taken().max()).map(|(first, last)| last.duration_since(*first));
        match between.filter(|between| !between.is_zero()) {
            None => self.enter(Phase::Search, rate.min(START), now),
            Some(between) => {
                let measured = number(taken().count() - 1) / between.as_secs_f64();
                let measured = (measured.min(rate) * CAUTION).max(LEAST);
                self.enter(Phase::Probe { measured }, measured, now);
            }
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, rate: f64, now: Instant) {
        let left = self.learnt.map_or(now, |learnt| learnt.left);
        self.learnt = Some(Learnt { rate: rate.max(LEAST), phase, begun: now, changed: now, sent: 0, left });
    }
}

impl Phase {
    pub(super) fn hold(early: f64) -> Self {
        Self::Hold { early, growth: GROWTH }
    }
}

impl Learnt {
    /// The time between two requests.
    fn gap(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.rate)
    }

    /// How much work may be under way.
    fn most_at_once(&self) -> usize {
        let most = LONGEST_WAIT.as_micros() / self.gap().as_micros().max(1);
        usize::try_from(most).unwrap_or(usize::MAX).max(LEAST_AT_ONCE)
    }

    /// When the next request may leave.
    fn next(&self) -> Instant {
        self.left + self.gap()
    }

    /// Raises a rate that has caused no refusal for a while.
    fn recover(&mut self, now: Instant) {
        if self.phase == Phase::Measure || now.saturating_duration_since(self.changed) < CALM {
            return;
        }
        // A search goes on when requests wait again. A probe would grow with each of them, long after its measurement.
        if let Phase::Probe { .. } = self.phase {
            self.phase = Phase::hold(1.0 - CAUTION);
        }
        self.grow(now);
    }

    /// Raises the rate, if it is time for it.
    fn grow(&mut self, now: Instant) {
        let (pause, growth) = match self.phase {
            Phase::Search => (STEP, SEARCH),
            Phase::Measure => return,
            Phase::Probe { .. } => (Duration::ZERO, PROBE),
            Phase::Hold { growth, .. } => (CALM, growth),
            Phase::Approach { calm, growth, .. } => (calm, growth),
        };
        if now.saturating_duration_since(self.changed) < pause {
            return;
        }
        (self.rate, self.changed) = (self.rate * growth, now);
        if let Phase::Hold { growth, .. } | Phase::Approach { growth, .. } = &mut self.phase {
            *growth = growth.powi(2).min(MOST_GROWTH);
        }
    }
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
