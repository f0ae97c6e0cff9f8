//! A timeout for a request to arrive and for its answer to be read.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use operator_kit::connection_limit::Slot;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// A connection that fails when a request takes too long from its first byte to its answer, or when the client takes too long to
/// read the answer.
///
/// A timeout for the headers alone cannot distinguish a slow request from an idle connection.
pub(super) struct RequestTimeout<S> {
    stream: S,
    slot: Arc<Slot>,
    within: Duration,
    begun: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S> RequestTimeout<S> {
    pub(super) fn new(stream: S, slot: Arc<Slot>, within: Duration) -> Self {
        Self { stream, slot, within, begun: None, timer: Box::pin(sleep_until(Instant::now())) }
    }

    /// Ready when the timeout since then is over.
    fn poll_timeout(&mut self, since: Instant, cx: &mut Context<'_>) -> Poll<io::Error> {
        let end = since + self.within;
        if self.timer.deadline() != end {
            self.timer.as_mut().reset(end);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "a request or its answer took too long"))
    }

    /// Fails a write that waits for too long, because the memory for its answer is scarce.
    fn in_time<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let since = self.begun.map_or(self.slot.active(), |begun| begun.max(self.slot.active()));
        self.poll_timeout(since, cx).map(Err)
    }

    /// When the unanswered request began.
    fn begun(&self) -> Option<Instant> {
        self.begun.filter(|begun| *begun > self.slot.active())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let begun = self.begun();
        if read.is_ready() {
            if buffer.filled().len() > before && begun.is_none() {
                self.begun = Some(Instant::now());
            }
            return read;
        }
        let Some(begun) = begun else { return Poll::Pending };
        self.poll_timeout(begun, cx).map(Err)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RequestTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
