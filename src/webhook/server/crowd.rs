//! The connections that there are, and who has to make room for others.

use std::{
    collections::HashMap,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::{Id, JoinSet},
    time::{Instant, Sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Connections at once. By HTTP/1.1, which API servers speak to Services, each call at the same time has its own, and an API
/// server keeps up to 25 of them for later.
pub(super) const MOST: usize = 256;

/// How long a connection is kept without a request. API servers drop it after 90 s: if the webhook were the first to drop
/// it, a review could be on its way already, and is not sent again.
pub(super) const IDLE: Duration = Duration::from_secs(120);

/// Those who are connected.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    tasks: JoinSet<()>,
    seats: HashMap<Id, Arc<Seat>>,
}

impl Crowd {
    pub(super) fn is_full(&self) -> bool {
        self.tasks.len() >= MOST
    }

    /// Serves one more. If that fills the last place, whoever asked for nothing for the longest time is told to leave, so
    /// that nobody can keep others out by staying.
    pub(super) fn admit<F>(&mut self, converse: impl FnOnce(Arc<Seat>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let seat = Arc::new(Seat::new());
        let task = self.tasks.spawn(converse(Arc::clone(&seat)));
        self.seats.insert(task.id(), seat);
        if self.is_full() {
            let longest = self.seats.values().min_by_key(|seat| seat.active());
            longest.inspect(|seat| seat.leave.cancel());
        }
    }

    /// Waits for the end of one; `None` if there is nobody.
    pub(super) async fn one_leaves(&mut self) -> Option<()> {
        let ended = self.tasks.join_next_with_id().await?;
        self.seats.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        Some(())
    }

    /// Waits for the end of all, and cuts those who take longer; whether all ended by themselves.
    pub(super) async fn all_leave(mut self, within: Duration) -> bool {
        timeout(within, async { while self.one_leaves().await.is_some() {} }).await.is_ok()
    }
}

/// What is known of one connection.
#[derive(Debug)]
pub(super) struct Seat {
    /// When it was made, or its last request was answered.
    active: Mutex<Instant>,
    leave: CancellationToken,
}

impl Seat {
    pub(super) fn new() -> Self {
        Self { active: Mutex::new(Instant::now()), leave: CancellationToken::new() }
    }

    /// A request was answered.
    pub(super) fn answered(&self) {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn active(&self) -> Instant {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it has to leave: another one needs the place, or nothing was asked for too long.
    pub(super) async fn has_to_leave(&self) {
        let idle = async {
            loop {
                let end = self.active() + IDLE;
                if end <= Instant::now() {
                    break;
                }
                sleep_until(end).await;
            }
        };
        tokio::select! {
            () = self.leave.cancelled() => {}
            () = idle => {}
        }
    }
}

/// A connection by HTTP/1.1 that fails where a request, once its first byte is there, takes too long until it is answered.
///
/// A limit of the headers alone cannot tell a slow request from a connection that waits for one.
pub(super) struct Prompt<S> {
    stream: S,
    seat: Arc<Seat>,
    within: Duration,
    begun: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S> Prompt<S> {
    pub(super) fn new(stream: S, seat: Arc<Seat>, within: Duration) -> Self {
        Self { stream, seat, within, begun: None, timer: Box::pin(sleep_until(Instant::now())) }
    }

    /// When the request began that is not answered yet.
    fn begun(&self) -> Option<Instant> {
        self.begun.filter(|begun| *begun > self.seat.active())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prompt<S> {
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
        let end = begun + self.within;
        if self.timer.deadline() != end {
            self.timer.as_mut().reset(end);
        }
        ready!(self.timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "a request took too long to arrive")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prompt<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
