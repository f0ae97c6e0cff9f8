//! TCP connections to a host.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Server};

/// A connection whose host has disappeared ends after a minute. Without these probes an idle one would seem open for good, as it sends
/// nothing.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// Connects to a host's listener. Without a deadline: the caller sets it.
pub(super) async fn connect(endpoint: &Endpoint, server: &Server) -> Result<TcpStream, Error> {
    let open = async {
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
        // Packets are small and each waits for its answer.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        Ok(stream)
    };
    Ok(open.await.map_err(|error| ConnectError::io(endpoint, error))?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_idle_connection_is_probed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = Server { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
        let stream = connect(&Endpoint::Tcp(server.clone()), &server).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
    }
}
