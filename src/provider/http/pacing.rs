//! How many requests a second a cloud takes.
//!
//! Nothing is held back until the cloud refuses a request because there were too many. From then on requests leave one by one.
//! Refusals arrive earlier than answers, so the first one tells little: the rate starts low and grows every second until the cloud
//! refuses again. What it took in the two seconds before is then the rate. A rate that brought no refusal for a while grows. While the
//! cloud takes nothing at all, other clients use its whole quota. That tells nothing about the rate, so the search begins again.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::Pace;

/// Over which time answers are counted, and how long a rate holds at least.
const WINDOW: Duration = Duration::from_secs(2);

/// More answers within [`WINDOW`] are not counted.
const COUNTED: usize = 1000;

/// The part of what the cloud took that is asked of it.
const CAUTION: f64 = 0.95;

/// No rate is lower, in requests a second.
const LEAST: f64 = 0.5;

/// The least rate after the first refusal, in requests a second.
const START: f64 = 5.0;

/// By which factor the rate then grows, and how often, until the next refusal.
const SEARCH: f64 = 1.5;
const STEP: Duration = Duration::from_secs(1);

/// By which factor one refusal lowers a rate at most, unless the cloud takes nothing at all: then it is [`START`] at most.
const LOWER: f64 = 0.5;

/// How long a rate must have brought no refusal until it grows.
const CALM: Duration = Duration::from_secs(300);

/// By which factor a rate grows.
const GROWTH: f64 = 1.1;

/// Nobody waits longer for a turn.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// The rates of one cloud.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    read: Lane,
    write: Lane,
}

/// Requests of one kind.
#[derive(Debug, Default)]
struct Lane {
    rhythm: Mutex<Rhythm>,
    /// The first in the queue waits by the clock, the others for their turn: so a rate that changes counts for all of them.
    queue: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
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
    /// When the cloud last refused a request that counted.
    refused: Instant,
    /// Whether no refusal has shown yet that the rate is too high.
    searching: bool,
    /// When the last request left.
    left: Instant,
}

impl Pacing {
    /// Waits until a request may leave. `Err` says how long the wait would be, if that is too long.
    pub(super) async fn turn(&self, pace: Pace) -> Result<(), Duration> {
        let lane = self.lane(pace);
        let waiting = Waiting::beside(&lane.waiting);
        if let Some(rate) = lane.with(|rhythm| rhythm.rate(Instant::now())) {
            let others = u32::try_from(waiting.others).unwrap_or(u32::MAX);
            let wait = Duration::from_secs_f64(f64::from(others) / rate);
            if wait > LONGEST_WAIT {
                return Err(wait);
            }
            let _first = lane.queue.lock().await;
            while let Some(turn) = lane.with(|rhythm| rhythm.turn(Instant::now())) {
                sleep_until(turn).await;
            }
        }
        Ok(())
    }

    /// The cloud took a request.
    pub(super) fn answered(&self, pace: Pace) {
        self.lane(pace).with(|rhythm| rhythm.answered(Instant::now()));
    }

    /// The cloud refused a request because there were too many.
    pub(super) fn refused(&self, pace: Pace) {
        self.lane(pace).with(|rhythm| rhythm.refused(Instant::now()));
    }

    fn lane(&self, pace: Pace) -> &Lane {
        match pace {
            Pace::Read => &self.read,
            Pace::Write => &self.write,
        }
    }
}

