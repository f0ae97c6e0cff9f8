//! A slow way to a daemon, on which some calls get lost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use libvirt_client::ConnectUri;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Libvirtd;

/// A packet starts with its length, itself included.
const LENGTH_SIZE: u32 = 4;
/// libvirt's own limit.
const MAX_PACKET: u32 = 32 * 1024 * 1024;
/// Answers on their way.
const UNDER_WAY: usize = 1024;

/// Relays connections to a daemon's socket. Each answer comes late, as over a long way, however many are under way; calls
/// that [`lose`](Self::lose) names never arrive. Dropped, it ends with all of its connections.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    uri: ConnectUri,
    lost: Arc<Mutex<Vec<Vec<u8>>>>,
    _connections: JoinSet<()>,
}

impl Relay {
    /// Listens on a socket in `dir`; each answer of the daemon comes so `late`. Must be called within a tokio runtime.
    pub fn start(libvirtd: &Libvirtd, dir: &Path, late: Duration) -> Result<Self> {
        let socket = dir.join("relay-sock");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        let uri = Libvirtd::uri_over(&socket)?;
        let lost = Arc::default();
        let mut connections = JoinSet::new();
        connections.spawn(accept(listener, libvirtd.socket(), late, Arc::clone(&lost)));
        Ok(Self { socket, uri, lost, _connections: connections })
    }

    /// What `LIBVIRT_URI` is set to, to come this way.
    pub fn uri(&self) -> &ConnectUri {
        &self.uri
    }

    /// From now on, a call that has one of these anywhere in its packet is lost: a domain's UUID in its binary form, part
    /// of a volume's path.
    pub fn lose(&self, marks: impl IntoIterator<Item = Vec<u8>>) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).extend(marks);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It may be gone with its folder.
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn accept(listener: UnixListener, upstream: PathBuf, late: Duration, lost: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, lost) = (upstream.clone(), Arc::clone(&lost));
        connections.spawn(async move {
            // Either side's end is the connection's: the other one is told by its being closed.
            let Ok(server) = UnixStream::connect(upstream).await else { return };
            let ((calls, answered), (answers, called)) = (client.into_split(), server.into_split());
            tokio::select! {
                () = forward(calls, called, &lost) => {}
                () = delay(answers, answered, late) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Passes calls on, but for those that get lost.
async fn forward(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, lost: &Mutex<Vec<Vec<u8>>>) {
    let mut from = BufReader::new(from);
    while let Some(packet) = packet(&mut from).await {
        let is_lost = lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .any(|mark| packet.windows(mark.len()).any(|part| part == mark.as_slice()));
        if !is_lost && to.write_all(&packet).await.is_err() {
            return;
        }
    }
}

/// Passes answers on, each so long after it came.
async fn delay(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, late: Duration) {
    let (sender, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let receive = async move {
        let mut from = BufReader::new(from);
        while let Some(packet) = packet(&mut from).await {
            if sender.send((Instant::now() + late, packet)).await.is_err() {
                return;
            }
        }
    };
    let deliver = async move {
        while let Some((due, packet)) = under_way.recv().await {
            sleep_until(due).await;
            if to.write_all(&packet).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(receive, deliver);
}

/// The next packet, whole; none when the stream has ended or makes no sense.
async fn packet(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let length = from.read_u32().await.ok()?;
    let rest = length.checked_sub(LENGTH_SIZE).filter(|_| length <= MAX_PACKET)?;
    let mut packet = length.to_be_bytes().to_vec();
    from.take(rest.into()).read_to_end(&mut packet).await.ok()?;
    (packet.len() == length as usize).then_some(packet)
}
