//! What a URI says about ssh.

use std::path::PathBuf;

use super::parameters::{Parameters, Proxy, Trust, value_error};
use super::{Authority, Mode, Server, Socket, UriError};

/// sshd's port.
const PORT: u16 = 22;

/// The netcat that is started if the URI names none.
const NETCAT: &str = "nc";

/// A host that is reached by ssh, and how to reach libvirt's socket from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ssh {
    pub(crate) server: Server,
    /// None for who runs this process.
    pub(crate) user: Option<String>,
    /// The one private key; none for the usual ones.
    pub(crate) key: Option<PathBuf>,
    /// The file with hosts' keys; none for the usual ones.
    pub(crate) known_hosts: Option<PathBuf>,
    pub(crate) trust: Trust,
    /// Whether sshd is asked to connect to the socket.
    pub(crate) forward: bool,
    /// The socket that the URI names, if it names one.
    pub(crate) socket: Option<PathBuf>,
    /// The daemon that the URI wants.
    pub(crate) mode: Mode,
    /// Where the socket may be on the host, first choice first.
    pub(crate) sockets: Vec<String>,
    /// The argument for `virt-ssh-helper`, if it may be started.
    pub(crate) native: Option<String>,
    /// The netcat to start, if one may be.
    pub(crate) netcat: Option<String>,
}

impl Ssh {
    pub(super) fn new(
        authority: &Authority,
        driver: &str,
        path: &str,
        parameters: Parameters,
    ) -> Result<Self, UriError> {
        let Parameters { socket, mode, netcat, proxy, .. } = parameters;
        // virt-ssh-helper takes neither.
        let anywhere = socket.is_none() && mode == Mode::Auto;
        let proxy = match proxy {
            Some(Proxy::Native) if netcat.is_some() => {
                return Err(value_error("netcat", "left out with proxy=native"));
            }
            Some(Proxy::Native) if !anywhere => {
                let expected = "auto or netcat with socket or mode: virt-ssh-helper finds the socket itself";
                return Err(value_error("proxy", expected));
            }
            // A user who names a netcat wants it.
            None if netcat.is_some() => Proxy::Netcat,
            proxy => proxy.unwrap_or(Proxy::Auto),
        };
        let sockets = Socket::new(driver, path, socket.clone(), mode)?.elsewhere();
        let native = (proxy != Proxy::Netcat && anywhere).then(|| format!("{driver}://{path}"));
        if sockets.is_empty() && native.is_none() {
            return Err(value_error(
                "socket",
                "given: a session's socket on another host is found by virt-ssh-helper only",
            ));
        }
        Ok(Self {
            server: authority.server(PORT),
            user: authority.user.clone(),
            key: parameters.key,
            known_hosts: parameters.known_hosts,
            trust: match parameters.trust {
                Some(trust) => trust,
                None if parameters.no_verify => Trust::New,
                None => Trust::Known,
            },
            forward: proxy == Proxy::Auto,
            native,
            netcat: (proxy != Proxy::Native && !sockets.is_empty())
                .then(|| netcat.unwrap_or_else(|| NETCAT.to_owned())),
            socket,
            mode,
            sockets,
        })
    }

    /// The netcat that is not the usual one. It may lead to another daemon, for instance into a container.
    pub(super) fn named_netcat(&self) -> Option<&str> {
        self.netcat.as_deref().filter(|netcat| *netcat != NETCAT)
    }
}
