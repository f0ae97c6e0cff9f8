//! A disk that can be full.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use cluster::process::{Lifetime, Process};

use crate::wait::DEADLINE;

/// Mounts, reports that it has, and keeps running.
const MOUNT: &str =
    r#"mount -t tmpfs -o "size=$2,mode=755" disk "$1" && : > "$1/..mounted" && exec sleep infinity"#;

/// The name of the file that fills the disk.
const FILLER: &str = "..filler";

/// A small file system in memory. A process of its own mounts it in its namespace, so that it is never left behind. Any user can, if
/// the kernel allows user namespaces.
#[derive(Debug)]
pub struct Disk {
    process: Process,
    folder: PathBuf,
}

impl Disk {
    /// Mounts one of this size, such as `64k`. `dir` gets the empty folder that it is mounted on, and a log.
    pub async fn mount(dir: &Path, size: &str) -> Result<Self> {
        let folder = std::path::absolute(dir)?.join("disk");
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--map-root-user", "sh", "-c", MOUNT, "sh"]).arg(&folder).arg(size);
        let disk = Self { process: Process::start("disk", &unshare, dir, Lifetime::Owned)?, folder };
        let mounted = || async {
            ensure!(disk.path().join("..mounted").exists(), "it is not yet");
            Ok(())
        };
        disk.process.wait_until("a file system in memory is mounted", DEADLINE, mounted).await?;
        Ok(disk)
    }

    /// Its path. It uses names that begin with two dots itself.
    pub fn path(&self) -> PathBuf {
        let root = Path::new("/proc").join(self.process.pid().to_string()).join("root");
        root.join(self.folder.strip_prefix("/").unwrap_or(&self.folder))
    }

    /// Leaves no room for a single byte.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.path().join(FILLER)).context("filling the disk")?;
        loop {
            match file.write_all(&[0; 1024]) {
                Err(problem) if problem.kind() == ErrorKind::StorageFull => return Ok(()),
                written => written.context("filling the disk")?,
            }
        }
    }

    /// Undoes [`fill`](Self::fill).
    pub fn make_room(&self) -> Result<()> {
        fs::remove_file(self.path().join(FILLER)).context("making room on the disk")
    }
}
