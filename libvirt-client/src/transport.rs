//! Byte streams to a daemon.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Server};

/// What a connection runs over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to a daemon. Without a deadline: the caller sets it.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<Box<dyn Stream>, Error> {
    match endpoint {
        Endpoint::Unix(socket) => match UnixStream::connect(socket.path()).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(ConnectError::io(endpoint, error).into()),
        },
        Endpoint::Tcp(server) => Ok(Box::new(tcp(endpoint, server).await?)),
    }
}

async fn tcp(endpoint: &Endpoint, server: &Server) -> Result<TcpStream, Error> {
    let open = async {
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
        // Packets are small and each waits for its answer.
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    Ok(open.await.map_err(|error| ConnectError::io(endpoint, error))?)
}
