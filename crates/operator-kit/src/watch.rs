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

use crate::crd::Crds;

/// How many objects one page of the first list brings: enough for few round trips, little enough to stay small.
const PAGE: u32 = 100;

/// A watch whose first list comes page by page.
pub fn paged() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// A watch without its errors: they are logged, and this watch alone waits for a moment before it goes on. The items are
/// `Result`s all the same, as combinators and controllers expect. `what`: of which objects, for the log.
pub fn retry_watch<T: Send>(
    what: impl Display + Send,
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        warn!("the watch of {what} failed; the operator tries again: {error}");
    })
}

/// The same for a kind of the operator's own, whose CRD may not be installed yet.
pub fn retry_crd_watch<K: Resource<DynamicType = ()>, T: Send>(
    crds: Crds,
    watch: impl Stream<Item = Result<T, watcher::Error>> + Send,
) -> impl Stream<Item = Result<T, watcher::Error>> + Send {
    without_errors(watch, move |error| {
        let missing = cause(error).and_then(|error| crds.missing::<K>(error));
        let problem = missing.unwrap_or_else(|| error.to_string());
        warn!("the watch of {} failed; the operator tries again: {problem}", K::plural(&()));
    })
}

/// The HTTP status by which a watch failed, if it did.
pub fn code(error: &watcher::Error) -> Option<u16> {
    match (cause(error), error) {
        (Some(kube::Error::Api(status)), _) | (None, watcher::Error::WatchError(status)) => Some(status.code),
        _ => None,
    }
}

/// The error of the call that failed, if one did.
pub fn cause(error: &watcher::Error) -> Option<&kube::Error> {
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
        let mut all =
            stream::select(retry_watch("one", failing).boxed(), retry_watch("others", others).boxed());
        for expected in ["a", "b"] {
            assert_eq!(all.next().now_or_never().unwrap().unwrap().unwrap(), expected);
        }
        assert_eq!(all.next().await.unwrap().unwrap(), "late");
        assert!(start.elapsed() > Duration::from_millis(400), "it did not wait");
        assert!(all.next().await.is_none());
    }
}
