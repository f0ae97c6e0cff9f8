//! Changes of a watched value as a stream.

use futures::{Stream, stream};
use tokio::sync::watch;

/// Yields after each change of the value, once for several at a time. What the receiver has not seen yet counts as a change.
/// Ends with the sender.
pub fn changes<T: Send + Sync>(receiver: watch::Receiver<T>) -> impl Stream<Item = ()> + Send + use<T> {
    stream::unfold(receiver, async |mut receiver| receiver.changed().await.ok().map(|()| ((), receiver)))
}
