//! A machine, which is reached by SFTP alone *(client required)*.

use std::{
    error,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use russh::{
    client::{self, AuthResult},
    keys::{HashAlg, PublicKey, PublicKeyOrCertificate, key::PrivateKeyWithHashAlg},
};
use russh_sftp::client::{self as sftp, SftpSession};
use ssh_login::{ClientHandler, HostKeyCheck, Tether};
use tokio::{
    fs,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

const PORT: u16 = 22;

/// A machine that finds this file restarts, and forgets the Pod. sshd shows the folder at its root.
const REBOOT: &str = "cidata/reboot";

/// The most trusted host keys that are read, and the most bytes of each: the limits of cloud-api-adaptor.
const MOST_KEYS: usize = 100;
const LONGEST_KEY: u64 = 16 << 10;

/// The most characters of a problem that are logged.
const QUOTED: usize = 400;

/// How long the login to a machine and the write that restarts it may take together. This leaves a third of a call's minute for the
/// pool. So a machine that always hangs still returns to the pool.
const PATIENCE: Duration = Duration::from_secs(40);

/// How machines are reached.
pub(super) struct Access {
    pub(super) user: String,
    pub(super) key: PathBuf,
    /// The folder with the trusted host keys. None: every one is trusted.
    pub(super) host_keys: Option<PathBuf>,
    /// How long a login may take at most, and how long a write.
    pub(super) patience: Duration,
}

type Failure = Box<dyn error::Error + Send + Sync>;

/// SFTP, and the connection around it, which ends with it whatever the far side does.
pub(super) struct Session {
    sftp: SftpSession,
    _handle: client::Handle<ClientHandler<Trusted>>,
    _tether: Tether,
    begun: Instant,
}

/// The host keys that are trusted.
struct Trusted(Option<Vec<PublicKey>>);

impl HostKeyCheck for Trusted {
    type Error = russh::Error;

    fn check(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let Some(trusted) = &self.0 else { return Ok(true) };
        let PublicKeyOrCertificate::PublicKey { key, .. } = shown else { return Ok(false) };
        Ok(trusted.iter().any(|known| known.key_data() == key.key_data()))
    }
}

impl Access {
    /// Makes the machine restart. The error says why not, for the log.
    pub(super) async fn reboot(&self, session: Session) -> Result<(), String> {
        let write = async {
            let mut file = session.sftp.create(REBOOT).await?;
            file.write_all(b"reboot").await?;
            Ok(file.close().await?)
        };
        bounded(left(self.patience, session.begun.elapsed()), write).await
    }

    /// Logs in to the machine at this address within this time, and changes nothing there.
    pub(super) async fn log_in(&self, address: IpAddr, most: Duration) -> Result<Session, String> {
        bounded(most, self.connect(address)).await
    }

    async fn connect(&self, address: IpAddr) -> Result<Session, Failure> {
        let begun = Instant::now();
        let trusted = match &self.host_keys {
            Some(folder) => Some(host_keys(folder).await?),
            None => None,
        };
        let (tether, stream) = ssh_login::tie(TcpStream::connect((address, PORT)).await?);
        let config = ssh_login::config(trusted.as_deref().unwrap_or_default());
        let connected =
            client::connect_stream(Arc::new(config), stream, ClientHandler(Trusted(trusted))).await;
        let mut handle = connected.map_err(|error| match error {
            russh::Error::UnknownKey => "its host key is not in the folder SSH_HOST_KEY_ALLOWLIST_DIR".into(),
            error => Failure::from(error),
        })?;
        self.authenticate(&mut handle).await?;
        let channel = handle.channel_open_session().await?;
        channel.request_subsystem(true, "sftp").await?;
        // The caller bounds all of it. The default ends each request after 10 s.
        let config = sftp::Config { request_timeout_secs: PATIENCE.as_secs(), ..sftp::Config::default() };
        let sftp = SftpSession::new_with_config(channel.into_stream(), config).await?;
        Ok(Session { sftp, _handle: handle, _tether: tether, begun })
    }

    async fn authenticate(&self, handle: &mut client::Handle<ClientHandler<Trusted>>) -> Result<(), Failure> {
        let Self { user, key: file, .. } = self;
        let key = ssh_login::private_key(file).await;
        let key = key.map_err(|problem| format!("the private key {}: {problem}", file.display()))?;
        let key = key.ok_or_else(|| format!("there is no private key {}", file.display()))?;
        let hash = ssh_login::signature_hash(handle, &key).await?;
        let fingerprint = key.fingerprint(HashAlg::Sha256);
        let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
        match handle.authenticate_publickey(user, key).await? {
            AuthResult::Success => Ok(()),
            AuthResult::Failure { .. } => {
                Err(format!("it does not let {user} in with the key {fingerprint}").into())
            }
        }
    }
}

/// How long the write may take after a login that took `login`, where each may take `patience`.
fn left(patience: Duration, login: Duration) -> Duration {
    patience.min(PATIENCE.saturating_sub(login))
}

async fn bounded<T>(patience: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, String> {
    match timeout(patience, work).await {
        // The machine is a tenant's, and its texts may be long.
        Ok(done) => done.map_err(|error| error.to_string().chars().take(QUOTED).collect()),
        Err(_) => Err(format!("it did not answer within {patience:?}")),
    }
}

/// The host keys in the files `*.pub` of this folder. Kubelet replaces them, so they are read each time.
async fn host_keys(folder: &Path) -> Result<Vec<PublicKey>, String> {
    let failed = |error: std::io::Error| format!("SSH_HOST_KEY_ALLOWLIST_DIR {}: {error}", folder.display());
    let mut entries = fs::read_dir(folder).await.map_err(failed)?;
    let mut keys = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "pub") || keys.len() >= MOST_KEYS {
            continue;
        }
        let mut text = String::new();
        let file = fs::File::open(path).await.map_err(failed)?;
        // A file that is no text holds no key.
        let _ = file.take(LONGEST_KEY).read_to_string(&mut text).await;
        let mut lines = text.lines().map(ssh_login::single_spaced);
        keys.extend(lines.find_map(|line| PublicKey::from_openssh(&line).ok()));
    }
    if keys.is_empty() {
        return Err(format!(
            "SSH_HOST_KEY_ALLOWLIST_DIR {} has no file *.pub with a host key",
            folder.display()
        ));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_and_a_write_that_hang_leave_time_for_the_pool() {
        let seconds = Duration::from_secs;
        for (patience, login, write) in [(30, 0, 30), (30, 10, 30), (30, 30, 10), (5, 5, 5), (60, 45, 0)] {
            assert_eq!(
                left(seconds(patience), seconds(login)),
                seconds(write),
                "{patience} s, login {login} s"
            );
        }
    }
}
