//! A few connections, shared by all calls.
//!
//! libvirtd works on five of a client's calls at a time (`max_client_requests`) and leaves the rest unread in the socket, where
//! the client cannot withdraw them. So no more than five are sent on a connection, and further calls queue here, where each keeps
//! its own deadline and can be dropped. A second connection is opened when the first is full.
//!
//! A call that libvirt does not answer for long has stalled. It keeps waiting, on a connection that gets no further calls, and
//! another call gets its place. So a host with some hanging machines still answers for the others.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::connection::Connection;
use crate::error::{ConnectError, Error};
use crate::options::Options;
use crate::uri::{ConnectUri, Endpoint};

/// How many calls one connection carries at a time: libvirtd's default for `max_client_requests`.
pub const CALLS_PER_CONNECTION: usize = 5;

/// How many connections are opened at a time. With ten unauthenticated connections sshd begins to reject new ones at random
/// (`MaxStartups`), and libvirtd makes the twenty-first wait (`max_anonymous_clients`).
const OPENING: u32 = 8;

/// How long one refusal answers for all attempts. A host that counts refusals (sshd: `PerSourcePenalties`) would soon reject
/// every client from here, even one with good credentials.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// The default of [`Options::connect_timeout`]. For each name that is asked for, a nameserver that does not answer takes 5 s of it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const SSH_CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// An attempt to connect, and its outcome once it has ended.
type Attempt = watch::Receiver<Option<Result<Arc<Connection>, Error>>>;

/// The connections of a client.
#[derive(Debug)]
pub(crate) struct Connections {
    uri: Arc<ConnectUri>,
    connect_timeout: Duration,
    /// The one host that is meant, if any.
    host: Option<Uuid>,
    /// As many as all slots have room for, so a call with a permit finds a slot with room.
    permits: Semaphore,
    /// As many more may have stalled. Further stalled calls keep their places.
    stalled: Semaphore,
    opening: Arc<Opening>,
    slots: Mutex<Box<[Slot]>>,
}

/// The place of one connection.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// The latest attempt. All calls of a slot share it, and its outcome.
    attempt: Option<Attempt>,
    /// When it began.
    begun: Option<Instant>,
    /// Calls that have a place here.
    calls: usize,
}

impl Slot {
    /// The attempt, if it is in progress or its connection is open.
    fn live(&self) -> Option<&Attempt> {
        self.attempt.as_ref().filter(|attempt| match &*attempt.borrow() {
            None => attempt.has_changed().is_ok(),
            Some(Ok(connection)) => connection.is_open(),
            Some(Err(_)) => false,
        })
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        self.attempt.as_ref()?.borrow().as_ref()?.as_ref().ok().cloned()
    }
}

impl Connections {
    pub(crate) fn new(uri: ConnectUri, options: &Options) -> Self {
        let slots = vec![Slot::default(); options.connections].into_boxed_slice();
        let usual =
            if matches!(uri.endpoint(), Endpoint::Ssh(_)) { SSH_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT };
        let connect_timeout = options.connect_timeout.unwrap_or(usual);
        Self {
            uri: Arc::new(uri),
            connect_timeout,
            host: options.host,
            permits: Semaphore::new(slots.len() * CALLS_PER_CONNECTION),
            stalled: Semaphore::new(options.stalled),
            opening: Arc::default(),
            slots: Mutex::new(slots),
        }
    }

    pub(crate) fn uri(&self) -> &ConnectUri {
        &self.uri
    }

    fn lock(&self) -> MutexGuard<'_, Box<[Slot]>> {
        // No code that holds the lock can panic halfway through a change.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for one call: on the connection with the fewest calls; on a new one when all are full.
    pub(crate) async fn place(&self) -> Result<Place<'_>, Error> {
        let permit = self.permits.acquire().await.map_err(|_| no_room())?;
        let mut slots = self.lock();
        let (index, slot) = slots
            .iter_mut()
            .enumerate()
            .filter(|(_, slot)| slot.calls < CALLS_PER_CONNECTION)
            .min_by_key(|(_, slot)| if slot.live().is_some() { (0, slot.calls) } else { (1, 0) })
            .ok_or_else(no_room)?;
        slot.calls += 1;
        Ok(Place { connections: self, index, _permit: permit })
    }

    /// The slot's live attempt, or a new one.
    fn attempt(&self, index: usize) -> Attempt {
        let slot = &mut self.lock()[index];
        if let Some(attempt) = slot.live() {
            return attempt.clone();
        }
        let (outcome, attempt) = watch::channel(None);
        let (uri, limit, opening) = (self.uri.clone(), self.connect_timeout, self.opening.clone());
        let host = self.host;
        // In a task of its own: the first call may be dropped while others wait for the same outcome.
        tokio::spawn(async move {
            outcome.send_replace(Some(opening.open(&uri, host, limit).await.map(Arc::new)));
        });
        (slot.attempt, slot.begun) = (Some(attempt.clone()), Some(Instant::now()));
        attempt
    }

    /// Proves that the address leads to the host that is meant, if one is, by a connection that carries no calls and is closed again.
    pub(crate) async fn verify_host(&self) -> Result<(), Error> {
        if self.host.is_none() {
            return Ok(());
        }
        self.opening.open(&self.uri, self.host, self.connect_timeout).await.map(drop)
    }

    /// Closes the connections that carry no call and were begun before that time, at which a call began that failed on another one.
    /// What ended that one may have ended these, and only a call on each would show it.
    pub(crate) fn forget_idle(&self, before: Instant) {
        let is_older = |slot: &&mut Slot| slot.begun.is_some_and(|begun| begun < before);
        for slot in self.lock().iter_mut().filter(|slot| slot.calls == 0).filter(is_older) {
            slot.attempt = None;
        }
    }
}

