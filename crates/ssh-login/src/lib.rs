//! What an ssh client with a private key in a file needs beside the protocol: the key, its signatures, a connection that ends with its
//! owner, and a server that opens nothing.

mod handler;
mod tether;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use russh::client::{Config, GexParams, Handle, Handler};
use russh::keys::{self, Algorithm, HashAlg, PrivateKey, PublicKey};
use russh::{Preferred, kex};

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
            Err("protected by a passphrase, which cannot be entered here; \
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

/// How keys are exchanged, the fastest first. The far side chooses among these. With a group of 8192 bits, as in the library's default
/// list, an exchange would take two thirds of a second of processor time, in which nothing else happens.
const KEY_EXCHANGES: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::ECDH_SHA2_NISTP384,
    kex::ECDH_SHA2_NISTP521,
    kex::DH_G14_SHA256,
    kex::DH_G15_SHA512,
    kex::DH_G16_SHA512,
    kex::DH_GEX_SHA256,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// What a client negotiates. Host keys of a known kind come first, so that the host shows one of them.
pub fn config(known: &[PublicKey]) -> Config {
    let mut preferred = Preferred { kex: Cow::Borrowed(KEY_EXCHANGES), ..Preferred::DEFAULT };
    let mut algorithms = preferred.key.into_owned();
    let kind = |algorithm: &Algorithm| match algorithm {
        Algorithm::Rsa { .. } => Algorithm::Rsa { hash: None },
        other => other.clone(),
    };
    algorithms
        .sort_by_key(|algorithm| !known.iter().any(|known| kind(&known.algorithm()) == kind(algorithm)));
    preferred.key = Cow::Owned(algorithms);
    // The sizes are in order, and none is too small.
    let gex = GexParams::new(2048, 3072, 4096).unwrap_or_default();
    Config { preferred, gex, ..Config::default() }
}

/// Whether the far side has hung up. The last two are the errors with which the ssh library's task says that it has ended.
pub fn has_hung_up(error: &russh::Error) -> bool {
    use russh::Error::{Disconnect, HUP, RecvError, SendError};
    matches!(error, Disconnect | HUP | SendError | RecvError)
}
