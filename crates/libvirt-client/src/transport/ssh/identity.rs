//! The client's identity for sshd: a user and private keys.

use std::env;
use std::sync::Arc;

use russh::client::{AuthResult, Handle};
use russh::keys::HashAlg;
use russh::keys::key::PrivateKeyWithHashAlg;
use ssh_login::{ClientHandler, has_hung_up, private_key, signature_hash};

use super::host_keys::HostKeys;
use super::{broken, home, is_root};
use crate::error::Error;
use crate::uri::{Endpoint, Ssh};

/// The keys that are tried, in the folder `.ssh`.
const USUAL_KEYS: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

fn user(ssh: &Ssh) -> Result<String, Error> {
    if let Some(user) = &ssh.user {
        return Ok(user.clone());
    }
    if is_root() {
        return Ok("root".to_owned());
    }
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok());
    user.ok_or_else(|| {
        Error::Auth("the libvirt URI names no user: write user@ in front of the host".to_owned())
    })
}

/// Offers the keys, one after the other.
pub(super) async fn authenticate(
    endpoint: &Endpoint,
    ssh: &Ssh,
    handle: &mut Handle<ClientHandler<HostKeys>>,
) -> Result<(), Error> {
    let user = user(ssh)?;
    let folder = home().unwrap_or_default().join(".ssh");
    let files = match &ssh.key {
        Some(file) => vec![file.clone()],
        None => USUAL_KEYS.map(|name| folder.join(name)).into(),
    };
    let (mut problems, mut refused) = (Vec::new(), false);
    for file in files {
        let key = match private_key(&file).await {
            Ok(Some(key)) => Arc::new(key),
            Ok(None) if ssh.key.is_none() => continue,
            Ok(None) => return Err(Error::Auth(format!("there is no private key {}", file.display()))),
            Err(problem) => {
                problems.push(format!("{}: {problem}", file.display()));
                continue;
            }
        };
        let hash = signature_hash(handle, &key).await.map_err(|error| broken(endpoint, error))?;
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let key = PrivateKeyWithHashAlg::new(key, hash);
        match handle.authenticate_publickey(&user, key).await {
            Ok(AuthResult::Success) => return Ok(()),
            // A refusal says what else may be tried; the ssh library makes one without that of the connection's end.
            Ok(AuthResult::Failure { remaining_methods, .. }) if !remaining_methods.is_empty() => {
                refused = true;
                problems.push(format!("{} ({fingerprint}): not accepted", file.display()));
            }
            Err(error) if !has_hung_up(&error) => return Err(broken(endpoint, error)),
            // Before it has refused any key, an sshd that hangs up says nothing about them.
            _ if !refused => return Err(broken(endpoint, russh::Error::Disconnect)),
            // After too many attempts.
            _ => {
                problems.push(format!("{} ({fingerprint}): sshd hung up", file.display()));
                break;
            }
        }
    }
    if problems.is_empty() {
        return Err(Error::Auth(format!(
            "there is no private key in {} ({}); put one there, or name one with ?keyfile=PATH",
            folder.display(),
            USUAL_KEYS.join(", ")
        )));
    }
    if !refused {
        let (server, problems) = (&ssh.server, problems.join("; "));
        return Err(Error::Auth(format!("there is no usable key for {user} at {server}: {problems}")));
    }
    Err(Error::Auth(format!(
        "sshd at {} lets {user} in with none of the keys [{}]; add the public key to its authorized_keys there",
        ssh.server,
        problems.join("; ")
    )))
}
