//! Accepts connections.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tracing::warn;

/// How long to leave the listener alone after it failed, as it does while descriptors are short.
const PAUSE: Duration = Duration::from_secs(1);

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {problem}; choose another address with {flag}")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    problem: io::Error,
}

/// An address that connections are accepted on.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds an address, which `flag` chose. Port 0 lets the system choose.
    pub(crate) async fn bind(address: SocketAddr, flag: &'static str) -> Result<Self, ListenError> {
        let failed = |problem| ListenError { address, flag, problem };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it is, with the port that the system chose if it was asked to.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. Nothing is lost if this is not waited for to its end.
    pub(crate) async fn accept(&self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
