//! Connection URIs, as libvirt documents them: `driver[+transport]://[user@][host][:port]/path[?parameters]`.

mod endpoint;
mod parameters;
mod ssh;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

pub(crate) use self::endpoint::{Endpoint, Mode, Server, Socket, Tls};
pub(crate) use self::parameters::Trust;
use self::parameters::{Parameters, value_error};
pub(crate) use self::ssh::Ssh;

/// The port of libvirtd's plain listener.
const TCP_PORT: u16 = 16509;
/// The port of its TLS listener.
const TLS_PORT: u16 = 16514;

/// Where a libvirt daemon is, and which of its drivers is meant.
///
/// ```
/// # use libvirt_client::ConnectUri;
/// let uri: ConnectUri = "qemu+unix:///system?socket=/run/libvirt/virtqemud-sock".parse()?;
/// assert_eq!(uri.driver(), Some("qemu:///system"));
/// # Ok::<(), libvirt_client::UriError>(())
/// ```
///
/// | URI | transport |
/// |---|---|
/// | `qemu:///system`, `qemu+unix:///system` | the unix socket; for `test:///default`, too, which libvirt's C library would serve within the process |
/// | `qemu+ssh://root@host[:22]/system`, `qemu+libssh…`, `qemu+libssh2…` | ssh |
/// | `qemu+tcp://host[:16509]/system` | TCP in the clear |
/// | `qemu://host[:16514]/system`, `qemu+tls://…` | TLS, with a client certificate |
///
/// Parameters of every transport:
///
/// - `name=URI` is sent to the daemon in place of the URI without its transport and parameters.
/// - `auth`, `authfile` and `no_sanity` change nothing.
/// - A parameter that libvirt gives to other transports only is ignored, as libvirt does. libvirt passes a parameter that no
///   transport has on to the driver. Here it is an error, because it usually is a typing error.
///
/// Parameters that say which socket:
///
/// - `socket=PATH` names it. Otherwise it is the one that libvirt documents: with `mode=direct` the
///   driver's own daemon's (`virtqemud-sock`), with `mode=legacy` libvirtd's (`libvirt-sock`), and with `mode=auto`
///   or without it the first of these that exists. They are in `/run/libvirt`, or in `/var/run/libvirt` if only
///   that exists; for the path `/session` in `$XDG_RUNTIME_DIR/libvirt`.
///
///   With ssh they are looked for on the host, in `/var/run/libvirt`.
///
/// Parameters of ssh. The client implements ssh itself, without `ssh_config`, and all of its transports are the same.
/// The user is the URI's, or the one who runs this process.
///
/// - `keyfile=PATH` is the private key. Otherwise `id_ed25519`, `id_ecdsa` and `id_rsa` in `~/.ssh` are tried; for root
///   that is `/root/.ssh`. Keys with a passphrase, certificates, agents and passwords cannot be used. `sshauth`, if given, must have
///   `privkey`; `no_tty` changes nothing; `command` is refused, as no ssh program is started.
/// - `known_hosts=PATH` has the keys of hosts, otherwise `~/.ssh/known_hosts` and `/etc/ssh/ssh_known_hosts`. No file is
///   written to.
/// - `no_verify=1` and `known_hosts_verify=auto` trust a host without a known key, each time. They refuse a host whose key
///   differs from the known one. `known_hosts_verify=ignore` trusts any host. The latter parameter wins.
/// - The host's sshd connects to the socket. If it does not, `virt-ssh-helper` or `nc -U` is started there. With `proxy=native`
///   only the first is started, with `proxy=netcat` or `netcat=PROGRAM` only the second, and sshd is not asked.
///
/// Parameters of TLS:
///
/// - `pkipath=FOLDER` has the files `cacert.pem`, `clientcert.pem`, `clientkey.pem` and, if wanted, `cacrl.pem`.
///   Otherwise they are where libvirt documents them: in `~/.pki/libvirt`, and those that are not there in
///   `/etc/pki/CA` and `/etc/pki/libvirt`. They are read anew for each connection.
/// - `no_verify=1` trusts any server. Otherwise the authority must have signed its certificate, which must have the URI's host in
///   its subjectAltName.
/// - `tls_priority` is refused: it is in the language of `GnuTLS`, and ignoring it may be less safe than what it requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectUri {
    /// As it was written. It contains no secret: a URI with a password is not accepted.
    text: String,
    /// The driver and the path in it.
    opened: (String, String),
    /// The URI that the daemon opens; `None` lets the daemon choose.
    driver: Option<String>,
    endpoint: Endpoint,
}

