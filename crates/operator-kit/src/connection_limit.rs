//! A server's connections: a bounded number of them. A new connection always finds a place.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    task::{Id, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// The connections that are open.
#[derive(Debug)]
pub struct ConnectionLimit {
    most: usize,
    tasks: JoinSet<()>,
    slots: HashMap<Id, Arc<Slot>>,
}

impl ConnectionLimit {
    /// No connection yet, with room for `most` at once.
    pub fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), slots: HashMap::new() }
    }

    /// Whether one more has to wait until another one [ended](Self::one_ended).
    pub fn is_full(&self) -> bool {
        self.tasks.len() >= self.most
    }

    /// Serves one more. If that fills the last place, the connection that was idle for the longest time must close, so that
    /// no client can keep others out.
    pub fn admit<F>(&mut self, serve: impl FnOnce(Arc<Slot>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.tasks.len() + 1 >= self.most {
            let longest = self.slots.values().min_by_key(|slot| slot.active());
            longest.inspect(|slot| slot.close.cancel());
        }
        let slot = Arc::new(Slot::new());
        let task = self.tasks.spawn(serve(Arc::clone(&slot)));
        self.slots.insert(task.id(), slot);
    }

    /// Waits for the end of one; `None` if there is none.
    pub async fn one_ended(&mut self) -> Option<()> {
        let ended = self.tasks.join_next_with_id().await?;
        self.slots.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        Some(())
    }

    /// Waits for the end of all, and cuts those that take longer. Returns whether all ended by themselves.
    pub async fn all_ended(mut self, within: Duration) -> bool {
        timeout(within, async { while self.one_ended().await.is_some() {} }).await.is_ok()
    }
}

/// The place of one connection.
#[derive(Debug)]
pub struct Slot {
    active: Mutex<Instant>,
    is_answering: AtomicBool,
    close: CancellationToken,
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl Slot {
    /// The place of a connection that opens now.
    pub fn new() -> Self {
        Self {
            active: Mutex::new(Instant::now()),
            is_answering: AtomicBool::new(false),
            close: CancellationToken::new(),
        }
    }

    /// Records that a request has arrived whole.
    pub fn arrived(&self) {
        self.is_answering.store(true, Ordering::Relaxed);
    }

    /// Whether a request has [arrived](Self::arrived) and is not answered.
    pub fn is_answering(&self) -> bool {
        self.is_answering.load(Ordering::Relaxed)
    }

    /// Records that a request was answered.
    pub fn answered(&self) {
        self.is_answering.store(false, Ordering::Relaxed);
        *self.active.lock() = Instant::now();
    }

    /// When the connection opened, or its last request was answered.
    pub fn active(&self) -> Instant {
        *self.active.lock()
    }

    /// Returns when the connection must close: another one needs the place, or no request came for longer than `idle`.
    pub async fn must_close(&self, idle: Duration) {
        let idle = async {
            loop {
                let end = self.active() + idle;
                if end <= Instant::now() {
                    break;
                }
                sleep_until(end).await;
            }
        };
        tokio::select! {
            () = self.close.cancelled() => {}
            () = idle => {}
        }
    }
}
