//! One connection: many calls in flight at once. Each call gets the reply with its serial.
//!
//! A reader and a writer task serve a connection for as long as it exists. A call registers its serial, hands its packet to the
//! writer and waits; the writer sends all waiting packets in one write. Dropping a call's future forgets its serial, so a late
//! reply finds no call and is ignored.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tracing::{debug, trace};
use uuid::Uuid;

use crate::capabilities::host_uuid;
use crate::error::{Error, ErrorCode, ProtocolError, RemoteError};
use crate::packet::{self, Call, Header, Kind, Packet, Status};
use crate::procedure::{AuthList, AuthPolkit, ConnectGetCapabilities, ConnectOpen, Procedure};
use crate::transport;
use crate::uri::{ConnectUri, Endpoint};
use crate::xdr;

/// A packet on its way to the writer.
#[derive(Debug)]
struct Outgoing {
    /// The call's serial; `None` for a packet that is no call.
    serial: Option<u32>,
    packet: Vec<u8>,
}

/// Packets that wait for the writer; more wait in their callers. Calls in flight are fewer (see `connections`).
const OUTGOING: usize = 16;
/// Most replies are far smaller.
const READ_BUFFER: usize = 4 * 1024;

/// No authentication is asked for.
const AUTH_NONE: i32 = 0;
/// The daemon asks polkit about this process. The client only says that it chooses polkit.
const AUTH_POLKIT: i32 = 2;

/// An open connection. When dropped, it is closed at once and every call on it fails.
#[derive(Debug)]
pub(crate) struct Connection {
    waiting: Arc<Waiting>,
    outgoing: mpsc::Sender<Outgoing>,
    tasks: [AbortHandle; 2],
}