impl Lane {
    fn with<T>(&self, change: impl FnOnce(&mut Rhythm) -> T) -> T {
        change(&mut self.rhythm.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One that waits, counted until it is dropped.
struct Waiting<'a> {
    all: &'a AtomicUsize,
    others: usize,
}

impl<'a> Waiting<'a> {
    fn beside(all: &'a AtomicUsize) -> Self {
        Self { all, others: all.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rhythm {
    /// The rate in force, if one was learnt.
    fn rate(&mut self, now: Instant) -> Option<f64> {
        let learnt = self.learnt.as_mut()?;
        let (calm, growth) = if learnt.searching { (STEP, SEARCH) } else { (CALM, GROWTH) };
        if now.saturating_duration_since(learnt.since) >= calm {
            // A rate that is hardly used shows nothing about a higher one.
            let used =
                f64::from(u32::try_from(self.answers.len()).unwrap_or(u32::MAX)) / WINDOW.as_secs_f64();
            let most = if learnt.searching { (2.0 * used).max(learnt.rate) } else { f64::INFINITY };
            *learnt = Learnt { rate: (learnt.rate * growth).min(most), since: now, ..*learnt };
        }
        Some(learnt.rate)
    }

    /// When the next request may leave; `None`: now.
    fn turn(&mut self, now: Instant) -> Option<Instant> {
        let rate = self.rate(now)?;
        let learnt = self.learnt.as_mut()?;
        let turn = learnt.left + Duration::from_secs_f64(1.0 / rate);
        if turn > now {
            return Some(turn);
        }
        learnt.left = now;
        None
    }

    fn answered(&mut self, now: Instant) {
        self.forget(now);
        if self.answers.len() < COUNTED {
            self.answers.push_back(now);
        }
    }

    fn refused(&mut self, now: Instant) {
        self.forget(now);
        let taken = u32::try_from(self.answers.len()).unwrap_or(u32::MAX);
        let rate = f64::from(taken) * CAUTION / WINDOW.as_secs_f64();
        self.learnt = Some(match self.learnt {
            None => Learnt { rate: rate.max(START), since: now, refused: now, searching: true, left: now },
            // Requests that left at the former rate are still being refused.
            Some(learnt) if now.saturating_duration_since(learnt.refused) < WINDOW => return,
            Some(learnt) if taken == 0 => {
                let rate = learnt.rate.min(START);
                Learnt { rate, since: now, refused: now, searching: true, left: learnt.left }
            }
            Some(learnt) => {
                // Answers may still be under way, so few of them are no proof of a rate that is much lower.
                let rate = rate.clamp(learnt.rate * LOWER, learnt.rate * CAUTION).max(LEAST);
                Learnt { rate, since: now, refused: now, searching: false, left: learnt.left }
            }
        });
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

    /// Sends a thousand requests from as many tasks as may wait for a cloud. Gives the rate and the refusals after `learnt`.
    async fn thousand(mut server: Server, late: Duration, learnt: Duration) -> (f64, u32) {
        let (pacing, begin) = (Pacing::default(), Instant::now());
        let server = Mutex::new(move || server.takes(Instant::now()));
        let counts = Mutex::new((0, 0, 0));
        let task = async || {
            while counts.lock().unwrap().0 < 1000 {
                pacing.turn(Pace::Read).await.unwrap();
                let takes = server.lock().unwrap()();
                let is_late = begin.elapsed() > learnt;
                if takes {
                    let mut counts = counts.lock().unwrap();
                    (counts.0, counts.1) = (counts.0 + 1, counts.1 + u32::from(is_late));
                } else {
                    counts.lock().unwrap().2 += u32::from(is_late);
                }
                // A refusal comes at once.
                sleep_until(Instant::now() + if takes { late } else { Duration::from_millis(1) }).await;
                if takes { pacing.answered(Pace::Read) } else { pacing.refused(Pace::Read) }
            }
        };
        futures::future::join_all((0..64).map(|_| task())).await;
        let (_, taken, refused) = *counts.lock().unwrap();
        (f64::from(taken) / begin.elapsed().saturating_sub(learnt).as_secs_f64(), refused)
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_learnt_and_then_hardly_anything_is_refused() {
        for late in [1, 200, 1000].map(Duration::from_millis) {
            for rate in [10.0, 20.0] {
                let server = Server { rate, burst: rate, tokens: rate, at: Instant::now() };
                let (got, refused) = thousand(server, late, Duration::from_secs(15)).await;
                assert!(got > 0.88 * rate, "{got} requests a second of {rate}, {late:?} late");
                assert_eq!(refused, 0, "of {rate}, {late:?} late");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reads_and_writes_have_rates_of_their_own_and_a_long_wait_is_told() {
        let pacing = Pacing::default();
        pacing.refused(Pace::Write);
        let begin = Instant::now();
        pacing.turn(Pace::Read).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::ZERO);
        let turns = futures::future::join_all((0..200).map(|_| pacing.turn(Pace::Write))).await;
        let told: Vec<_> = turns.into_iter().filter_map(Result::err).collect();
        assert_eq!(told.len(), 99, "{told:?}");
        assert!(told.iter().all(|wait| *wait > LONGEST_WAIT && *wait < 2 * LONGEST_WAIT), "{told:?}");
        assert_eq!(pacing.write.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_took_nothing_for_a_minute_is_asked_at_once_when_it_does_again() {
        let pacing = Pacing::default();
        for _ in 0..60 {
            pacing.refused(Pace::Read);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let begin = Instant::now();
        for _ in 0..10 {
            pacing.turn(Pace::Read).await.unwrap();
            pacing.answered(Pace::Read);
        }
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_grows_when_nothing_was_refused_for_a_while() {
        let pacing = Pacing::default();
        pacing.refused(Pace::Read);
        tokio::time::advance(WINDOW).await;
        (0..10).for_each(|_| pacing.answered(Pace::Read));
        pacing.refused(Pace::Read);
        let rate = || pacing.read.rhythm.lock().unwrap().learnt.unwrap().rate;
        let before = rate();
        assert!((before - START * CAUTION).abs() < 0.001, "{before}");
        tokio::time::advance(CALM).await;
        pacing.turn(Pace::Read).await.unwrap();
        assert!(rate() > before);
    }
}
