//! One call for all who ask at the same time.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

use super::{Error, ErrorClass};

/// A call that many may ask for at once: one of them makes it, and the others wait for its result, a failure too.
pub(super) struct SingleFlight<T>(Mutex<Option<Latest<T>>>);

/// The call that ended last.
pub(super) struct Latest<T> {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) result: Result<T, Error>,
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Latest<T> {
    /// From when on it counts: a success since the call began, as it may show nothing newer; a failure since the call ended, so that
    /// all who waited for it share it.
    pub(super) fn since(&self) -> Instant {
        if self.result.is_ok() { self.begun } else { self.ended }
    }
}

impl<T: Clone> SingleFlight<T> {
    /// What `known` makes of the latest call, or else the result of `call`. If that is dropped before its end, the next caller makes
    /// its own.
    pub(super) async fn get(
        &self,
        known: impl FnOnce(Option<&Latest<T>>) -> Option<Result<T, Error>>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut latest = self.0.lock().await;
        if let Some(result) = known(latest.as_ref()) {
            return result;
        }
        let begun = Instant::now();
        let result = call.await;
        *latest = Some(Latest { begun, ended: Instant::now(), result: result.clone() });
        result
    }

    /// The result of a call that began after `asked`, or failed after it. A caller that waited longer than `longest` for another one's
    /// call makes none and gets the error `late`: the rest of its minute may be too short, and all others would wait in vain.
    pub(super) async fn after(
        &self,
        asked: Instant,
        longest: Duration,
        late: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let known = |last: Option<&Latest<T>>| {
            if let Some(last) = last.filter(|last| last.since() >= asked) {
                return Some(last.result.clone());
            }
            (asked.elapsed() > longest).then(|| Err(Error::new(ErrorClass::Transient, late)))
        };
        self.get(known, call).await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        time::Duration,
    };

    use futures::future::{join, join_all, join3};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::provider::ErrorClass;

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Default)]
    struct Calls {
        flight: SingleFlight<u32>,
        made: AtomicU32,
    }

    impl Calls {
        /// Asks for what is known since `since`, or else for a call of a second, which gives its number or fails.
        async fn ask(&self, since: Instant, fails: bool) -> Result<u32, Error> {
            let known = |latest: Option<&Latest<u32>>| {
                latest.filter(|latest| latest.since() >= since).map(|latest| latest.result.clone())
            };
            let call = async {
                sleep(SECOND).await;
                let number = self.made.fetch_add(1, Relaxed) + 1;
                if fails { Err(Error::new(ErrorClass::Transient, "no")) } else { Ok(number) }
            };
            self.flight.get(known, call).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_serves_all_who_asked_before_it_began() {
        let (calls, start) = (Calls::default(), Instant::now());
        let all = join_all((0..20).map(|_| calls.ask(start, false))).await;
        assert!(all.iter().all(|it| *it == Ok(1)) && start.elapsed() == SECOND, "{all:?}");
        assert_eq!(calls.ask(start, false).await, Ok(1));
        assert_eq!(calls.ask(start + SECOND / 2, false).await, Ok(2), "the first one had begun before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_serves_all_who_asked_before_it_ended() {
        let (calls, start) = (Calls::default(), Instant::now());
        let all = join_all((0..20).map(|_| calls.ask(start + SECOND / 2, true))).await;
        assert!(all.iter().all(Result::is_err) && start.elapsed() == SECOND, "{all:?}");
        assert_eq!(calls.made.load(Relaxed), 1);
        assert_eq!(calls.ask(start + 2 * SECOND, false).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_serves_no_one() {
        let (calls, start) = (Calls::default(), Instant::now());
        assert!(timeout(SECOND / 2, calls.ask(start, false)).await.is_err());
        assert_eq!(calls.ask(start, false).await, Ok(1));
        assert_eq!(start.elapsed(), SECOND + SECOND / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_waited_too_long_makes_no_call() {
        let flight = SingleFlight::default();
        let slow = async || {
            sleep(10 * SECOND).await;
            Ok::<_, Error>(())
        };
        let ask = |longest: u32, pause: u32| {
            let flight = &flight;
            async move {
                sleep(pause * SECOND).await;
                flight.after(Instant::now(), longest * SECOND, "late", slow()).await
            }
        };
        let (first, patient, hurried) = join3(ask(5, 0), ask(20, 1), ask(5, 2)).await;
        assert_eq!((first, patient), (Ok(()), Ok(())));
        assert_eq!(hurried, Ok(()), "it shares the call that began after it had asked");
        let (first, hurried) = join(ask(5, 0), ask(5, 1)).await;
        assert_eq!((first, hurried.unwrap_err().message.for_status()), (Ok(()), "late"));
    }
}
