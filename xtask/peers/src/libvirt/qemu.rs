//! A daemon for the QEMU driver.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};

use super::daemon::{self, NO_LISTENER, PACKAGES, Purpose};
use super::host::{Host, Hypervisor};

/// The emulator, its tool for disk images, and the firmware that cloud-api-adaptor uses.
const QEMU_PACKAGES: [&str; 3] = ["ovmf", "qemu-system-x86", "qemu-utils"];

/// The size of that firmware.
const FIRMWARE_SIZE: usize = 3_653_632;
/// What a processor executes at its start, 16 bytes before the end of the firmware: `cli`, `hlt`, and a jump back to that.
const HALT: [u8; 4] = [0xFA, 0xF4, 0xEB, 0xFD];

/// The folder, in the daemon's, of what it found out about the emulators.
const CAPABILITIES: &str = "cache/qemu/capabilities";
/// The files that the first daemon of this program made there.
static PROBED: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();

/// A private libvirtd that serves `qemu:///system`: domains are QEMU processes without KVM, volumes are files.
///
/// When it ends, for whatever reason, all its domains end with it.
#[derive(Debug)]
pub struct QemuLibvirtd {
    dir: PathBuf,
    process: Process,
    host: Host,
}

impl QemuLibvirtd {
    /// Starts one with its state, its volumes and its log in `dir`, a folder of its own. It has the pool [`POOL`](super::POOL) and the
    /// base volume. Installs missing packages first. Needs root.
    pub async fn start(dir: &Path) -> Result<Self> {
        // The daemon would run in a user namespace, but could not start QEMU there.
        ensure!(
            rustix::process::geteuid().is_root(),
            "a daemon for qemu:///system needs root: run this command as root"
        );
        cluster::packages::ensure(&[PACKAGES.as_slice(), QEMU_PACKAGES.as_slice()].concat())?;
        daemon::prepare(dir, NO_LISTENER)?;
        daemon::prepare_qemu(dir)?;
        provide_capabilities(&dir.join(CAPABILITIES))?;
        let pool = dir.join("pool");
        fs::create_dir_all(&pool).with_context(|| format!("creating {}", pool.display()))?;
        let process = daemon::start(dir, Purpose::Qemu, Lifetime::Owned)?;
        let client =
            daemon::connect(&process, &daemon::uri(&daemon::socket(dir), "qemu", "/system")?).await?;
        keep_capabilities(&dir.join(CAPABILITIES))?;
        let pool = pool.to_str().context("the folder's path is not UTF-8")?.to_owned();
        let firmware = halting_firmware(dir)?;
        let host = Host::new(client, Hypervisor::Qemu { firmware }, pool).await?;
        Ok(Self { dir: dir.to_owned(), process, host })
    }

    /// The host, to make and observe pod VMs.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The file with the UEFI variables of a domain. libvirt deletes it when the domain is undefined with its NVRAM.
    pub fn nvram(&self, domain: &str) -> PathBuf {
        self.dir.join("lib/qemu/nvram").join(format!("{domain}_VARS.fd"))
    }

    /// Ends the daemon and all its domains.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.kill().await
    }
}

/// Makes firmware that halts at once. The real one looks for something to start, and has no rest if there is nothing.
fn halting_firmware(dir: &Path) -> Result<String> {
    let mut content = vec![0xFF; FIRMWARE_SIZE];
    content[FIRMWARE_SIZE - 16..][..HALT.len()].copy_from_slice(&HALT);
    let file = dir.join("firmware.fd");
    fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
    Ok(file.to_str().context("the folder's path is not UTF-8")?.to_owned())
}

/// Saves a daemon the second in which it starts every emulator to see what it can do. It does so all the same if an emulator has changed.
fn provide_capabilities(folder: &Path) -> Result<()> {
    let Some(files) = PROBED.get() else { return Ok(()) };
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, content) in files {
        let file = folder.join(name);
        fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Keeps the files of the first daemon that answers.
fn keep_capabilities(folder: &Path) -> Result<()> {
    // A daemon that makes no such files does without.
    if PROBED.get().is_some() || !folder.exists() {
        return Ok(());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let file = entry?;
        files.push((file.file_name(), fs::read(file.path())?));
    }
    // Another daemon may have been faster.
    let _ = PROBED.set(files);
    Ok(())
}
