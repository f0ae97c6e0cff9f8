//! The destination of a connection.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{Ssh, UriError};

/// Where a daemon is, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Unix(Socket),
    Tcp(Server),
    Tls(Tls),
    Ssh(Ssh),
}

/// For people: what a connection is made to.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(socket) => write!(f, "libvirt's socket {}", socket.path().display()),
            Self::Tcp(server) => write!(f, "libvirt at {server} (tcp)"),
            Self::Tls(tls) => write!(f, "libvirt at {} (tls)", tls.server),
            Self::Ssh(ssh) => write!(f, "libvirt at {} (ssh)", ssh.server),
        }
    }
}

/// A listener on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A listener that speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) server: Server,
    /// The folder with this client's certificates; `None` for libvirt's own places.
    pub(crate) pki: Option<PathBuf>,
    /// Whether the server must prove who it is.
    pub(crate) verify: bool,
}

/// How the socket's path is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Socket {
    Path(PathBuf),
    Default { daemon: Option<&'static str>, mode: Mode, session: bool },
}

/// Which daemon serves the driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Auto,
    Direct,
    Legacy,
}

impl Mode {
    /// The parameter's value; `None` if it need not be given.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Direct => Some("direct"),
            Self::Legacy => Some("legacy"),
        }
    }
}

impl Socket {
    /// `path` if it is given, otherwise that of the driver's daemon.
    pub(super) fn new(
        driver: &str,
        uri_path: &str,
        path: Option<PathBuf>,
        mode: Mode,
    ) -> Result<Self, UriError> {
        let daemon = daemon(driver);
        match path {
            Some(path) => Ok(Self::Path(path)),
            None if mode == Mode::Direct && daemon.is_none() => Err(UriError::NoDaemon(driver.to_owned())),
            None => Ok(Self::Default { daemon, mode, session: uri_path == "/session" }),
        }
    }

    /// The paths that it may have on another host, first choice first; empty if only that host knows.
    pub(super) fn elsewhere(&self) -> Vec<String> {
        let (daemon, mode) = match self {
            Self::Path(path) => return vec![path.to_string_lossy().into_owned()],
            Self::Default { session: true, .. } => return Vec::new(),
            Self::Default { daemon, mode, .. } => (*daemon, *mode),
        };
        let direct = daemon.filter(|_| mode != Mode::Legacy);
        let legacy = (mode != Mode::Direct).then_some("libvirt");
        direct.into_iter().chain(legacy).map(|name| format!("{FOLDER_ELSEWHERE}/{name}-sock")).collect()
    }

    /// The path on this machine, as of now.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Default { daemon, mode, session } => {
                let folder = if *session { session_folder() } else { system_folder() };
                socket_in(&folder, *daemon, *mode)
            }
        }
    }
}

/// The folder of libvirt's sockets on another host. It works whether that host has `/run` or `/var/run`.
const FOLDER_ELSEWHERE: &str = "/var/run/libvirt";

/// The socket of the driver's own daemon or of libvirtd.
pub(super) fn socket_in(folder: &Path, daemon: Option<&str>, mode: Mode) -> PathBuf {
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
        "interface" => "virtinterfaced",
        "lxc" => "virtlxcd",
        "network" => "virtnetworkd",
        "nodedev" => "virtnodedevd",
        "nwfilter" => "virtnwfilterd",
        "qemu" => "virtqemud",
        "secret" => "virtsecretd",
        "storage" => "virtstoraged",
        "vbox" => "virtvboxd",
        "vz" => "virtvzd",
        "xen" => "virtxend",
        _ => return None,
    })
}
