//! Byte streams to a daemon.

mod ssh;
mod tcp;
mod tls;

use tokio::io::{AsyncRead, AsyncWrite, BufWriter};
use tokio::net::UnixStream;

use crate::error::{ConnectError, Error};
use crate::uri::Endpoint;

/// Packets that wait are sent in one write of up to this many bytes.
const WRITE_BUFFER: usize = 4 * 1024;

/// The stream of a connection. Each packet is one write, and a flush follows when no more packets wait.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to a daemon. Without a deadline: the caller sets it.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Box<dyn Stream>, Error> {
    match endpoint {
        Endpoint::Unix(socket) => match UnixStream::connect(socket.path()).await {
            Ok(stream) => Ok(gathering(stream)),
            Err(error) => Err(ConnectError::io(endpoint, error).into()),
        },
        Endpoint::Tcp(server) => Ok(gathering(tcp::connect(endpoint, server).await?)),
        Endpoint::Tls(tls) => {
            let stream = tcp::connect(endpoint, &tls.server).await?;
            // One record for each packet: libvirtd would leave a second packet in a record unread until another record arrives.
            Ok(Box::new(tls::connect(endpoint, tls, stream).await?))
        }
        Endpoint::Ssh(ssh) => {
            let stream = tcp::connect(endpoint, &ssh.server).await?;
            Ok(gathering(ssh::connect(endpoint, ssh, stream).await?))
        }
    }
}

fn gathering(stream: impl Stream + 'static) -> Box<dyn Stream> {
    Box::new(BufWriter::with_capacity(WRITE_BUFFER, stream))
}
