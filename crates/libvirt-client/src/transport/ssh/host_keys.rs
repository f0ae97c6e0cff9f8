//! The hosts that an ssh client trusts: `known_hosts` in OpenSSH's format.

use std::io;
use std::path::PathBuf;

use ring::hmac;
use russh::client::Config;
use russh::keys::ssh_key::known_hosts::{Entry, HostPatterns, KnownHosts, Marker};
use russh::keys::{HashAlg, PublicKey, PublicKeyOrCertificate};
use ssh_login::HostKeyCheck;

use super::home;
use crate::error::Error;
use crate::uri::{Server, Ssh, Trust};

/// The host's file, which administrators fill for all users.
const SYSTEM_FILE: &str = "/etc/ssh/ssh_known_hosts";
const PORT: u16 = 22;

/// What is known of one host.
pub(super) struct HostKeys {
    server: Server,
    trust: Trust,
    known: Vec<PublicKey>,
    revoked: Vec<PublicKey>,
    /// Where it was looked for, for people.
    files: String,
}

impl HostKeys {
    pub(super) async fn load(ssh: &Ssh) -> Result<Self, Error> {
        let usual = || {
            let own = home().map(|home| home.join(".ssh/known_hosts"));
            own.into_iter().chain([PathBuf::from(SYSTEM_FILE)]).collect()
        };
        let files: Vec<_> = ssh.known_hosts.clone().map_or_else(usual, |file| vec![file]);
        let listed: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        let server = ssh.server.clone();
        let (known, revoked) = (Vec::new(), Vec::new());
        let mut keys = Self { server, trust: ssh.trust, known, revoked, files: listed.join(" or ") };
        if ssh.trust != Trust::Anybody {
            for file in files {
                match tokio::fs::read(&file).await {
                    Ok(text) => keys.add(&String::from_utf8_lossy(&text)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        return Err(Error::Auth(format!("cannot read {}: {error}", file.display())));
                    }
                }
            }
        }
        Ok(keys)
    }

    /// Reads this host's keys from the text of a file. Skips unreadable lines, as OpenSSH does.
    fn add(&mut self, text: &str) {
        let name = match &self.server {
            Server { host, port: PORT } => host.to_ascii_lowercase(),
            Server { host, port } => format!("[{}]:{port}", host.to_ascii_lowercase()),
        };
        let lines: Vec<_> = text.lines().map(ssh_login::single_spaced).collect();
        // Line by line: the list's own iterator would stop at an unreadable line.
        let entries = lines.iter().flat_map(|line| KnownHosts::new(line)).flatten();
        for entry in entries.filter(|entry| concerns(entry, &name)) {
            match entry.marker() {
                None => self.known.push(entry.public_key().clone()),
                Some(Marker::Revoked) => self.revoked.push(entry.public_key().clone()),
                // Certificates are not asked for.
                Some(Marker::CertAuthority) => {}
            }
        }
    }

    /// What is negotiated.
    pub(super) fn config(&self) -> Config {
        ssh_login::config(&self.known)
    }

    /// What is wrong with this host's key, if anything.
    fn objection(&self, key: &PublicKey) -> Option<String> {
        let Self { server, files, .. } = self;
        let shown = format!("{} {}", key.algorithm(), key.fingerprint(HashAlg::Sha256));
        let is_shown = |known: &PublicKey| known.key_data() == key.key_data();
        let Server { host, port } = server;
        let name = if *port == PORT { host.clone() } else { format!("[{host}]:{port}") };
        if self.trust == Trust::Anybody {
            None
        } else if self.revoked.iter().any(is_shown) {
            Some(format!("{server} shows the host key {shown}, which is revoked in {files}"))
        } else if self.known.iter().any(is_shown) || (self.known.is_empty() && self.trust == Trust::New) {
            None
        } else if self.known.is_empty() {
            Some(format!(
                "the host key of {server} is not known: it shows {shown}, and {files} has none; compare that with \
                 ssh-keygen -lf /etc/ssh/ssh_host_….pub there and add it (ssh-keyscan -p {port} {host}), or use \
                 no_verify=1 to trust a host that is not known"
            ))
        } else {
            Some(format!(
                "the host key of {server} is another than the one in {files}: it shows {shown}; the connection \
                 may be intercepted; if it has a new key for good, ssh-keygen -R '{name}' removes the old one"
            ))
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Untrusted {
    /// The host's key, in words.
    Key(String),
    Broken(russh::Error),
}

impl From<russh::Error> for Untrusted {
    fn from(error: russh::Error) -> Self {
        Self::Broken(error)
    }
}

impl HostKeyCheck for HostKeys {
    type Error = Untrusted;

    fn check(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Untrusted> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        self.objection(key).map_or(Ok(true), |objection| Err(Untrusted::Key(objection)))
    }
}

/// Whether a line is about the host of this name.
fn concerns(entry: &Entry, name: &str) -> bool {
    match entry.host_patterns() {
        HostPatterns::HashedName { salt, hash } => {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
            hmac::verify(&key, name.as_bytes(), hash).is_ok()
        }
        HostPatterns::Patterns(patterns) => {
            let fits = |pattern: &str| fits(pattern.to_ascii_lowercase().as_bytes(), name.as_bytes());
            let excluded = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(fits);
            !excluded && patterns.iter().any(|pattern| fits(pattern))
        }
    }
}

/// Whether a name has the form of a pattern with `*` and `?`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    // Where to go on when the part after the last star does not fit: one byte further.
    let (mut at, mut star) = ((0, 0), None);
    loop {
        match (pattern.get(at.0), name.get(at.1)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                star = Some(at);
                at.0 += 1;
            }
            (Some(b'?'), Some(_)) => at = (at.0 + 1, at.1 + 1),
            (Some(wanted), Some(byte)) if wanted == byte => at = (at.0 + 1, at.1 + 1),
            _ => match star {
                Some((in_pattern, in_name)) if in_name < name.len() => {
                    star = Some((in_pattern, in_name + 1));
                    at = (in_pattern + 1, in_name + 1);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests;
