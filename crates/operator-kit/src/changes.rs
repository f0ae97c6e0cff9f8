//! Changes of a watched value as a stream.

use futures::{Stream, stream};
use tokio::sync::watch;

/// Yields after each change of the value, once for several changes at a time. A value that the receiver has not seen counts as a
/// change.
/// Ends with the sender.
pub fn changes<T: Send + Sync>(receiver: watch::Receiver<T>) -> impl Stream<Item = ()> + Send + use<T> {
    stream::unfold(receiver, async |mut receiver| receiver.changed().await.ok().map(|()| ((), receiver)))
}
