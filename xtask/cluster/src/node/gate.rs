//! Holds the sandboxes of a Pod back, like a VM that is slow to start.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::config::{ARRIVALS, Files};
use crate::control_plane::Cluster;

/// Holds back each new sandbox of Pods of one name on the real node, before it has its network. Once dropped, it holds back no more.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    verdicts: AtomicU64,
}

impl Gate {
    /// Lets the waiting sandbox continue. Fails if none waits.
    pub fn pass(&self) -> Result<()> {
        self.tell("pass")
    }

    /// Makes the waiting sandbox fail. The kubelet then tries again with another one. Fails if none waits.
    pub fn fail(&self) -> Result<()> {
        self.tell("fail")
    }

    /// Fails unless a sandbox waits at the gate.
    pub fn holds_one(&self) -> Result<()> {
        let arrivals = fs::metadata(self.arrivals()).map_or(0, |file| file.len());
        ensure!(arrivals > self.verdicts.load(Ordering::Relaxed), "no sandbox waits at the gate");
        Ok(())
    }

    fn tell(&self, verdict: &str) -> Result<()> {
        self.holds_one()?;
        // If the waiting sandbox has ended meanwhile, this fails at once.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let gate = OpenOptions::new().write(true).custom_flags(nonblocking).open(&self.path);
        writeln!(gate.context("opening a gate")?, "{verdict}").context("writing to a gate")?;
        self.verdicts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The gate's name has no dot, so this only adds an extension.
    fn arrivals(&self) -> PathBuf {
        self.path.with_extension(ARRIVALS)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // An error means that none waits, or that the cluster is gone.
        let _ = self.pass();
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.arrivals());
    }
}

impl Cluster {
    /// A gate for the Pods of this name on the real node.
    pub fn gate(&self, pod: &str) -> Result<Gate> {
        ensure!(!pod.contains('.'), "a gate is named for the Pod, without an extension");
        let node = self.plan.node.as_ref().context("the cluster has no real node")?;
        let path = Files::at(&node.dir).gate(pod);
        let gate = Gate { path, verdicts: AtomicU64::new(0) };
        // A sandbox that was being made when an earlier gate was dropped may have left these files.
        for stale in [&gate.path, &gate.arrivals()] {
            let _ = fs::remove_file(stale);
        }
        mknodat(CWD, &gate.path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .with_context(|| format!("creating {}", gate.path.display()))?;
        Ok(gate)
    }
}
