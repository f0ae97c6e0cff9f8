//! Whether this process may act. It is asked before each step.

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use futures::Stream;
use tokio::{sync::watch, time::Instant};

use crate::changes::changes;

/// Whether this process may act. Cheap to clone.
///
/// It may until a moment that the election moves ahead again and again. When that moment has passed it may not, even if no code
/// noticed. So a process that stood still for a while does nothing wrong when it continues.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<watch::Sender<State>>);

#[derive(Clone, Copy, Debug)]
struct State {
    /// Counts the times that this process began to lead.
    term: u64,
    mandate: Mandate,
}

#[derive(Clone, Copy, Debug)]
enum Mandate {
    None,
    Until(Instant),
    Unlimited,
}

impl State {
    fn leads(&self) -> bool {
        match self.mandate {
            Mandate::None => false,
            Mandate::Until(until) => Instant::now() < until,
            Mandate::Unlimited => true,
        }
    }
}

impl Leadership {
    /// For a process that is alone, or whose host runs controllers only while it leads: it may always act.
    pub fn unlimited() -> Self {
        Self::new(State { term: 1, mandate: Mandate::Unlimited })
    }

    /// It may not, until an election says so.
    pub(super) fn none() -> Self {
        Self::new(State { term: 0, mandate: Mandate::None })
    }

    fn new(state: State) -> Self {
        Self(Arc::new(watch::Sender::new(state)))
    }

    /// Whether it may act at this moment.
    pub fn leads(&self) -> bool {
        self.0.borrow().leads()
    }

    /// Counts the times that this process began to lead.
    pub fn term(&self) -> u64 {
        self.0.borrow().term
    }

    /// Does `work` as long as this process leads without a break. `None` if it does not lead, or no longer: then `work` was
    /// dropped where it waited. Before each step of `work`, checks that the time is not over.
    pub async fn while_leading<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut states = self.0.subscribe();
        let term = states.borrow_and_update().term;
        let mut work = pin!(work);
        let mut changed = pin!(states.changed());
        poll_fn(|context| {
            // Known by a wake-up, or found by looking.
            if changed.as_mut().poll(context).is_ready() || !self.leads_in(term) {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Does `work` anew in each term in which this process leads, and drops it with the term, like
    /// [`while_leading`](Self::while_leading). Then calls `after`. It has no end of its own: drop it when the process stops.
    pub async fn each_term<W: Future>(&self, work: impl Fn() -> W, after: impl Fn()) -> Infallible {
        // Before the first look, so that no term begins unseen.
        let mut states = self.0.subscribe();
        loop {
            if self.leads() {
                let term = async {
                    work().await;
                    pending::<Infallible>().await
                };
                self.while_leading(term).await;
                after();
            }
            // It fails only without a sender, which `self` has.
            let _ = states.changed().await;
        }
    }

    fn leads_in(&self, term: u64) -> bool {
        let state = self.0.borrow();
        state.term == term && state.leads()
    }

    /// Yields when this process begins or ceases to lead.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        changes(self.0.subscribe())
    }

    /// It leads from now on.
    pub(super) fn begin(&self, until: Instant) {
        self.0.send_modify(|state| *state = State { term: state.term + 1, mandate: Mandate::Until(until) });
    }

    /// This process continues to lead. No task needs to know, so none is woken. If the time is already over, it stays over.
    /// Returns whether it was not over.
    #[must_use]
    pub(super) fn extend(&self, until: Instant) -> bool {
        let mut in_time = false;
        self.0.send_if_modified(|state| {
            in_time = state.leads();
            if in_time {
                state.mandate = Mandate::Until(until);
            }
            false
        });
        in_time
    }

    /// It leads no more.
    pub(super) fn end(&self) {
        self.0.send_modify(|state| state.mandate = Mandate::None);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures::{FutureExt as _, StreamExt as _};
    use tokio::time::{advance, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn leading_for(time: Duration) -> Leadership {
        let leadership = Leadership::none();
        leadership.begin(Instant::now() + time);
        leadership
    }

    /// Steps a second apart, counted when they start.
    async fn steps(taken: &AtomicUsize) {
        for _ in 0..5 {
            taken.fetch_add(1, Ordering::SeqCst);
            sleep(SECOND).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_done_while_leading() {
        let taken = AtomicUsize::new(0);
        assert_eq!(Leadership::unlimited().while_leading(steps(&taken)).await, Some(()));
        assert_eq!(leading_for(6 * SECOND).while_leading(steps(&taken)).await, Some(()));
        assert_eq!(taken.load(Ordering::SeqCst), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_starts_without_leading() {
        let taken = AtomicUsize::new(0);
        assert_eq!(Leadership::none().while_leading(steps(&taken)).await, None);
        let over = leading_for(SECOND);
        advance(SECOND).await;
        assert_eq!(over.while_leading(steps(&taken)).await, None);
        assert_eq!(taken.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_step_starts_after_a_deadline_that_passed_unnoticed() {
        let taken = AtomicUsize::new(0);
        // Like a process that was stopped: the clock went on, and the step's own timer is due together with everything else.
        assert_eq!(leading_for(2 * SECOND).while_leading(steps(&taken)).await, None);
        assert_eq!(taken.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_term_and_does_not_continue_in_the_next() {
        let leadership = leading_for(60 * SECOND);
        let mut work = pin!(leadership.while_leading(std::future::pending::<()>()));
        assert_eq!(work.as_mut().now_or_never(), None);
        leadership.end();
        leadership.begin(Instant::now() + 60 * SECOND);
        assert_eq!(work.now_or_never(), Some(None));
    }

    #[tokio::test(start_paused = true)]
    async fn each_term_has_its_own_work_and_its_own_end() {
        let leadership = Leadership::none();
        let [begun, ended] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let work = || async {
            begun.fetch_add(1, Ordering::SeqCst);
            sleep(SECOND).await;
        };
        let after = || {
            ended.fetch_add(1, Ordering::SeqCst);
        };
        let mut terms = pin!(leadership.each_term(work, after));
        let mut look = || {
            assert!(terms.as_mut().now_or_never().is_none());
            (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst))
        };
        assert_eq!(look(), (0, 0), "it does not lead");
        leadership.begin(Instant::now() + 60 * SECOND);
        assert_eq!(look(), (1, 0));
        advance(2 * SECOND).await;
        assert_eq!(look(), (1, 0), "its work is done, and the term goes on");
        // Between two looks.
        leadership.end();
        leadership.begin(Instant::now() + 60 * SECOND);
        assert_eq!(look(), (2, 1));
        leadership.end();
        assert_eq!(look(), (2, 2));
        assert_eq!(look(), (2, 2));
        leadership.begin(Instant::now() + SECOND);
        leadership.end();
        assert_eq!(look(), (2, 2), "the term was over before anyone looked");
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_prolong_a_term_in_time_and_wake_no_task() {
        let leadership = leading_for(2 * SECOND);
        let mut changes = pin!(leadership.changes());
        advance(SECOND).await;
        assert!(leadership.extend(Instant::now() + 2 * SECOND));
        advance(SECOND).await;
        assert!(leadership.leads());
        assert!(changes.next().now_or_never().is_none());
        advance(SECOND).await;
        assert!(!leadership.extend(Instant::now() + 2 * SECOND), "it was over before it was renewed");
        assert!(!leadership.leads());
        leadership.end();
        assert!(changes.next().now_or_never().is_some());
    }
}
