//! Watches that go on, whatever happens to one of them.
//!
//! A `Controller` has one pause for all that it watches: whatever fails of it, it stops hearing of everything, and for ever
//! longer while others fail too. After an outage of seconds that makes minutes. So errors are dealt with where they happen.

use std::{fmt::Display, future::ready};

use futures::{Stream, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use tracing::warn;

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
    watch.default_backoff().filter(move |item| {
        if let Err(error) = item {
            warn!(%error, "watching {what} failed; trying again");
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
