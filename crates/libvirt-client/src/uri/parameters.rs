//! The part of a URI after the question mark.

use std::path::PathBuf;

use super::{Mode, UriError};

/// All parameters of libvirt's remote URIs, for people. libvirt takes them on any URI and ignores them where they have no
/// meaning, and so does this client.
pub(super) const KNOWN: [&str; 17] = [
    "auth",
    "authfile",
    "command",
    "keyfile",
    "known_hosts",
    "known_hosts_verify",
    "mode",
    "name",
    "netcat",
    "no_sanity",
    "no_tty",
    "no_verify",
    "pkipath",
    "proxy",
    "socket",
    "sshauth",
    "tls_priority",
];

/// Which hosts are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Hosts with a known key.
    Known,
    /// Hosts with a known key, and hosts without any.
    New,
    /// Any.
    Anybody,
}

/// Which program connects to the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proxy {
    Auto,
    Netcat,
    Native,
}

#[derive(Default)]
pub(super) struct Parameters {
    pub(super) name: Option<String>,
    pub(super) socket: Option<PathBuf>,
    pub(super) mode: Mode,
    pub(super) no_verify: bool,
    pub(super) pki: Option<PathBuf>,
    /// Whether the URI contains priorities for `GnuTLS`.
    pub(super) tls_priority: bool,
    /// Whether the URI names a program that would implement ssh, or be the transport.
    pub(super) command: bool,
    pub(super) key: Option<PathBuf>,
    pub(super) known_hosts: Option<PathBuf>,
    pub(super) trust: Option<Trust>,
    pub(super) netcat: Option<String>,
    pub(super) proxy: Option<Proxy>,
}

impl Parameters {
    pub(super) fn parse(query: &str) -> Result<Self, UriError> {
        let mut parameters = Self::default();
        // libvirt accepts either separator, and takes the last of several values.
        for pair in query.split(['&', ';']).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            // libvirt compares names without case.
            match key.to_ascii_lowercase().as_str() {
                "name" => parameters.name = Some(text("name", value, "a URI, percent-encoded")?),
                "socket" => parameters.socket = Some(path("socket", value)?),
                "mode" => {
                    parameters.mode = match value {
                        "auto" => Mode::Auto,
                        "direct" => Mode::Direct,
                        "legacy" => Mode::Legacy,
                        _ => return Err(value_error("mode", "auto, direct or legacy")),
                    }
                }
                "no_verify" => parameters.no_verify = flag("no_verify", value)?,
                "pkipath" => parameters.pki = Some(path("pkipath", value)?),
                "command" => parameters.command = true,
                "keyfile" => parameters.key = Some(path("keyfile", value)?),
                "known_hosts" => parameters.known_hosts = Some(path("known_hosts", value)?),
                "known_hosts_verify" => {
                    parameters.trust = Some(match value {
                        "normal" => Trust::Known,
                        "auto" => Trust::New,
                        "ignore" => Trust::Anybody,
                        _ => return Err(value_error("known_hosts_verify", "normal, auto or ignore")),
                    });
                }
                "netcat" => {
                    parameters.netcat = Some(text("netcat", value, "a program's name, percent-encoded")?);
                }
                // The daemon says which authentication it wants. Credentials are for SASL, which is not spoken here.
                "auth" | "authfile" => {}
                // libvirt's own client would check its certificates before it uses them.
                "no_sanity" => _ = flag("no_sanity", value)?,
                // This client never asks for a password.
                "no_tty" => _ = flag("no_tty", value)?,
                "proxy" => {
                    parameters.proxy = Some(match value {
                        "auto" => Proxy::Auto,
                        "netcat" => Proxy::Netcat,
                        "native" => Proxy::Native,
                        _ => return Err(value_error("proxy", "auto, netcat or native")),
                    });
                }
                "sshauth" if value.split(',').any(|method| method == "privkey") => {}
                "sshauth" => {
                    return Err(value_error(
                        "sshauth",
                        "a list with privkey, the one method that there is here",
                    ));
                }
                "tls_priority" => parameters.tls_priority = true,
                _ => return Err(UriError::UnknownParameter(key.to_owned())),
            }
        }
        Ok(parameters)
    }
}

fn text(parameter: &'static str, value: &str, expected: &'static str) -> Result<String, UriError> {
    unescape(value).filter(|text| !text.is_empty()).ok_or(value_error(parameter, expected))
}

fn path(parameter: &'static str, value: &str) -> Result<PathBuf, UriError> {
    let path = unescape(value).map(PathBuf::from).filter(|path| path.is_absolute());
    path.ok_or(value_error(parameter, "an absolute path"))
}

/// A number that is zero or not.
fn flag(parameter: &'static str, value: &str) -> Result<bool, UriError> {
    let number: i64 = value.parse().map_err(|_| value_error(parameter, "0 or 1"))?;
    Ok(number != 0)
}

pub(super) fn value_error(parameter: &'static str, expected: &'static str) -> UriError {
    UriError::Value { parameter, expected }
}

/// Undoes percent-encoding; `None` if the text is not valid.
pub(super) fn unescape(text: &str) -> Option<String> {
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

/// Percent-encodes what would end a value.
pub(super) fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(byte);
    let escaped = |byte: u8| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escaped).collect()
}
