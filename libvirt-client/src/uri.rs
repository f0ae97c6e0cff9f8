//! Connection URIs, as libvirt documents them: `driver[+transport]://[user@][host][:port]/path[?parameters]`.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// Parameters of libvirt's remote URIs that concern other transports than the unix socket. libvirt takes them on
/// any URI and ignores them where they have no meaning, and so does this client.
const OTHER_TRANSPORTS: [&str; 11] = [
    "command",
    "keyfile",
    "known_hosts",
    "known_hosts_verify",
    "netcat",
    "no_tty",
    "no_verify",
    "pkipath",
    "proxy",
    "sshauth",
    "tls_priority",
];

/// Where a libvirt daemon is, and which of its drivers is meant.
///
/// ```
/// # use libvirt_client::ConnectUri;
/// let uri: ConnectUri = "qemu+unix:///system?socket=/run/libvirt/virtqemud-sock".parse()?;
/// assert_eq!(uri.driver(), Some("qemu:///system"));
/// # Ok::<(), libvirt_client::UriError>(())
/// ```
///
/// - `qemu:///system` and `qemu+unix:///system` both mean the unix socket; `test:///default`, too, which libvirt's
///   C library would serve within the process.
/// - `socket=PATH` names the socket. Otherwise it is the one that libvirt documents: with `mode=direct` the
///   driver's own daemon's (`virtqemud-sock`), with `mode=legacy` libvirtd's (`libvirt-sock`), and with `mode=auto`
///   or without it the first of these that exists. They are in `/run/libvirt`, or in `/var/run/libvirt` if only
///   that exists; for the path `/session` in `$XDG_RUNTIME_DIR/libvirt`.
/// - `name=URI` is sent to the daemon in place of the URI without its transport and parameters.
/// - libvirt passes a parameter that it does not know on to the driver. Here it is an error: it is a typing error
///   far more often than it is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectUri {
    /// As it was written. Nothing in it is secret: a URI with a user is not accepted.
    text: String,
    driver: Option<String>,
    socket: Socket,
}

/// How the socket's path is found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Socket {
    Path(PathBuf),
    Default { daemon: Option<&'static str>, mode: Mode, session: bool },
}

/// Which daemon serves the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Auto,
    Direct,
    Legacy,
}

/// Why a URI is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UriError {
    /// Not `driver[+transport]://…`.
    #[error(
        "a libvirt URI looks like qemu:///system or qemu+unix:///system?socket=/run/libvirt/libvirt-sock"
    )]
    Shape,
    /// A transport that is not spoken here.
    #[error(
        "the libvirt transport {0:?} is not supported: only unix is spoken so far; mount the daemon's socket and \
         use a URI such as qemu+unix:///system?socket=/run/libvirt/libvirt-sock"
    )]
    Transport(String),
    /// A host without a transport means TLS.
    #[error(
        "a libvirt URI with a host and no transport means tls, which is not supported: only unix is spoken so far; \
         leave the host out (qemu:///system)"
    )]
    HostWithoutTransport,
    /// The unix socket has no host, user or port.
    #[error(
        "a libvirt URI with the transport unix has no host, user or port: write three slashes after the colon"
    )]
    UnixWithHost,
    /// A parameter that libvirt's remote URIs do not have.
    #[error(
        "unknown parameter {0:?} in the libvirt URI; for the unix socket there are socket, mode and name"
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

    /// The path of the socket, as of now.
    pub fn socket(&self) -> PathBuf {
        match &self.socket {
            Socket::Path(path) => path.clone(),
            Socket::Default { daemon, mode, session } => {
                let folder = if *session { session_folder() } else { system_folder() };
                socket_in(&folder, *daemon, *mode)
            }
        }
    }
}

/// The socket of the driver's own daemon or of libvirtd.
fn socket_in(folder: &Path, daemon: Option<&str>, mode: Mode) -> PathBuf {
    let direct = daemon.map(|daemon| folder.join(format!("{daemon}-sock")));
    match (mode, direct) {
        (Mode::Direct, Some(direct)) => direct,
        (Mode::Auto, Some(direct)) if direct.exists() => direct,
        _ => folder.join("libvirt-sock"),
    }
}