/// Opens connections: only some at a time, and not again and again after a refusal.
#[derive(Debug)]
struct Opening {
    turns: Semaphore,
    /// How the last attempt was refused, and when; `None` if it was not.
    refused: Mutex<Option<(Instant, Error)>>,
    /// Whether the daemon asked for no authentication in the last attempt.
    open_to_all: AtomicBool,
}

impl Default for Opening {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(OPENING as usize),
            refused: Mutex::default(),
            open_to_all: AtomicBool::default(),
        }
    }
}

impl Opening {
    async fn open(&self, uri: &ConnectUri, host: Option<Uuid>, limit: Duration) -> Result<Connection, Error> {
        // After a refusal, one attempt alone tries again.
        let turns = if self.refused().is_some() { OPENING } else { 1 };
        // The semaphore is never closed, so this waits or succeeds. The attempts before it have deadlines.
        let _turn = self.turns.acquire_many(turns).await;
        if let Some((at, refusal)) = &*self.refused()
            && at.elapsed() < REFUSED_FOR
        {
            return Err(refusal.clone());
        }
        let open_to_all = self.open_to_all.load(Ordering::Relaxed);
        let connection = timeout(limit, Connection::open(uri, host, open_to_all)).await;
        let connection =
            connection.unwrap_or_else(|_| Err(ConnectError::silent(uri.endpoint(), limit).into()));
        let connection = connection.map_err(|error| match error {
            // It was lost before the call that waits for it was sent.
            Error::Disconnected(problem) => {
                ConnectError::io(uri.endpoint(), io::Error::other(problem)).into()
            }
            other => other,
        });
        let connection = connection.map(|(connection, open_to_all)| {
            self.open_to_all.store(open_to_all, Ordering::Relaxed);
            connection
        });
        *self.refused() = match &connection {
            Err(refusal @ Error::Auth(_)) => Some((Instant::now(), refusal.clone())),
            _ => None,
        };
        connection
    }

    fn refused(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Never happens: the semaphore is never closed, and a call with a permit finds a slot with room.
fn no_room() -> Error {
    Error::Disconnected("the client has no room for the call".to_owned())
}

/// Room for one call; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    connections: &'a Connections,
    index: usize,
    _permit: SemaphorePermit<'a>,
}

impl<'a> Place<'a> {
    /// The open connection of this place. Opens it, or opens it again, if needed.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Error> {
        let mut attempt = self.connections.attempt(self.index);
        let outcome = attempt.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(Error::Disconnected("connecting was cut short".to_owned())))
    }

    /// The call of this place has stalled, so other calls get the place. `Err` if too many have stalled already; then it keeps
    /// its place.
    ///
    /// No further call is sent on its connection, which may be dead: only time shows that. The next call opens another one, which
    /// shows whether the daemon lives. Calls that still wait on this connection keep it until they have ended.
    pub(crate) fn stall(self, connection: &Arc<Connection>) -> Result<Stalled<'a>, Self> {
        let Ok(permit) = self.connections.stalled.try_acquire() else { return Err(self) };
        self.retire(connection);
        Ok(Stalled { _permit: permit })
    }

    /// Sends no further calls on a connection that left one unanswered, or whose daemon lost the one behind it.
    pub(crate) fn retire(&self, connection: &Arc<Connection>) {
        let slot = &mut self.connections.lock()[self.index];
        if slot.connection().is_some_and(|current| Arc::ptr_eq(&current, connection)) {
            slot.attempt = None;
        }
    }
}

/// A call that waits on without a place.
#[derive(Debug)]
pub(crate) struct Stalled<'a> {
    _permit: SemaphorePermit<'a>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.connections.lock()[self.index].calls -= 1;
    }
}
