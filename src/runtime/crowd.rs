//! The connections that a server has, and who has to make room for others.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    task::{Id, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

/// Those who are connected.
#[derive(Debug)]
pub(crate) struct Crowd {
    most: usize,
    tasks: JoinSet<()>,
    seats: HashMap<Id, Arc<Seat>>,
}

impl Crowd {
    /// Nobody yet, with room for `most` connections at once.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, tasks: JoinSet::new(), seats: HashMap::new() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.tasks.len() >= self.most
    }

    /// Serves one more. If that fills the last place, whoever of the others asked for nothing for the longest time is told to
    /// leave, so that nobody can keep others out by staying.
    pub(crate) fn admit<F>(&mut self, converse: impl FnOnce(Arc<Seat>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.tasks.len() + 1 >= self.most {
            let longest = self.seats.values().min_by_key(|seat| seat.active());
            longest.inspect(|seat| seat.leave.cancel());
        }
        let seat = Arc::new(Seat::new());
        let task = self.tasks.spawn(converse(Arc::clone(&seat)));
        self.seats.insert(task.id(), seat);
    }

    /// Waits for the end of one; `None` if there is nobody.
    pub(crate) async fn one_leaves(&mut self) -> Option<()> {
        let ended = self.tasks.join_next_with_id().await?;
        self.seats.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
        Some(())
    }

    /// Waits for the end of all, and cuts those who take longer; whether all ended by themselves.
    pub(crate) async fn all_leave(mut self, within: Duration) -> bool {
        timeout(within, async { while self.one_leaves().await.is_some() {} }).await.is_ok()
    }
}

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Seat {
    active: Mutex<Instant>,
    leave: CancellationToken,
}

impl Seat {
    pub(crate) fn new() -> Self {
        Self { active: Mutex::new(Instant::now()), leave: CancellationToken::new() }
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When it was made, or its last request was answered.
    pub(crate) fn active(&self) -> Instant {
        *self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when it has to leave: another one needs the place, or nothing was asked for longer than `idle`.
    pub(crate) async fn has_to_leave(&self, idle: Duration) {
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
            () = self.leave.cancelled() => {}
            () = idle => {}
        }
    }
}
