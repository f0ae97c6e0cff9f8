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

/// Any path will do: the test driver makes no files.
const POOL_PATH: &str = "/pool";
/// Names the processes of a detached daemon, for [`Libvirtd::stop_detached`].
const PROCESSES: &str = "processes.json";
/// How long virsh may take to connect.
const FOLLOWER_DEADLINE: Duration = Duration::from_secs(60);

/// A private libvirtd that serves `test:///default`.
///
/// The driver's state lives in the daemon as long as one connection to it is open. [`Host::client`] keeps one; beside a
/// detached daemon, a process does.
#[derive(Debug)]
pub struct Libvirtd {
    dir: PathBuf,
    process: Process,
    lifetime: Lifetime,
    host: Host,
}

impl Libvirtd {
    /// Makes sure that the packages are installed, so that [`start`](Self::start) need not.
    pub fn install() -> Result<()> {
        cluster::packages::ensure(&PACKAGES)
    }

    /// Starts one with its state and its log in `dir`, which it has to itself; it has the driver's one domain `test`,
    /// the pool [`POOL`](super::POOL) and the base volume. Missing packages are installed first. Any user can, where the
    /// kernel lets users have namespaces.
    pub async fn start(dir: &Path, lifetime: Lifetime) -> Result<Self> {
        Self::install()?;
        daemon::prepare(dir, NO_LISTENER)?;
        Self::start_prepared(dir, lifetime).await
    }

    /// The same, with listeners on the network beside the socket: at this address, or at a loopback address of their own.
    pub async fn start_listening(
        dir: &Path,
        auth: TcpAuth,
        address: Option<Ipv4Addr>,
    ) -> Result<(Self, Listener)> {
        Self::start_listener(dir, auth, address.unwrap_or_else(loopback), Lifetime::Owned).await
    }

    /// The same for those to whom this machine has that address: anybody there may come by tcp.
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
                // A detached one would stay, and nobody would know of it.
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
            // It is told of events that nobody reads, and keeps its connection.
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

    /// Where pod VMs are made and looked at.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Starts virsh to write down, as `NAME.log` in the daemon's folder, a line for each start and end of a domain.
    /// It ends with this program.
    pub async fn follow(&self, name: &str) -> Result<Process> {
        follow(name, &self.dir, &self.host, Lifetime::Owned).await
    }

    /// Ends the daemon, and all its state with it: connections are closed, new ones are refused.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Lets the daemon hang: connections stay, and nothing is answered, until [`resume`](Self::resume).
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a daemon that hangs go on.
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

/// Starts virsh to wait for events, and returns once it is connected and told of them.
async fn follow(name: &str, dir: &Path, host: &Host, lifetime: Lifetime) -> Result<Process> {
    // It notes when it hears of an event: first in line for the processor, where that is allowed, it hears at once.
    let mut virsh = Command::new("nice");
    virsh.args(["--adjustment=-20", "virsh", "--connect", &host.uri().to_string()]).env("LC_ALL", "C");
    virsh.args(["event", "--event", "lifecycle", "--loop", "--timestamp"]);
    let follower = Process::start(name, &virsh, dir, lifetime)?;
    // It says nothing when it is connected, so events are made until it tells of one.
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