impl Connection {
    /// Connects to libvirt and opens the driver that the URI names; on `host`, if one is given. Returns whether the daemon asked
    /// for no authentication. If `open_to_all` expects that, opens the driver without waiting for the daemon's answer.
    pub(crate) async fn open(
        uri: &ConnectUri,
        host: Option<Uuid>,
        open_to_all: bool,
    ) -> Result<(Self, bool), Error> {
        let (endpoint, driver) = (uri.endpoint(), uri.driver());
        let connection = Self::over(transport::connect(endpoint).await?);
        let open = || connection.call::<ConnectOpen>((driver, 0));
        let authenticated = if open_to_all {
            let (methods, opened) = tokio::join!(connection.call::<AuthList>(()), open());
            let authenticated = connection.authenticate(endpoint, &methods?).await?;
            // A daemon that asks polkit lets root in while it answers AUTH_LIST. Before that, another of its threads may refuse
            // the second call. A refusal for another reason is repeated.
            let is_early = opened.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::Rpc));
            if authenticated || is_early {
                open().await?;
            } else {
                opened?;
            }
            authenticated
        } else {
            let methods = connection.call::<AuthList>(()).await?;
            let authenticated = connection.authenticate(endpoint, &methods).await?;
            open().await?;
            authenticated
        };
        if let Some(expected) = host {
            let found = host_uuid(&connection.call::<ConnectGetCapabilities>(()).await?);
            if found != Some(expected) {
                return Err(Error::OtherHost { expected, found });
            }
        }
        debug!(%endpoint, driver, "connected to libvirt");
        Ok((connection, !authenticated))
    }

    /// Serves a byte stream to a daemon.
    fn over(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let waiting = Arc::new(Waiting::default());
        let (outgoing, packets) = mpsc::channel(OUTGOING);
        let read = tokio::spawn(read(reader, waiting.clone(), outgoing.clone()));
        let write = tokio::spawn(write(writer, waiting.clone(), packets));
        Self { waiting, outgoing, tasks: [read.abort_handle(), write.abort_handle()] }
    }

    /// Authenticates by one of the methods that the daemon accepts. Returns whether the daemon asked for authentication.
    async fn authenticate(&self, endpoint: &Endpoint, methods: &[i32]) -> Result<bool, Error> {
        if methods.is_empty() || methods.contains(&AUTH_NONE) {
            return Ok(false);
        }
        if !methods.contains(&AUTH_POLKIT) {
            return Err(Error::Auth(sasl_advice(endpoint).to_owned()));
        }
        match self.call::<AuthPolkit>(()).await {
            Ok(_complete) => Ok(true),
            Err(Error::Remote(RemoteError {
                code: ErrorCode::AuthFailed | ErrorCode::AuthCancelled | ErrorCode::AuthUnavailable,
                message,
                ..
            })) => Err(Error::Auth(format!(
                "polkit says no ({message}); allow org.libvirt.unix.manage for this user, or run as root"
            ))),
            Err(error) => Err(error),
        }
    }

    /// Whether calls can be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.waiting.lock().closed.is_none()
    }

    /// Calls `P`. Without a deadline: the caller sets it.
    pub(crate) async fn call<P: Procedure>(&self, arguments: P::Arguments<'_>) -> Result<P::Result, Error> {
        let reply = self.send(Call::new(P::NUMBER, &arguments)?).await?;
        trace!(procedure = P::NAME, bytes = reply.payload().len(), "reply");
        match reply.header.status {
            Status::Ok => Ok(xdr::decode_all(reply.payload())?),
            Status::Error => Err(xdr::decode_all::<RemoteError>(reply.payload())?.into()),
            Status::Continue => Err(ProtocolError::Direction.into()),
        }
    }

    async fn send(&self, call: Call) -> Result<Packet, Error> {
        let (sender, receiver) = oneshot::channel();
        let serial = self.waiting.register(call.procedure, sender)?;
        let _forget = Forget { waiting: &self.waiting, serial };
        // Both fail only when the connection has ended.
        let call = Outgoing { serial: Some(serial), packet: call.with_serial(serial) };
        self.outgoing.send(call).await.map_err(|_| self.waiting.reason())?;
        receiver.await.map_err(|_| self.waiting.reason())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// What to do about a daemon that accepts only SASL.
fn sasl_advice(endpoint: &Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Unix(_) | Endpoint::Ssh(_) => {
            "its socket asks for SASL, which is not spoken here; set auth_unix_rw = \"none\" or \"polkit\" in \
             libvirtd.conf (or virtqemud.conf) and restrict the socket by its file permissions"
        }
        Endpoint::Tcp(_) => {
            "it asks for SASL, its default for tcp, which is not spoken here; better use the transport ssh or tls, \
             or set auth_tcp = \"none\" in libvirtd.conf (or virtproxyd.conf) and restrict access to the port: \
             every client that reaches it has full control"
        }
        Endpoint::Tls(_) => {
            "it asks for SASL, which is not spoken here; set auth_tls = \"none\" in libvirtd.conf (or \
             virtproxyd.conf): the client's certificate authenticates it"
        }
    }
}

/// The calls that wait for their replies.
#[derive(Debug, Default)]
struct Waiting(Mutex<WaitingCalls>);

#[derive(Debug, Default)]
struct WaitingCalls {
    calls: HashMap<u32, WaitingCall>,
    last_serial: u32,
    /// Why the connection has ended, once it has.
    closed: Option<Error>,
}

