//! A daemon that misbehaves on command: it speaks the protocol in bytes written by hand, independent of the client.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::Duration;

use libvirt_client::{Client, ConnectUri, Options};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

pub(crate) const REMOTE: u32 = 0x2000_8086;
pub(crate) const KEEPALIVE: u32 = 0x6b65_6570;

pub(crate) const CONNECT_OPEN: i32 = 1;
pub(crate) const CONNECT_GET_CAPABILITIES: i32 = 7;
pub(crate) const DOMAIN_LOOKUP_BY_UUID: i32 = 24;
pub(crate) const AUTH_LIST: i32 = 66;
pub(crate) const AUTH_POLKIT: i32 = 70;
pub(crate) const CONNECT_GET_LIB_VERSION: i32 = 157;

/// How long a test waits for what must come.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The listening socket, in a folder of its own.
pub(crate) struct FakeDaemon {
    listener: UnixListener,
    folder: TempDir,
}

/// One client's connection.
pub(crate) struct Peer(pub(crate) UnixStream);

/// A packet that came from the client.
pub(crate) struct Call {
    pub(crate) program: u32,
    pub(crate) procedure: i32,
    pub(crate) kind: i32,
    pub(crate) serial: u32,
    pub(crate) payload: Vec<u8>,
}

impl FakeDaemon {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        Self { listener, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A client with one connection.
    pub(crate) fn client(&self) -> Client {
        self.client_with(Options { connections: 1, ..Options::default() })
    }

    /// A client with one connection and short deadlines.
    pub(crate) fn impatient_client(&self) -> Client {
        self.client_with(short())
    }

    pub(crate) fn client_with(&self, options: Options) -> Client {
        let uri = format!("test+unix:///default?socket={}", self.socket().display());
        Client::new(uri.parse::<ConnectUri>().unwrap(), options)
    }

    /// The next connection, before any message.
    pub(crate) async fn accept_silently(&self) -> Peer {
        let (stream, _) = tokio::time::timeout(SOON, self.listener.accept()).await.unwrap().unwrap();
        Peer(stream)
    }

    /// The next connection, opened as libvirtd does it.
    pub(crate) async fn accept(&self) -> Peer {
        let mut peer = self.accept_silently().await;
        peer.answer(AUTH_LIST, &words(&[0])).await;
        peer.answer(CONNECT_OPEN, &[]).await;
        peer
    }
}

/// The time that [`short`] allows for opening a connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(800);

/// One connection, and deadlines that are short enough for a test and long enough for a busy machine.
pub(crate) fn short() -> Options {
    Options {
        // No call counts as stalled before it has timed out.
        stalled_after: Duration::from_millis(1500),
        connections: 4,
        call_timeout: Duration::from_millis(1500),
        connect_timeout: Some(CONNECT_TIMEOUT),
        ..Options::default()
    }
}

impl Peer {
    pub(crate) async fn read(&mut self) -> Option<Call> {
        let length = self.0.read_u32().await.ok()? as usize;
        let mut bytes = vec![0; length - 4];
        self.0.read_exact(&mut bytes).await.ok()?;
        let word = |index: usize| u32::from_be_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap());
        Some(Call {
            program: word(0),
            procedure: word(2).cast_signed(),
            kind: word(3).cast_signed(),
            serial: word(4),
            payload: bytes[24..].to_vec(),
        })
    }

    /// The next call, which must be of this procedure.
    pub(crate) async fn expect(&mut self, procedure: i32) -> Call {
        let call = tokio::time::timeout(SOON, self.read()).await.unwrap().expect("the client hung up");
        assert_eq!((call.program, call.procedure, call.kind), (REMOTE, procedure, 0));
        call
    }

    /// Expects a call and answers it.
    pub(crate) async fn answer(&mut self, procedure: i32, payload: &[u8]) -> Call {
        let call = self.expect(procedure).await;
        self.reply(&call, payload).await;
        call
    }

    pub(crate) async fn reply(&mut self, call: &Call, payload: &[u8]) {
        self.send(&packet(REMOTE, call.procedure, 1, call.serial, 0, payload)).await;
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Waits until the client hangs up.
    pub(crate) async fn hung_up(&mut self) {
        tokio::time::timeout(SOON, async { while self.read().await.is_some() {} }).await.unwrap();
    }
}

pub(crate) fn packet(
    program: u32,
    procedure: i32,
    kind: i32,
    serial: u32,
    status: i32,
    payload: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(28 + payload.len()).unwrap();
    let mut bytes: Vec<u8> = [length, program, 1].iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.extend(procedure.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(serial.to_be_bytes());
    bytes.extend(status.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A list of numbers, as `AUTH_LIST`'s result.
pub(crate) fn words(numbers: &[u32]) -> Vec<u8> {
    let count = u32::try_from(numbers.len()).unwrap();
    std::iter::once(&count).chain(numbers).flat_map(|number| number.to_be_bytes()).collect()
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An error as libvirtd sends it, with a message and nothing else.
pub(crate) fn error(code: i32, message: &str) -> Vec<u8> {
    error_of(10, code, message)
}

/// The same, noticed by this part of libvirt (`virErrorDomain`).
pub(crate) fn error_of(domain: i32, code: i32, message: &str) -> Vec<u8> {
    let mut bytes = [code.to_be_bytes(), domain.to_be_bytes(), 1i32.to_be_bytes()].concat();
    bytes.extend(string(message));
    bytes.extend([0; 4 * 8]);
    bytes
}

/// libvirt's version as it goes over the wire.
pub(crate) fn version(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}