fn system_folder() -> PathBuf {
    let folders = ["/run/libvirt", "/var/run/libvirt"].map(Path::new);
    folders.into_iter().find(|folder| folder.exists()).unwrap_or(folders[0]).to_owned()
}

fn session_folder() -> PathBuf {
    // Without XDG_RUNTIME_DIR libvirt falls back to the cache folder.
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let cache = || env::home_dir().map(|home| home.join(".cache"));
    runtime.or_else(cache).unwrap_or_else(|| PathBuf::from("/run")).join("libvirt")
}

/// The daemon that serves one driver alone.
fn daemon(driver: &str) -> Option<&'static str> {
    Some(match driver {
        "bhyve" => "virtbhyved",
        "ch" => "virtchd",
        "lxc" => "virtlxcd",
        "qemu" => "virtqemud",
        "vbox" => "virtvboxd",
        "vz" => "virtvzd",
        "xen" => "virtxend",
        _ => return None,
    })
}

impl FromStr for ConnectUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Shape)?;
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (driver, transport) = scheme.split_once('+').map_or((scheme, None), |(d, t)| (d, Some(t)));
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_name(driver) || text.contains('#') {
            return Err(UriError::Shape);
        }
        match (transport, authority.is_empty()) {
            (None | Some("unix"), true) => {}
            (None, false) => return Err(UriError::HostWithoutTransport),
            (Some("unix"), false) => return Err(UriError::UnixWithHost),
            (Some(other), _) if is_name(other) => return Err(UriError::Transport(other.to_owned())),
            (Some(_), _) => return Err(UriError::Shape),
        }

        let Parameters { name, socket, mode } = Parameters::parse(query.unwrap_or_default())?;
        let derived = || (driver != "remote").then(|| format!("{driver}://{path}"));
        let daemon = daemon(driver);
        if mode == Mode::Direct && socket.is_none() && daemon.is_none() {
            return Err(UriError::NoDaemon(driver.to_owned()));
        }
        let default = Socket::Default { daemon, mode, session: path == "/session" };
        Ok(Self {
            text: text.to_owned(),
            driver: name.or_else(derived),
            socket: socket.map_or(default, Socket::Path),
        })
    }
}

impl TryFrom<&str> for ConnectUri {
    type Error = UriError;

    fn try_from(text: &str) -> Result<Self, UriError> {
        text.parse()
    }
}

impl fmt::Display for ConnectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The part after the question mark.
struct Parameters {
    name: Option<String>,
    socket: Option<PathBuf>,
    mode: Mode,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, UriError> {
        let mut parameters = Self { name: None, socket: None, mode: Mode::Auto };
        // libvirt separates by either sign, and takes the last of several.
        for pair in query.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            // libvirt compares names without case.
            match key.to_ascii_lowercase().as_str() {
                "name" => {
                    let name = unescape(value).filter(|name| !name.is_empty());
                    parameters.name = Some(name.ok_or(value_error("name", "a URI, percent-encoded"))?);
                }
                "socket" => {
                    let path = unescape(value).map(PathBuf::from).filter(|path| path.is_absolute());
                    parameters.socket = Some(path.ok_or(value_error("socket", "an absolute path"))?);
                }
                "mode" => {
                    parameters.mode = match value {
                        "auto" => Mode::Auto,
                        "direct" => Mode::Direct,
                        "legacy" => Mode::Legacy,
                        _ => return Err(value_error("mode", "auto, direct or legacy")),
                    }
                }
                other if OTHER_TRANSPORTS.contains(&other) => {}
                _ => return Err(UriError::UnknownParameter(key.to_owned())),
            }
        }
        Ok(parameters)
    }
}

fn value_error(parameter: &'static str, expected: &'static str) -> UriError {
    UriError::Value { parameter, expected }
}

/// Undoes percent-encoding; none if that is not what it is.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let (digits, tail) = tail.split_first_chunk::<2>()?;
            let value = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            bytes.push(value(digits[0])? * 16 + value(digits[1])?);
            rest = tail;
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