/// Why a URI is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UriError {
    /// Not `driver[+transport]://…`.
    #[error(
        "a libvirt URI looks like qemu:///system, qemu+unix:///system?socket=/run/libvirt/libvirt-sock or \
         qemu+ssh://root@host/system"
    )]
    Shape,
    /// A transport that is not spoken here.
    #[error("the libvirt transport {0:?} is not supported: use unix, ssh, tls or tcp")]
    Transport(String),
    /// The unix socket has no host, user or port.
    #[error(
        "a libvirt URI with the transport unix has no host, user or port: write three slashes after the colon"
    )]
    UnixWithHost,
    /// A password in front of the host.
    #[error("a libvirt URI holds no password: write user@host")]
    Password,
    /// A port that is none.
    #[error("the port of a libvirt URI is a number from 1 to 65535")]
    Port,
    /// A parameter that libvirt's remote URIs do not have.
    #[error(
        "unknown parameter {0:?} in the libvirt URI; there are {known}",
        known = parameters::KNOWN.join(", ")
    )]
    UnknownParameter(String),
    /// A parameter whose value makes no sense.
    #[error("the parameter {parameter:?} of the libvirt URI must be {expected}")]
    Value {
        /// The parameter.
        parameter: &'static str,
        /// What its value must be.
        expected: &'static str,
    },
    /// The driver has no daemon of its own.
    #[error("libvirt has no daemon of its own for {0:?}: leave mode=direct out of the URI")]
    NoDaemon(String),
}

impl ConnectUri {
    /// The URI that the daemon opens; none lets it choose a driver (`remote:///`).
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The path of the socket on this machine, as of now; `None` for the other transports.
    pub fn socket(&self) -> Option<PathBuf> {
        match &self.endpoint {
            Endpoint::Unix(socket) => Some(socket.path()),
            Endpoint::Tcp(_) | Endpoint::Tls(_) | Endpoint::Ssh(_) => None,
        }
    }

