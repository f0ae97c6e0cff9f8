//! Changes as a stream.

use std::{future::ready, time::Duration};

use futures::{Stream, StreamExt as _, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Yields after each change of the value, once for several changes at a time. A value that the receiver has not seen counts as a
/// change.
/// Ends with the sender.
pub fn changes<T: Send + Sync>(receiver: watch::Receiver<T>) -> impl Stream<Item = ()> + Send + use<T> {
    stream::unfold(receiver, async |mut receiver| receiver.changed().await.ok().map(|()| ((), receiver)))
}

/// Yields the first of these changes at once, and later ones at most once in each `pause`. The changes are read all the time: a watch
/// keeps its store up to date. Ends with them.
pub fn spaced(changes: impl Stream<Item = ()> + Send, pause: Duration) -> impl Stream<Item = ()> + Send {
    let (sender, receiver) = watch::channel(());
    let read = stream::once(async move {
        let note = |()| {
            sender.send_replace(());
            ready(())
        };
        changes.for_each(note).await;
    });
    let given = stream::unfold((receiver, Instant::now()), move |(mut receiver, next)| async move {
        sleep_until(next).await;
        receiver.changed().await.ok()?;
        Some(((), (receiver, Instant::now() + pause)))
    });
    stream::select(read.filter_map(|()| ready(None)), given)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::{advance, interval};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn of_many_changes_the_first_and_one_in_each_pause_are_given() {
        let mut ticks = interval(Duration::from_millis(10));
        let many = stream::poll_fn(move |context| ticks.poll_tick(context).map(|_| Some(()))).take(250);
        let start = Instant::now();
        let given = spaced(many, Duration::from_secs(1)).map(|()| start.elapsed().as_millis());
        assert_eq!(given.collect::<Vec<_>>().await, [0, 1000, 2000, 3000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_after_a_pause_is_given_at_once() {
        let (changed, receiver) = watch::channel(());
        let mut given = pin!(spaced(changes(receiver), Duration::from_secs(1)));
        for _ in 0..3 {
            advance(Duration::from_secs(5)).await;
            changed.send_replace(());
            let sent = Instant::now();
            given.next().await.unwrap();
            assert_eq!(sent.elapsed(), Duration::ZERO);
        }
    }
}
