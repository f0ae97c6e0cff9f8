//! A daemon for libvirt's test driver.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::address::loopback;
use cluster::process::{Identity, Lifetime, Process, Signal};

use super::daemon::{self, NO_LISTENER, PACKAGES, Purpose};
use super::host::{Host, Hypervisor};
use super::listener::{Listener, TcpAuth};

/// Any path works: the test driver makes no files.
const POOL_PATH: &str = "/pool";
/// The file that records the processes of a detached daemon, for [`Libvirtd::stop_detached`].
const PROCESSES: &str = "processes.json";
/// How long virsh may take to connect.
const FOLLOWER_DEADLINE: Duration = Duration::from_secs(60);

/// A private libvirtd that serves `test:///default`.
///
/// The driver's state lives in the daemon as long as a connection to it is open. [`Host::client`] keeps one. For a detached daemon, a
/// process of its own keeps one.
#[derive(Debug)]
pub struct Libvirtd {
    dir: PathBuf,
    process: Process,
    lifetime: Lifetime,
    host: Host,
}

impl Libvirtd {
    /// Installs the packages, so that [`start`](Self::start) need not. Fails if a user must first make folders.
    pub fn install() -> Result<()> {
        cluster::packages::ensure(&PACKAGES)?;
        daemon::ensure_folders()
    }

    /// Starts one with its state and its log in `dir`, a folder of its own. It has the driver's one domain `test`, the pool
    /// [`POOL`](super::POOL) and the base volume. Installs missing packages first. Any user can, if the kernel allows user namespaces.
    pub async fn start(dir: &Path, lifetime: Lifetime) -> Result<Self> {
        Self::install()?;
        daemon::prepare(dir, NO_LISTENER)?;
        Self::start_prepared(dir, lifetime).await
    }

    /// The same, also with listeners on the network: at this address, or at a loopback address of their own.
    pub async fn start_listening(
        dir: &Path,
        auth: TcpAuth,
        address: Option<Ipv4Addr>,
    ) -> Result<(Self, Listener)> {
        Self::start_listener(dir, auth, address.unwrap_or_else(loopback), Lifetime::Owned).await
    }

    /// The same at an address of this machine. Every client that can reach it may connect by tcp.
    pub async fn start_at(address: Ipv4Addr, dir: &Path, lifetime: Lifetime) -> Result<Self> {
        Ok(Self::start_listener(dir, TcpAuth::None, address, lifetime).await?.0)
    }

    async fn start_listener(
        dir: &Path,
        auth: TcpAuth,
        address: Ipv4Addr,
        lifetime: Lifetime,
    ) -> Result<(Self, Listener)> {
        Self::install()?;
        let (listener, configuration) = Listener::prepare(dir, auth, address)?;
        daemon::prepare(dir, &configuration)?;
        Ok((Self::start_prepared(dir, lifetime).await?, listener))
    }

    async fn start_prepared(dir: &Path, lifetime: Lifetime) -> Result<Self> {
        let (process, host) = Self::start_daemon(dir, lifetime).await?;
        Ok(Self { dir: dir.to_owned(), process, lifetime, host })
    }

    async fn start_daemon(dir: &Path, lifetime: Lifetime) -> Result<(Process, Host)> {
        let process = daemon::start(dir, Purpose::TestDriver, lifetime)?;
        match Self::furnish(dir, &process, lifetime).await {
            Ok(host) => Ok((process, host)),
            Err(error) => {
                // A detached daemon would stay, and no record would say so.
                process.kill().await?;
                Err(error)
            }
        }
    }

    async fn furnish(dir: &Path, process: &Process, lifetime: Lifetime) -> Result<Host> {
        let uri = daemon::uri(&daemon::socket(dir), "test", "/default")?;
        let client = daemon::connect(process, &uri).await?;
        let host = Host::new(client, Hypervisor::Test, POOL_PATH.to_owned()).await?;
        if lifetime == Lifetime::Detached {
            // This process keeps the connection open. It subscribes to events, but its output is never read.
            let holder = follow("libvirt-holder", dir, &host, lifetime).await?;
            let processes = serde_json::to_vec(&[holder.identity(), process.identity()])?;
            fs::write(dir.join(PROCESSES), processes).context("noting the processes that stay")?;
        }
        Ok(host)
    }

    /// Ends a detached daemon that was started in `dir`, if there is one.
    pub async fn stop_detached(dir: &Path) -> Result<()> {
        let path = dir.join(PROCESSES);
        if !path.exists() {
            return Ok(());
        }
        let noted = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let identities: [Identity; 2] =
            serde_json::from_slice(&noted).with_context(|| format!("reading {}", path.display()))?;
        for (name, identity) in ["libvirt-holder", "libvirtd"].into_iter().zip(&identities) {
            if let Some(process) = Process::find(name, identity, dir)? {
                process.kill().await?;
            }
        }
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
    }

    /// The host, to make and observe pod VMs.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Starts virsh, which writes a line for each start and end of a domain to `NAME.log` in the daemon's folder.
    /// It ends with this program.
    pub async fn follow(&self, name: &str) -> Result<Process> {
        follow(name, &self.dir, &self.host, Lifetime::Owned).await
    }

    /// Ends the daemon, and all its state with it: connections are closed, new ones are refused.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Makes the daemon hang: connections stay, but get no answers until [`resume`](Self::resume).
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Resumes a daemon that hangs.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts the daemon again, at the same URI and with the state of a new one.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        (self.process, self.host) = Self::start_daemon(&self.dir, self.lifetime).await?;
        Ok(())
    }
}

/// Starts virsh to wait for events. Returns once virsh is connected and receives them.
async fn follow(name: &str, dir: &Path, host: &Host, lifetime: Lifetime) -> Result<Process> {
    // virsh notes the time at which it receives an event. A higher priority, if allowed, makes that time more exact.
    let mut virsh = Command::new("nice");
    virsh.args(["--adjustment=-20", "virsh", "--connect", &host.uri().to_string()]).env("LC_ALL", "C");
    virsh.args(["event", "--event", "lifecycle", "--loop", "--timestamp"]);
    let follower = Process::start(name, &virsh, dir, lifetime)?;
    // virsh prints nothing when it has connected. So this makes events until virsh reports one.
    let told = || async {
        let client = host.client();
        let xml = format!(
            "<domain type='test'><name>{name}</name><memory>1</memory><os><type>hvm</type></os></domain>"
        );
        let domain = client.domain_define(&xml).await?;
        client.domain_undefine_plain(&domain).await?;
        let log = fs::read_to_string(follower.log())?;
        ensure!(log.contains("lifecycle"), "it has told of no event yet");
        Ok(())
    };
    if let Err(error) = follower.wait_until("virsh tells of events", FOLLOWER_DEADLINE, told).await {
        follower.kill().await?;
        return Err(error);
    }
    Ok(follower)
}
