//! The ssh transport, implemented here: this side starts no program.
//!
//! The far side's sshd connects to libvirt's socket. If it does not forward to sockets, it starts a program that connects, as for
//! libvirt's own client: `virt-ssh-helper` or netcat.

mod command;
mod host_keys;
mod identity;

use std::env;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use russh::client::{self, Handle};
use ssh_login::{ClientHandler, Tether, has_hung_up};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tracing::debug;

use self::host_keys::{HostKeys, Untrusted};
use super::Stream;
use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Ssh};

/// What the far side may send before it was read: more than almost every answer of libvirt's.
const WINDOW: u32 = 256 * 1024;
/// Messages of the far side that wait to be read; each is 32 KiB at most.
const MESSAGES: usize = 16;

/// Connects to libvirt through the sshd behind `stream`.
pub(super) async fn connect(endpoint: &Endpoint, ssh: &Ssh, stream: TcpStream) -> Result<Session, Error> {
    let host_keys = HostKeys::load(ssh).await?;
    let config = client::Config { window_size: WINDOW, channel_buffer_size: MESSAGES, ..host_keys.config() };
    let (tether, stream) = ssh_login::tie(stream);
    let mut handle = match client::connect_stream(Arc::new(config), stream, ClientHandler(host_keys)).await {
        Ok(handle) => handle,
        Err(Untrusted::Key(problem)) => return Err(Error::Auth(problem)),
        Err(Untrusted::Broken(problem)) => return Err(broken(endpoint, problem)),
    };
    identity::authenticate(endpoint, ssh, &mut handle).await?;
    let stream = reach(endpoint, ssh, &handle).await?;
    Ok(Session { stream, _handle: handle, _tether: tether })
}

/// A stream to libvirt's socket: by sshd itself, or else by a program.
async fn reach(
    endpoint: &Endpoint,
    ssh: &Ssh,
    handle: &Handle<ClientHandler<HostKeys>>,
) -> Result<Box<dyn Stream>, Error> {
    for socket in ssh.sockets.iter().filter(|_| ssh.forward) {
        match handle.channel_open_direct_streamlocal(socket).await {
            Ok(channel) => return Ok(Box::new(channel.into_stream())),
            // sshd does not distinguish a missing permission from a socket without a listener.
            Err(russh::Error::ChannelOpenFailure(reason)) => debug!(socket, ?reason, "sshd does not connect"),
            Err(error) => return Err(broken(endpoint, error)),
        }
    }
    let channel = handle.channel_open_session().await.map_err(|error| broken(endpoint, error))?;
    command::run(endpoint, ssh, channel).await
}

/// The home folder. For root it does not depend on the environment of a container.
fn home() -> Option<PathBuf> {
    if is_root() { Some(PathBuf::from("/root")) } else { env::home_dir() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The ssh connection has failed, before any call to libvirt.
fn broken(endpoint: &Endpoint, error: russh::Error) -> Error {
    let error = match error {
        russh::Error::IO(error) => error,
        error if has_hung_up(&error) => io::ErrorKind::UnexpectedEof.into(),
        error => io::Error::other(error),
    };
    ConnectError::io(endpoint, error).into()
}

/// A stream to libvirt, and the ssh connection around it, which ends with it.
pub(super) struct Session {
    stream: Box<dyn Stream>,
    _handle: Handle<ClientHandler<HostKeys>>,
    _tether: Tether,
}

impl AsyncRead for Session {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Session {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
