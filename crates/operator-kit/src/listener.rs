//! Accepts connections.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tracing::{info, warn};

/// How long to pause after the listener failed, as it does while file descriptors are short.
const PAUSE: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted: as many as Linux lets. One that finds no room is tried again after a second, when a
/// probe has given up.
const BACKLOG: i32 = 4096;

/// Linux's number of "Address family not supported by protocol", for which the standard library has no [`io::ErrorKind`].
const EAFNOSUPPORT: i32 = 97;

/// Where to accept connections: written `IP:PORT`, or `:PORT` for every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAt {
    /// Every address of the machine, by IPv6 and IPv4; by IPv4 alone where there is no IPv6.
    Everywhere(u16),
    /// This address and no other.
    Exactly(SocketAddr),
}

impl ListenAt {
    /// An address that a flag of the command line chose, such as `--metrics-addr`. An error about the address names the flag.
    pub fn chosen_by(self, flag: &'static str) -> Address {
        Address { at: self, flags: vec![flag] }
    }
}

/// A text that says no address to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write :PORT for every address of the host, or IP:PORT for one, as in 10.0.0.1:80 or [fd00::1]:80")]
pub struct ListenAtError;

impl FromStr for ListenAt {
    type Err = ListenAtError;

    fn from_str(text: &str) -> Result<Self, ListenAtError> {
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(Self::Everywhere),
            None => text.parse().ok().map(Self::Exactly),
        };
        parsed.ok_or(ListenAtError)
    }
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everywhere(port) => write!(f, ":{port}"),
            Self::Exactly(address) => address.fmt(f),
        }
    }
}

impl From<SocketAddr> for ListenAt {
    fn from(address: SocketAddr) -> Self {
        Self::Exactly(address)
    }
}

/// An address to serve, and the flags that chose it: see [`ListenAt::chosen_by`].
#[derive(Clone, Debug)]
pub struct Address {
    pub(crate) at: ListenAt,
    pub(crate) flags: Vec<&'static str>,
}

impl From<ListenAt> for Address {
    /// No flag chose it.
    fn from(at: ListenAt) -> Self {
        Self { at, flags: Vec::new() }
    }
}

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}: {problem}{advice}")]
pub struct ListenError {
    at: ListenAt,
    problem: io::Error,
    advice: String,
}

impl ListenError {
    /// Why this address cannot be served.
    pub(crate) fn new(Address { at, flags }: &Address, problem: io::Error) -> Self {
        let advice = match flags.join(" or ") {
            flags if flags.is_empty() => flags,
            flags => format!("; choose another address with {flags}"),
        };
        Self { at: *at, problem, advice }
    }
}

/// An address that connections are accepted on.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds an address. Port 0 lets the system choose.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        let failed = |problem| ListenError::new(address, problem);
        let listener = match address.at {
            ListenAt::Everywhere(port) => everywhere(port, open),
            ListenAt::Exactly(address) => open(address),
        };
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it is, with the port that the system chose if it was asked to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. A caller that stops waiting loses nothing.
    pub async fn accept(&self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    warn!(%error, "accepting a connection failed");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Opens every address of the machine by IPv6 and IPv4. If the machine has no IPv6, opens it by IPv4 alone.
fn everywhere<T>(port: u16, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    open((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|problem| {
        if !means_no_ipv6(&problem) {
            return Err(problem);
        }
        info!(port, %problem, "the host has no IPv6: listening on IPv4 only");
        open((Ipv4Addr::UNSPECIFIED, port).into())
    })
}

/// Without IPv6 in the kernel there is no such socket (`EAFNOSUPPORT`). With IPv6 switched off, no interface has the address.
fn means_no_ipv6(problem: &io::Error) -> bool {
    problem.raw_os_error() == Some(EAFNOSUPPORT)
        || matches!(problem.kind(), io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable)
}

/// An IPv6 address accepts connections by IPv4, too, whatever the system's default is.
fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Connections of a program that has ended do not block the port for the next one.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_port_alone_means_every_address_and_what_is_neither_is_explained() {
        for text in [":8080", "0.0.0.0:8080", "[::]:8080", "127.0.0.1:0", "[fd00::1]:80"] {
            let at: ListenAt = text.parse().unwrap();
            assert_eq!(matches!(at, ListenAt::Everywhere(_)), text.starts_with(':'), "{text}");
            assert_eq!(at.to_string(), text);
        }
        for text in ["", ":", ":x", ":65536", "8080", "::1:8080", "localhost:8080", "127.0.0.1"] {
            assert_eq!(text.parse::<ListenAt>(), Err(ListenAtError), "{text}");
        }
    }

    #[tokio::test]
    async fn everywhere_listens_on_ipv4_and_ipv6() {
        let listener = Listener::bind(&ListenAt::Everywhere(0).into()).unwrap();
        let port = listener.address().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        let taken = |address: &Address| Listener::bind(address).unwrap_err().to_string();
        let at = ListenAt::Everywhere(port);
        let (with_flag, without) = (taken(&at.chosen_by("--addr")), taken(&at.into()));
        assert!(without.contains(&format!("on :{port}")) && !without.contains("choose"), "{without}");
        assert_eq!(with_flag, without + "; choose another address with --addr");
    }

    #[tokio::test]
    async fn one_address_listens_on_that_address_alone() {
        let at: ListenAt = "[::1]:0".parse().unwrap();
        let listener = Listener::bind(&at.into()).unwrap();
        let port = listener.address().port();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err());
    }

    #[tokio::test]
    async fn many_can_wait_to_be_accepted() {
        for at in [":0", "127.0.0.1:0"] {
            let listener = Listener::bind(&at.parse::<ListenAt>().unwrap().into()).unwrap();
            let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.address().port());
            let all = futures::future::try_join_all((0..1000).map(|_| TcpStream::connect(address)));
            timeout(Duration::from_secs(30), all).await.unwrap().unwrap();
        }
    }

    #[test]
    fn without_ipv6_it_listens_on_ipv4_and_other_errors_are_returned() {
        let of_kind: fn(io::ErrorKind) -> io::Error = io::Error::from;
        for (problem, opened) in [
            (of_kind(io::ErrorKind::Unsupported), vec!["[::]:80", "0.0.0.0:80"]),
            (of_kind(io::ErrorKind::AddrNotAvailable), vec!["[::]:80", "0.0.0.0:80"]),
            (io::Error::from_raw_os_error(EAFNOSUPPORT), vec!["[::]:80", "0.0.0.0:80"]),
            (of_kind(io::ErrorKind::AddrInUse), vec!["[::]:80"]),
            (of_kind(io::ErrorKind::PermissionDenied), vec!["[::]:80"]),
            // There are too many open files.
            (io::Error::from_raw_os_error(24), vec!["[::]:80"]),
        ] {
            let text = problem.to_string();
            let (tried, problem) = (RefCell::new(Vec::new()), RefCell::new(Some(problem)));
            let outcome = everywhere(80, |address| {
                tried.borrow_mut().push(address.to_string());
                problem.take().map_or(Ok(address), Err)
            });
            assert_eq!(tried.into_inner(), opened, "{text}");
            assert_eq!(outcome.is_ok(), opened.len() == 2, "{text}");
        }
    }
}
