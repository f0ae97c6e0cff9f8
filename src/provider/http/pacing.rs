//! How many requests a second a cloud takes.
//!
//! Nothing is held back until the cloud refuses a request because there were too many. What it took in the second before is
//! then the rate, and requests leave one by one in that rhythm. A rate that brought no refusal for a while grows.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::Pace;

/// Over which time answers are counted, and how long a rate holds at least.
const WINDOW: Duration = Duration::from_secs(1);

/// More answers within [`WINDOW`] are not counted.
const COUNTED: usize = 1000;

/// The part of what the cloud took that is asked of it.
const CAUTION: f64 = 0.95;

/// No rate is lower, in requests a second.
const LEAST: f64 = 0.5;

/// How long a rate must have brought no refusal until it grows.
const CALM: Duration = Duration::from_secs(300);

/// By which factor a rate grows.
const GROWTH: f64 = 1.1;

/// Nobody waits longer for a turn.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// The rates of one cloud.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    read: Mutex<Rhythm>,
    write: Mutex<Rhythm>,
}

#[derive(Debug, Default)]
struct Rhythm {
    /// When the cloud took a request, within the last [`WINDOW`].
    answers: VecDeque<Instant>,
    learnt: Option<Learnt>,
}

#[derive(Clone, Copy, Debug)]
struct Learnt {
    /// Requests a second.
    rate: f64,
    since: Instant,
    /// When the next request may leave.
    next: Instant,
}

impl Pacing {
    /// Waits until a request may leave. `Err` says how long the wait would be, if that is too long.
    pub(super) async fn turn(&self, pace: Pace) -> Result<(), Duration> {
        let turn = self.with(pace, |rhythm| rhythm.turn(Instant::now()))?;
        if let Some(turn) = turn {
            sleep_until(turn).await;
        }
        Ok(())
    }

    /// The cloud took a request.
    pub(super) fn answered(&self, pace: Pace) {
        self.with(pace, |rhythm| rhythm.answered(Instant::now()));
    }

    /// The cloud refused a request because there were too many.
    pub(super) fn refused(&self, pace: Pace) {
        self.with(pace, |rhythm| rhythm.refused(Instant::now()));
    }

    fn with<T>(&self, pace: Pace, change: impl FnOnce(&mut Rhythm) -> T) -> T {
        let rhythm = match pace {
            Pace::Read => &self.read,
            Pace::Write => &self.write,
        };
        change(&mut rhythm.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Rhythm {
    fn turn(&mut self, now: Instant) -> Result<Option<Instant>, Duration> {
        let Some(learnt) = &mut self.learnt else { return Ok(None) };
        if now.saturating_duration_since(learnt.since) >= CALM {
            *learnt = Learnt { rate: learnt.rate * GROWTH, since: now, ..*learnt };
        }
        let turn = learnt.next.max(now);
        let wait = turn.saturating_duration_since(now);
        if wait > LONGEST_WAIT {
            return Err(wait);
        }
        learnt.next = turn + Duration::from_secs_f64(1.0 / learnt.rate);
        Ok(Some(turn))
    }

    fn answered(&mut self, now: Instant) {
        self.forget(now);
        if self.answers.len() < COUNTED {
            self.answers.push_back(now);
        }
    }

    fn refused(&mut self, now: Instant) {
        self.forget(now);
        // Requests that left before the rate was learnt are still being refused.
        if self.learnt.is_some_and(|learnt| now.saturating_duration_since(learnt.since) < WINDOW) {
            return;
        }
        let taken = u32::try_from(self.answers.len()).unwrap_or(u32::MAX);
        let rate = (f64::from(taken) * CAUTION / WINDOW.as_secs_f64()).max(LEAST);
        let before = self.learnt.map_or(f64::INFINITY, |learnt| learnt.rate * CAUTION);
        let next = self.learnt.map_or(now, |learnt| learnt.next);
        self.learnt = Some(Learnt { rate: rate.min(before).max(LEAST), since: now, next });
    }

    fn forget(&mut self, now: Instant) {
        while self.answers.front().is_some_and(|first| now.saturating_duration_since(*first) > WINDOW) {
            self.answers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that takes `rate` requests a second, spread evenly, and `burst` at once.
    struct Server {
        rate: f64,
        burst: f64,
        tokens: f64,
        at: Instant,
    }

    impl Server {
        fn takes(&mut self, now: Instant) -> bool {
            let passed = now.saturating_duration_since(self.at).as_secs_f64();
            (self.tokens, self.at) = ((self.tokens + passed * self.rate).min(self.burst), now);
            let takes = self.tokens >= 1.0;
            self.tokens -= if takes { 1.0 } else { 0.0 };
            takes
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_while_nothing_was_refused() {
        let (pacing, begin) = (Pacing::default(), Instant::now());
        for _ in 0..500 {
            pacing.turn(Pace::Read).await.unwrap();
            pacing.answered(Pace::Read);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_learnt_and_then_hardly_anything_is_refused() {
        let pacing = Pacing::default();
        let mut server = Server { rate: 20.0, burst: 20.0, tokens: 20.0, at: Instant::now() };
        let (mut taken, mut refused_late) = (0, 0);
        let learnt = Instant::now() + Duration::from_secs(10);
        let mut steady = None;
        while taken < 1000 {
            // Unlearnt, a hundred a second are asked for.
            if pacing.read.lock().unwrap().learnt.is_none() {
                sleep_until(Instant::now() + Duration::from_millis(10)).await;
            }
            pacing.turn(Pace::Read).await.unwrap();
            if server.takes(Instant::now()) {
                taken += 1;
                pacing.answered(Pace::Read);
            } else {
                refused_late += u32::from(steady.is_some());
                pacing.refused(Pace::Read);
            }
            if steady.is_none() && Instant::now() > learnt {
                steady = Some(taken);
            }
        }
        let time = learnt.elapsed().as_secs_f64();
        let rate = f64::from(1000 - steady.unwrap()) / time;
        assert!(rate > 18.0, "{rate} requests a second of 20");
        assert_eq!(refused_late, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_and_writes_have_rates_of_their_own_and_a_long_wait_is_told() {
        let pacing = Pacing::default();
        pacing.refused(Pace::Write);
        let begin = Instant::now();
        let mut told = None;
        for _ in 0..100 {
            if let Err(wait) = pacing.with(Pace::Write, |rhythm| rhythm.turn(Instant::now())) {
                told = Some(wait);
                break;
            }
        }
        assert!(told.is_some_and(|wait| wait > LONGEST_WAIT && wait < 2 * LONGEST_WAIT), "{told:?}");
        pacing.turn(Pace::Read).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_grows_when_nothing_was_refused_for_a_while() {
        let pacing = Pacing::default();
        for _ in 0..10 {
            pacing.answered(Pace::Read);
        }
        pacing.refused(Pace::Read);
        let rate = || pacing.read.lock().unwrap().learnt.unwrap().rate;
        let before = rate();
        assert!((before - 9.5).abs() < 0.001, "{before}");
        tokio::time::advance(CALM).await;
        pacing.turn(Pace::Read).await.unwrap();
        assert!(rate() > before);
    }
}
