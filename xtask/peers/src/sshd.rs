//! A real sshd for one test, which accepts this program's user.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::address::{loopback, port};
use cluster::process::{Lifetime, Process, Signal};
use tokio::sync::OnceCell;

const PACKAGES: [&str; 3] = ["netcat-openbsd", "openssh-client", "openssh-server"];
/// The usual port.
const PORT: u16 = 2222;

/// The root folder of sessions that are limited to SFTP. sshd requires that only root can write to the folders above it.
const ROOT: &str = "/run/peer-sftp";
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A pair of keys: the names of its files, and their content.
struct KeyPair {
    name: String,
    private: Vec<u8>,
    public: String,
}

/// The keys of all sshds of this program. To make them for each one would take a second of processor time.
static KEYS: OnceCell<Vec<KeyPair>> = OnceCell::const_new();

/// What sessions of an sshd may do and see.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder that sessions see at `/run/libvirt`; `None` for the machine's own.
    pub libvirt: Option<PathBuf>,
    /// The root folder of sessions, which are then limited to SFTP; `None` for sessions without limits.
    pub sftp: Option<PathBuf>,
    /// Its address; `None` for a loopback address of its own.
    pub address: Option<Ipv4Addr>,
    /// Its port; `None` for one that is free.
    pub port: Option<u16>,
    /// Further lines of `sshd_config`, such as `AllowStreamLocalForwarding no`.
    pub configuration: String,
}

/// An sshd at an address of its own.
#[derive(Debug)]
pub struct Sshd {
    dir: PathBuf,
    address: Ipv4Addr,
    port: u16,
    process: Process,
}

/// Mounts the folders that sessions shall see, and then runs sshd.
const RUN: &str = r#"set -e
mkdir -p /run/sshd
if [ -n "$1" ]; then mkdir -p /run/libvirt; mount --bind "$1" /run/libvirt; fi
if [ -n "$2" ]; then mkdir -p "$3"; mount --bind "$2" "$3"; fi
shift 3
exec "$@"
"#;

impl Sshd {
    /// Starts one with its keys and its log in `dir`, a folder of its own. It accepts the keys `id_ed25519`, `id_ecdsa` and `id_rsa`
    /// there. Installs missing packages first. Needs root.
    pub async fn start(dir: &Path, options: &Options) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "sshd needs root: run this command as root");
        cluster::packages::ensure(&PACKAGES)?;
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        // sshd may check a login as another user, which must be able to read the folder.
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        let mut known = String::new();
        for KeyPair { name, private, public } in KEYS.get_or_try_init(|| async { make_keys(dir) }).await? {
            let file = dir.join(name);
            fs::write(&file, private)?;
            // sshd takes no private key that others can read.
            fs::set_permissions(&file, Permissions::from_mode(0o600))?;
            fs::write(file.with_extension("pub"), public)?;
            if name.starts_with("id_") {
                known += public;
            }
        }
        fs::write(dir.join("authorized_keys"), known)?;
        let address = options.address.unwrap_or_else(loopback);
        let port = options.port.map_or_else(|| port(address, PORT), Ok)?;
        fs::write(dir.join("sshd_config"), configuration(dir, address, port, options))?;

        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", RUN, "sh"]);
        for folder in [&options.libvirt, &options.sftp] {
            command.arg(folder.as_deref().unwrap_or(Path::new("")));
        }
        command.arg(ROOT);
        command.args(["/usr/sbin/sshd", "-D", "-e", "-f"]).arg(dir.join("sshd_config"));
        let process = Process::start("sshd", &command, dir, Lifetime::Owned)?;
        let probe = || async { Ok(TcpStream::connect((address, port))?) };
        process.wait_until("sshd answers", READY_DEADLINE, probe).await?;
        Ok(Self { dir: dir.to_owned(), address, port, process })
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Address and port, as in a URI.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// The private key of this kind (`ed25519`, `ecdsa`, `rsa`) that it accepts.
    pub fn key(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("id_{kind}"))
    }

    /// Writes a `known_hosts` file with its host key of this kind.
    pub fn known_hosts(&self, kind: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("known_hosts_{kind}"));
        let key = self.host_key(kind)?;
        fs::write(&path, format!("[{}]:{} {key}", self.address, self.port))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Its public host key of this kind, as in a file of OpenSSH.
    pub fn host_key(&self, kind: &str) -> Result<String> {
        Ok(fs::read_to_string(self.dir.join(format!("host_{kind}.pub")))?)
    }

    /// The number of open sessions: it has a process for each connection.
    pub fn sessions(&self) -> Result<usize> {
        let pid = self.process.identity().pid;
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        Ok(children.split_ascii_whitespace().count())
    }

    /// Makes it hang: the system accepts connections, but sshd does not answer.
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Ends it.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.kill().await
    }
}

/// Makes the keys of users and of the host, of each kind.
fn make_keys(dir: &Path) -> Result<Vec<KeyPair>> {
    let mut keys = Vec::new();
    for kind in ["ed25519", "ecdsa", "rsa"] {
        for name in [format!("id_{kind}"), format!("host_{kind}")] {
            let file = dir.join(&name);
            keygen(&file, kind, "")?;
            let (private, public) = (fs::read(&file)?, fs::read_to_string(file.with_extension("pub"))?);
            keys.push(KeyPair { name, private, public });
        }
    }
    Ok(keys)
}

/// Makes a pair of keys, protected by a passphrase unless that is empty.
pub fn keygen(path: &Path, kind: &str, passphrase: &str) -> Result<()> {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", kind, "-C", "test", "-N", passphrase, "-f"]).arg(path);
    if kind == "rsa" {
        // The default of 3072 bits takes a second of processor time for each key.
        command.args(["-b", "2048"]);
    }
    let status = command.status().context("running ssh-keygen")?;
    ensure!(status.success(), "ssh-keygen failed ({status})");
    Ok(())
}

fn configuration(dir: &Path, address: Ipv4Addr, port: u16, options: &Options) -> String {
    let dir = dir.display();
    let sftp = options.sftp.as_ref().map_or_else(String::new, |_| {
        format!("Subsystem sftp internal-sftp\nForceCommand internal-sftp\nChrootDirectory {ROOT}\n")
    });
    // If several lines have the same keyword, sshd uses the first. With SHLVL, bash does not read the user's `.bashrc` before a command.
    format!(
        "{}\nListenAddress {address}\nPort {port}\nPidFile none\nUsePAM no\nStrictModes no\nSetEnv SHLVL=1\n\
         PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         HostKey {dir}/host_ed25519\nHostKey {dir}/host_ecdsa\nHostKey {dir}/host_rsa\n\
         AuthorizedKeysFile {dir}/authorized_keys\n{sftp}",
        options.configuration
    )
}