#[derive(Debug)]
struct WaitingCall {
    procedure: i32,
    reply: oneshot::Sender<Packet>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, WaitingCalls> {
        // No code that holds the lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, procedure: i32, reply: oneshot::Sender<Packet>) -> Result<u32, Error> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(reason.clone());
        }
        // Serials wrap after four billion calls; a serial with a waiting call is skipped.
        let mut serial = state.last_serial.wrapping_add(1);
        while state.calls.contains_key(&serial) {
            serial = serial.wrapping_add(1);
        }
        state.last_serial = serial;
        state.calls.insert(serial, WaitingCall { procedure, reply });
        Ok(serial)
    }

    /// Whether a caller still waits for the reply to this call.
    fn expects(&self, serial: u32) -> bool {
        self.lock().calls.contains_key(&serial)
    }

    /// Hands a reply to its call. The call may have been dropped, which leaves its reply behind.
    fn answer(&self, packet: Packet) -> Result<(), Error> {
        let Header { serial, procedure: got, .. } = packet.header;
        let Some(WaitingCall { procedure: called, reply }) = self.lock().calls.remove(&serial) else {
            trace!(serial, "ignored a reply without a pending call");
            return Ok(());
        };
        if called != got {
            return Err(ProtocolError::Procedure { called, got }.into());
        }
        // The call may be dropped at this very moment; then its reply is of no use.
        let _ = reply.send(packet);
        Ok(())
    }

    /// Ends the connection: every waiting call fails, and so does every later one. The first reason stays.
    fn end(&self, reason: Error) {
        debug!(%reason, "a connection to libvirt has ended");
        let mut state = self.lock();
        state.closed.get_or_insert(reason);
        state.calls.clear();
    }

    fn reason(&self) -> Error {
        self.lock().closed.clone().unwrap_or_else(|| Error::Disconnected("it was closed here".to_owned()))
    }
}

/// Takes a call off the list however its future ends.
struct Forget<'a> {
    waiting: &'a Waiting,
    serial: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.waiting.lock().calls.remove(&self.serial);
    }
}

/// Hands out replies until the connection ends.
async fn read(reader: impl AsyncRead + Unpin, waiting: Arc<Waiting>, outgoing: mpsc::Sender<Outgoing>) {
    let mut reader = BufReader::with_capacity(READ_BUFFER, reader);
    let reason = loop {
        let wanted = |header: &Header| header.kind == Kind::Reply && waiting.expects(header.serial);
        let next = match Packet::read(&mut reader, wanted).await {
            Ok(packet) => receive(packet, &waiting, &outgoing),
            Err(error) => Err(error),
        };
        if let Err(error) = next {
            break error;
        }
    };
    waiting.end(reason);
}

fn receive(packet: Packet, waiting: &Waiting, outgoing: &mpsc::Sender<Outgoing>) -> Result<(), Error> {
    match (packet.header.program, packet.header.kind) {
        (packet::KEEPALIVE_PROGRAM, Kind::Message) => {
            if packet.header.procedure == packet::KEEPALIVE_PING {
                // A full queue means that the daemon does not read. Waiting here would stop the reader, too.
                let _ = outgoing.try_send(Outgoing { serial: None, packet: packet::pong()? });
            }
            Ok(())
        }
        (packet::REMOTE_PROGRAM, Kind::Reply) => waiting.answer(packet),
        // Events and streams, which a daemon sends only to clients that ask for them.
        (packet::REMOTE_PROGRAM, Kind::Message | Kind::Stream) => Ok(()),
        _ => Err(ProtocolError::Direction.into()),
    }
}

/// Sends packets until the connection ends. Flushes all waiting packets together.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    waiting: Arc<Waiting>,
    mut packets: mpsc::Receiver<Outgoing>,
) {
    while let Some(next) = packets.recv().await {
        if let Err(error) = write_gathered(&mut writer, &waiting, next, &mut packets).await {
            waiting.end(error.into());
            return;
        }
    }
}

async fn write_gathered(
    writer: &mut (impl AsyncWrite + Unpin),
    waiting: &Waiting,
    first: Outgoing,
    packets: &mut mpsc::Receiver<Outgoing>,
) -> io::Result<()> {
    let mut next = Ok(first);
    while let Ok(Outgoing { serial, packet }) = next {
        // A call that was dropped while it waited is withdrawn, because its caller may no longer be allowed to make it.
        if serial.is_none_or(|serial| waiting.expects(serial)) {
            writer.write_all(&packet).await?;
        }
        next = packets.try_recv();
    }
    writer.flush().await
}

#[cfg(test)]
mod tests;