    /// The daemon and the driver as a URI, without credentials and how to log in there. It has the user only where the daemon is the
    /// user's own. Two URIs with the same address lead to the same place. Two different addresses may do so, too, for instance by two
    /// transports.
    pub fn address(&self) -> String {
        let (mut socket, mut mode, mut netcat, mut proxy) = (None, Mode::Auto, None, None);
        let (transport, server) = match &self.endpoint {
            Endpoint::Unix(Socket::Path(path)) => {
                socket = Some(path);
                ("unix", String::new())
            }
            // Which socket exists may change from one moment to the next.
            Endpoint::Unix(Socket::Default { mode: of, .. }) => {
                mode = *of;
                ("unix", String::new())
            }
            Endpoint::Tcp(server) => ("tcp", server.to_string()),
            Endpoint::Tls(tls) => ("tls", tls.server.to_string()),
            Endpoint::Ssh(ssh) => {
                (socket, mode, netcat) = (ssh.socket.as_ref(), ssh.mode, ssh.named_netcat());
                // The host's own socket is tried before that netcat.
                proxy = netcat.filter(|_| ssh.forward).map(|_| "auto");
                let user = ssh.user.as_ref().filter(|_| self.is_of_user());
                let user = user.map(|user| format!("{user}@")).unwrap_or_default();
                ("ssh", format!("{user}{}", ssh.server))
            }
        };
        let (driver, path) = &self.opened;
        let name = self.driver.as_ref().filter(|name| **name != format!("{driver}://{path}"));
        let parameters = [
            ("socket", socket.map(|path| path.to_string_lossy())),
            ("mode", mode.name().map(Into::into)),
            ("netcat", netcat.map(Into::into)),
            ("proxy", proxy.map(Into::into)),
            ("name", name.map(Into::into)),
        ];
        let parameters: Vec<_> = parameters
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key}={}", parameters::escape(&value?))))
            .collect();
        let sign = if parameters.is_empty() { "" } else { "?" };
        format!("{driver}+{transport}://{server}{path}{sign}{}", parameters.join("&"))
    }

    /// Whether the daemon on another host is the own one of the user who logs in there. The URI may leave that user out.
    fn is_of_user(&self) -> bool {
        self.opened.1 == "/session" && matches!(&self.endpoint, Endpoint::Ssh(Ssh { socket: None, .. }))
    }

    /// The same place, reached with the user, the keys and the trust of another URI, if that has the same transport. The user of a
    /// place whose daemon is a user's own stays.
    #[must_use]
    pub fn reached_as(mut self, other: &Self) -> Self {
        let is_of_user = self.is_of_user();
        match (&mut self.endpoint, &other.endpoint) {
            (Endpoint::Ssh(ssh), Endpoint::Ssh(other)) => {
                if !is_of_user {
                    ssh.user.clone_from(&other.user);
                }
                ssh.key.clone_from(&other.key);
                ssh.known_hosts.clone_from(&other.known_hosts);
                ssh.trust = other.trust;
            }
            (Endpoint::Tls(tls), Endpoint::Tls(other)) => {
                tls.pki.clone_from(&other.pki);
                tls.verify = other.verify;
            }
            _ => {}
        }
        self
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl FromStr for ConnectUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Shape)?;
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (driver, transport) = scheme.split_once('+').map_or((scheme, None), |(d, t)| (d, Some(t)));
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_name(driver) || !transport.is_none_or(is_name) || text.contains('#') {
            return Err(UriError::Shape);
        }
        // For libvirt a host without a transport means TLS.
        let transport = transport.unwrap_or(if authority.is_empty() { "unix" } else { "tls" });
        let authority = Authority::parse(authority)?;
        let parameters = Parameters::parse(query)?;
        let name = parameters.name.clone();
        let endpoint = match transport {
            "unix" if authority != Authority::default() => return Err(UriError::UnixWithHost),
            "unix" => Endpoint::Unix(Socket::new(driver, path, parameters.socket, parameters.mode)?),
            "tcp" => Endpoint::Tcp(authority.server(TCP_PORT)),
            "ssh" if parameters.command => {
                return Err(value_error(
                    "command",
                    "left out: ssh is spoken here, no program is started for it",
                ));
            }
            "ssh" | "libssh" | "libssh2" => Endpoint::Ssh(Ssh::new(&authority, driver, path, parameters)?),
            "tls" if parameters.tls_priority => {
                return Err(value_error(
                    "tls_priority",
                    "left out: GnuTLS is not used, and TLS 1.2 or 1.3 always is",
                ));
            }
            "tls" => Endpoint::Tls(Tls {
                server: authority.server(TLS_PORT),
                pki: parameters.pki,
                verify: !parameters.no_verify,
            }),
            other => return Err(UriError::Transport(other.to_owned())),
        };
        let derived = || (driver != "remote").then(|| format!("{driver}://{path}"));
        let opened = (driver.to_owned(), path.to_owned());
        Ok(Self { text: text.to_owned(), opened, driver: name.or_else(derived), endpoint })
    }
}

impl fmt::Display for ConnectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is between `://` and the path.
#[derive(Debug, Default, PartialEq, Eq)]
struct Authority {
    user: Option<String>,
    host: Option<String>,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Result<Self, UriError> {
        let (user, server) =
            text.rsplit_once('@').map_or((None, text), |(user, server)| (Some(user), server));
        if user.is_some_and(|user| user.contains(':')) {
            return Err(UriError::Password);
        }
        // An IPv6 address is in brackets, and has colons of its own.
        let (host, port) = if let Some(address) = server.strip_prefix('[') {
            let (host, rest) = address.split_once(']').ok_or(UriError::Shape)?;
            (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")).ok_or(UriError::Shape)?)
        } else {
            server.split_once(':').unwrap_or((server, ""))
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if !host.bytes().all(is_host) || user.is_some_and(str::is_empty) {
            return Err(UriError::Shape);
        }
        let port = match port {
            "" => None,
            port => Some(port.parse().ok().filter(|port| *port > 0).ok_or(UriError::Port)?),
        };
        let user = user.map(|user| parameters::unescape(user).ok_or(UriError::Shape)).transpose()?;
        Ok(Self { user, host: (!host.is_empty()).then(|| host.to_owned()), port })
    }

    /// The server. For libvirt a server without a name is this machine.
    fn server(&self, port: u16) -> Server {
        let host = self.host.clone().unwrap_or_else(|| "localhost".to_owned());
        Server { host, port: self.port.unwrap_or(port) }
    }
}

#[cfg(test)]
mod tests;
