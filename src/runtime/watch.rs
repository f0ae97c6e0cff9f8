//! Watches that go on, whatever happens to one of them.
//!
//! A `Controller` has one pause for all that it watches: whatever fails of it, it stops hearing of everything, and for ever
//! longer while others fail too. After an outage of seconds that makes minutes. So errors are dealt with where they happen.

use std::{fmt::Display, future::ready};

use futures::{Stream, StreamExt};
use kube::{
    Resource,
    runtime::{WatchStreamExt, watcher},
};
use tracing::warn;

use super::api_call;

/// How many objects one page of the first list brings: enough for few round trips, little enough to stay small.
const PAGE: u32 = 100;

/// A watch whose first list comes page by page.
pub(crate) fn paged() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// A watch without its errors: they are logged, and it alone waits for a moment before it goes on. What it gives is a
/// `Result` all the same, as combinators and controllers expect. `what`: of which objects, for the log.
pub(crate) fn steady<T: Send>(
    what: impl Display + Send,
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        warn!("the watch of {what} failed; the operator tries again: {error}");
    })
}

/// The same for a kind of this operator's own, whose CRD may not be installed yet.
pub(crate) fn steady_own<K: Resource<DynamicType = ()>, T: Send>(
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        let problem = missing_crd::<K>(error).unwrap_or_else(|| error.to_string());
        warn!("the watch of {} failed; the operator tries again: {problem}", K::plural(&()));
    })
}

/// See [`api_call::missing_crd`].
pub(crate) fn missing_crd<K: Resource<DynamicType = ()>>(error: &watcher::Error) -> Option<String> {
    call(error).and_then(api_call::missing_crd::<K>)
}

/// The HTTP status by which a watch failed, if it did.
pub(crate) fn code(error: &watcher::Error) -> Option<u16> {
    match (call(error), error) {
        (Some(kube::Error::Api(status)), _) | (None, watcher::Error::WatchError(status)) => Some(status.code),
        _ => None,
    }
}

/// The call that failed.
fn call(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(error),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

fn without_errors<T: Send>(
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
    log: impl Fn(&watcher::Error) + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    watch.default_backoff().filter(move |item| {
        if let Err(error) = item {
            log(error);
        }
        ready(item.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, stream};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_that_fails_goes_on_after_a_moment_and_others_do_not_wait_for_it() {
        let failing = stream::iter([Err(watcher::Error::NoResourceVersion), Ok("late")]);
        let others = stream::iter([Ok("a"), Ok("b")]);
        let start = Instant::now();
        let mut all = stream::select(steady("one", failing).boxed(), steady("others", others).boxed());
        for expected in ["a", "b"] {
            assert_eq!(all.next().now_or_never().unwrap().unwrap().unwrap(), expected);
        }
        assert_eq!(all.next().await.unwrap().unwrap(), "late");
        assert!(start.elapsed() > Duration::from_millis(400), "it did not wait");
        assert!(all.next().await.is_none());
    }
}
