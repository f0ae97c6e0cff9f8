//! Lets requests leave no faster than a cloud takes them.
//!
//! The client holds nothing back until the cloud refuses a request because there were too many. From then on requests leave one
//! by one, and the client learns the rate: see [`rhythm`].
//!
//! Every request waits for its turn. So that none waits long, no more work should be under way than [`Pacing::most_at_once`] says.

mod rhythm;

use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::Method;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use self::rhythm::{Rhythm, Sent};

/// Clouds count requests that change something apart from those that do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Pace {
    /// It changes nothing.
    Read,
    /// It may change something.
    Write,
}

/// The rates of one cloud.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    read: Lane,
    write: Lane,
    /// How many requests have left and are not answered.
    out: AtomicUsize,
}

/// A request that has left, until it is answered or given up.
pub(super) struct Out<'a>(&'a AtomicUsize);

/// Requests of one kind.
#[derive(Debug, Default)]
struct Lane {
    rhythm: Mutex<Rhythm>,
    /// The first in the queue waits by the clock, the others for their turn. So a changed rate holds for all of them.
    queue: tokio::sync::Mutex<()>,
}

/// When a request left, and for which rate it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pace: Pace,
    left: Instant,
    sent: Sent,
}

impl Pace {
    /// The pace of a request by this method, for APIs where a DELETE alone changes something.
    pub(super) fn of(method: &Method) -> Self {
        if *method == Method::DELETE { Self::Write } else { Self::Read }
    }
}

impl Pacing {
    /// Waits until a request may leave.
    pub(super) async fn turn(&self, pace: Pace) -> Turn {
        let lane = self.lane(pace);
        let _first = lane.queue.lock().await;
        loop {
            let now = Instant::now();
            match lane.with(|rhythm| rhythm.turn(now)) {
                Ok(sent) => return Turn { pace, left: now, sent },
                Err(turn) => sleep_until(turn).await,
            }
        }
    }

    /// A request leaves now.
    pub(super) fn leaves(&self) -> Out<'_> {
        self.out.fetch_add(1, Ordering::Relaxed);
        Out(&self.out)
    }

    /// How much work may be under way at once so that its requests wait no longer than about [`LONGEST_WAIT`](rhythm::LONGEST_WAIT), and
    /// no less than [`LEAST_AT_ONCE`](rhythm::LEAST_AT_ONCE). Requests that have left wait no more, however long the cloud takes to
    /// answer, so they come on top. `None`: no request has to wait.
    pub(super) fn most_at_once(&self) -> Option<usize> {
        let lanes = [&self.read, &self.write].into_iter();
        let most = lanes.filter_map(|lane| lane.with(|rhythm| rhythm.most_at_once(Instant::now()))).min();
        most.map(|most| most.saturating_add(self.out.load(Ordering::Relaxed)))
    }

    /// The cloud took a request.
    pub(super) fn answered(&self, turn: Turn) {
        self.lane(turn.pace).with(|rhythm| rhythm.answered(turn.left, Instant::now()));
    }

    /// The cloud refused a request because there were too many, and said or did not say how long to wait.
    pub(super) fn refused(&self, turn: Turn, says_how_long: bool) {
        self.lane(turn.pace).with(|rhythm| rhythm.refused(turn, says_how_long, Instant::now()));
    }

    fn lane(&self, pace: Pace) -> &Lane {
        match pace {
            Pace::Read => &self.read,
            Pace::Write => &self.write,
        }
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lane {
    fn with<T>(&self, change: impl FnOnce(&mut Rhythm) -> T) -> T {
        change(&mut self.rhythm.lock())
    }
}

#[cfg(test)]
mod deletions;
#[cfg(test)]
mod tests;
