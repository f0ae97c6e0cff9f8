//! What an ssh client with a private key in a file needs beside the protocol: the key, its signatures, a connection that ends with its
//! owner, and a server that opens nothing.

mod handler;
mod tether;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use russh::Preferred;
use russh::client::{Handle, Handler};
use russh::keys::{self, Algorithm, HashAlg, PrivateKey, PublicKey};

pub use handler::{ClientHandler, HostKeyCheck};
pub use tether::{Tether, Tethered, tie};

/// A line of a key file with a single space between words, as the parsers of keys take it. OpenSSH takes any blanks.
pub fn single_spaced(line: &str) -> String {
    line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// A private key; `None` if there is no such file.
pub async fn private_key(file: &Path) -> Result<Option<PrivateKey>, String> {
    let text = match tokio::fs::read_to_string(file).await {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    match keys::decode_secret_key(&text, None) {
        Ok(key) if !key.is_encrypted() => Ok(Some(key)),
        Ok(_) | Err(keys::Error::KeyIsEncrypted) => {
            Err("protected by a passphrase, which the operator cannot enter; \
                                                         use a key without one (ssh-keygen -p removes it)"
                .to_owned())
        }
        Err(error) => Err(format!("not a private key that can be read ({error})")),
    }
}

/// The hash for signatures by this key: the best one that sshd knows. SHA-1 only if sshd says that it knows no other.
pub async fn signature_hash<H: Handler>(
    handle: &Handle<H>,
    key: &PrivateKey,
) -> Result<Option<HashAlg>, russh::Error> {
    if !key.algorithm().is_rsa() {
        return Ok(None);
    }
    Ok(handle.best_supported_rsa_hash().await?.unwrap_or(Some(HashAlg::Sha256)))
}

/// The algorithms to negotiate. Host keys of a known kind come first, so that the host shows one of them.
pub fn preferring(known: &[PublicKey]) -> Preferred {
    let mut preferred = Preferred::DEFAULT;
    let mut algorithms = preferred.key.into_owned();
    let kind = |algorithm: &Algorithm| match algorithm {
        Algorithm::Rsa { .. } => Algorithm::Rsa { hash: None },
        other => other.clone(),
    };
    algorithms
        .sort_by_key(|algorithm| !known.iter().any(|known| kind(&known.algorithm()) == kind(algorithm)));
    preferred.key = Cow::Owned(algorithms);
    preferred
}

/// Whether the far side has hung up. The last two are the errors with which the ssh library's task says that it has ended.
pub fn has_hung_up(error: &russh::Error) -> bool {
    use russh::Error::{Disconnect, HUP, RecvError, SendError};
    matches!(error, Disconnect | HUP | SendError | RecvError)
}
