//! A slow relay to a daemon, which loses some calls and refuses others.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use libvirt_client::ConnectUri;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Host;

/// A packet starts with its length, itself included.
const LENGTH_SIZE: u32 = 4;
/// libvirt's own limit.
const MAX_PACKET: u32 = 32 * 1024 * 1024;
/// The most answers that may be in transit.
const UNDER_WAY: usize = 1024;
/// The position of the procedure's number in a packet.
const PROCEDURE: Range<usize> = 12..16;
/// The size of a packet's head, and of an error without text.
const REFUSAL_SIZE: i32 = 28 + 44;

/// Relays connections to a daemon's socket. Each answer is delayed, as by a long distance, however many are in transit. Calls that
/// match [`lose`](Self::lose) never arrive. The relay itself answers calls that match [`refuse`](Self::refuse). Dropping it ends all of
/// its connections.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    uri: ConnectUri,
    rules: Arc<Mutex<Rules>>,
    _connections: JoinSet<()>,
}

/// Where connections lead, and the rules for calls that are not just forwarded.
#[derive(Debug, Default)]
struct Rules {
    /// The socket of the daemon to which new connections lead.
    upstream: PathBuf,
    /// How many connections came.
    connections: usize,
    lost: Vec<Vec<u8>>,
    refused: Vec<Refusal>,
    /// How many calls came.
    calls: usize,
}

#[derive(Debug)]
struct Refusal {
    procedure: i32,
    /// The last bytes of the call.
    ending: Vec<u8>,
    code: i32,
}

impl Relay {
    /// Listens on a socket in `dir`, and delays each answer of the daemon by `late`. Must be called within a tokio runtime.
    pub fn start(host: &Host, dir: &Path, late: Duration) -> Result<Self> {
        let socket = dir.join("relay-sock");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        let (direct, upstream) = (host.uri().to_string(), socket_of(host)?);
        let uri = format!("{}?socket={}", direct.split('?').next().unwrap_or_default(), socket.display());
        let uri =
            uri.parse().with_context(|| format!("the path {} cannot be part of a URI", socket.display()))?;
        let rules = Arc::new(Mutex::new(Rules { upstream, ..Rules::default() }));
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, late, Arc::clone(&rules)));
        Ok(Self { socket, uri, rules, _connections: connections })
    }

    /// The value of `LIBVIRT_URI` for this relay.
    pub fn uri(&self) -> &ConnectUri {
        &self.uri
    }

    /// Makes connections that come from now on lead to this daemon, as when a name leads to another host. Those that are open stay with
    /// theirs.
    pub fn lead_to(&self, host: &Host) -> Result<()> {
        self.rules().upstream = socket_of(host)?;
        Ok(())
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.rules().connections
    }

    /// Loses calls from now on that contain one of these marks anywhere in their packet: a domain's UUID in its binary form, or part of
    /// a volume's path.
    pub fn lose(&self, marks: impl IntoIterator<Item = Vec<u8>>) {
        self.rules().lost.extend(marks);
    }

    /// Loses no calls from now on.
    pub fn lose_none(&self) {
        self.rules().lost.clear();
    }

    /// Refuses calls of this procedure from now on whose packet has this ending. The answer is libvirt's error of this code, and the
    /// call never arrives.
    pub fn refuse(&self, procedure: i32, ending: &[u8], code: i32) {
        self.rules().refused.push(Refusal { procedure, ending: ending.to_vec(), code });
    }

    /// Refuses no calls from now on.
    pub fn refuse_none(&self) {
        self.rules().refused.clear();
    }

    /// The number of calls so far.
    pub fn calls(&self) -> usize {
        self.rules().calls
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The socket may already be gone with its folder.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The socket of the daemon.
fn socket_of(host: &Host) -> Result<PathBuf> {
    host.uri().socket().with_context(|| format!("{} names no socket", host.uri()))
}

async fn accept(listener: UnixListener, late: Duration, rules: Arc<Mutex<Rules>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let rules = Arc::clone(&rules);
        let upstream = rules.lock().unwrap_or_else(PoisonError::into_inner).connected();
        connections.spawn(async move {
            // If one side closes the connection, so does the relay towards the other side.
            let Ok(server) = UnixStream::connect(upstream).await else { return };
            let ((calls, answered), (answers, called)) = (client.into_split(), server.into_split());
            let (sender, under_way) = mpsc::channel(UNDER_WAY);
            tokio::select! {
                () = forward(calls, called, &rules, &sender, late) => {}
                () = receive(answers, &sender, late) => {}
                () = deliver(under_way, answered) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// An answer, and when it arrives.
type Answer = (Instant, Vec<u8>);

/// Forwards calls, except for those that are lost or refused.
async fn forward(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    rules: &Mutex<Rules>,
    answers: &mpsc::Sender<Answer>,
    late: Duration,
) {
    let mut from = BufReader::new(from);
    while let Some(packet) = packet(&mut from).await {
        let (lost, refused) = rules.lock().unwrap_or_else(PoisonError::into_inner).judge(&packet);
        let passed = match refused {
            Some(code) => answers.send((Instant::now() + late, refusal(&packet, code))).await.is_ok(),
            None => lost || to.write_all(&packet).await.is_ok(),
        };
        if !passed {
            return;
        }
    }
}

impl Rules {
    /// Notes a new connection. Returns the socket to which it leads.
    fn connected(&mut self) -> PathBuf {
        self.connections += 1;
        self.upstream.clone()
    }

    /// Whether to lose a call, and the error with which to refuse it.
    fn judge(&mut self, packet: &[u8]) -> (bool, Option<i32>) {
        self.calls += 1;
        let lost =
            self.lost.iter().any(|mark| packet.windows(mark.len()).any(|part| part == mark.as_slice()));
        let is_refused = |it: &&Refusal| {
            packet.get(PROCEDURE) == Some(&it.procedure.to_be_bytes()) && packet.ends_with(&it.ending)
        };
        (lost, self.refused.iter().find(is_refused).map(|it| it.code))
    }
}

/// The answer to a failed call, with this code and no text.
fn refusal(call: &[u8], code: i32) -> Vec<u8> {
    let word = |word: i32| word.to_be_bytes();
    let (reply, failed, length) = (word(1), word(1), word(REFUSAL_SIZE));
    // The error's fields: its code, no part of libvirt, no text, its level. All others are empty.
    let error = [word(code), word(0), word(0), word(2)].concat();
    let (program_to_procedure, serial) = (&call[4..16], &call[20..24]);
    [&length, program_to_procedure, &reply, serial, &failed, &error, &[0; 28]].concat()
}

/// Reads answers. Each is to be delivered at this delay after its arrival.
async fn receive(from: impl AsyncRead + Unpin, answers: &mpsc::Sender<Answer>, late: Duration) {
    let mut from = BufReader::new(from);
    while let Some(packet) = packet(&mut from).await {
        if answers.send((Instant::now() + late, packet)).await.is_err() {
            return;
        }
    }
}

async fn deliver(mut under_way: mpsc::Receiver<Answer>, mut to: impl AsyncWrite + Unpin) {
    while let Some((due, packet)) = under_way.recv().await {
        sleep_until(due).await;
        if to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

/// The next complete packet; `None` if the stream has ended or makes no sense.
async fn packet(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let length = from.read_u32().await.ok()?;
    let rest = length.checked_sub(LENGTH_SIZE).filter(|_| length <= MAX_PACKET)?;
    let mut packet = length.to_be_bytes().to_vec();
    from.take(rest.into()).read_to_end(&mut packet).await.ok()?;
    (packet.len() == length as usize).then_some(packet)
}
