//! A stream that ends when its owner is gone.
//!
//! The ssh library serves a connection in a task of its own. The task notices only in quiet moments that the connection is no
//! longer used, and not while it waits for a host that is gone. Cutting its stream ends it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Dropped, it cuts the stream.
#[derive(Debug)]
pub struct Tether(#[expect(dead_code, reason = "dropping it is its use")] oneshot::Sender<()>);

/// A stream that can be cut.
#[derive(Debug)]
pub struct Tethered<S> {
    stream: S,
    /// None once the owner is gone.
    owner: Option<oneshot::Receiver<()>>,
}

/// The stream, and what cuts it.
pub fn tie<S>(stream: S) -> (Tether, Tethered<S>) {
    let (tether, owner) = oneshot::channel();
    (Tether(tether), Tethered { stream, owner: Some(owner) })
}

impl<S> Tethered<S> {
    fn is_cut(&mut self, context: &mut Context<'_>) -> bool {
        if self.owner.as_mut().is_some_and(|owner| Pin::new(owner).poll(context).is_ready()) {
            self.owner = None;
        }
        self.owner.is_none()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tethered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tethered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_by_the_end_of_the_owner() {
        let (near, mut far) = tokio::io::duplex(16);
        let (tether, mut stream) = tie(near);
        far.write_all(b"a").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'a');
        let reader = tokio::spawn(async move {
            let read = stream.read(&mut [0]).await;
            (read, stream)
        });
        drop(tether);
        let (read, mut stream) = timeout(Duration::from_secs(10), reader).await.unwrap().unwrap();
        assert_eq!(read.unwrap(), 0);
        assert!(stream.write_all(b"b").await.is_err());
    }
}
