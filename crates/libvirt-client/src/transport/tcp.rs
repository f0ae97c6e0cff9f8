//! TCP connections to a host.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Server};

/// The most addresses of a host that are tried. All are under way within half of the time that a connection has.
const MOST_ADDRESSES: usize = 8;

/// How long an address may take to answer before the next one is tried, too.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// A connection whose host has disappeared ends after a minute. Without these probes an idle one would seem open for good, as it sends
/// nothing.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// Connects to a host's listener. Without a deadline: the caller sets it.
pub(super) async fn connect(endpoint: &Endpoint, server: &Server) -> Result<TcpStream, Error> {
    let open = async {
        let addresses = lookup_host((server.host.as_str(), server.port)).await?;
        let stream = first(addresses.take(MOST_ADDRESSES).collect(), TcpStream::connect).await?;
        // Packets are small and each waits for its answer.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        Ok(stream)
    };
    Ok(open.await.map_err(|error| ConnectError::io(endpoint, error))?)
}

/// The first connection to one of the addresses, or the last problem. The attempts overlap, as an address without an answer would hide
/// the others until the caller's deadline. A failed attempt is followed by the next at once.
async fn first<T, F>(addresses: Vec<SocketAddr>, connect: impl Fn(SocketAddr) -> F) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut problem = io::Error::new(io::ErrorKind::InvalidInput, "the host's name has no address");
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    loop {
        let wait = match addresses.next() {
            Some(address) => {
                attempts.spawn(connect(address));
                NEXT_AFTER
            }
            None => Duration::MAX,
        };
        match timeout(wait, attempts.join_next()).await {
            Err(_no_answer) => {}
            Ok(None) => return Err(problem),
            Ok(Some(ended)) => match ended.unwrap_or_else(|error| Err(error.into())) {
                Ok(connection) => return Ok(connection),
                Err(error) => problem = error,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::time::Instant;

    use super::*;

    const SILENT: u16 = 1;
    const REFUSES: u16 = 2;
    const RESETS: u16 = 3;
    const ACCEPTS: u16 = 4;

    /// What the first connection to one of these ports gives, and after how long.
    async fn first_of(ports: &[u16]) -> (Result<u16, io::ErrorKind>, Duration) {
        let start = Instant::now();
        let addresses = ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let first = first(addresses, attempt).await;
        (first.map_err(|error| error.kind()), start.elapsed())
    }

    async fn attempt(address: SocketAddr) -> io::Result<u16> {
        match address.port() {
            SILENT => std::future::pending().await,
            REFUSES => Err(io::ErrorKind::ConnectionRefused.into()),
            RESETS => Err(io::ErrorKind::ConnectionReset.into()),
            port => Ok(port),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_without_an_answer_do_not_hide_the_next_one() {
        let (connected, took) = first_of(&[SILENT, SILENT, ACCEPTS]).await;
        assert_eq!(connected, Ok(ACCEPTS));
        assert!((2 * NEXT_AFTER..3 * NEXT_AFTER).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_is_followed_by_the_next_one_at_once() {
        let (connected, took) = first_of(&[REFUSES, ACCEPTS, SILENT]).await;
        assert_eq!(connected, Ok(ACCEPTS));
        assert!(took < NEXT_AFTER, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_problem_is_reported_if_no_address_accepts() {
        assert_eq!(first_of(&[REFUSES, RESETS]).await.0, Err(io::ErrorKind::ConnectionReset));
        assert_eq!(first_of(&[]).await.0, Err(io::ErrorKind::InvalidInput));
    }

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
