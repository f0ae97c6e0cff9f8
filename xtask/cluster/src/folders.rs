//! Folders that stay between runs.

use std::env;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::{Instant, sleep};

/// How often a lock is tried while another process has it.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

const PROJECT: &str = "peerpod-operator";

/// The folder of files that can be made again: `$XDG_CACHE_HOME/peerpod-operator`, by default below `~/.cache`.
pub fn cache() -> Result<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// The folder of running clusters: `$XDG_STATE_HOME/peerpod-operator`, by default below `~/.local/state`.
pub fn state() -> Result<PathBuf> {
    folder("XDG_STATE_HOME", ".local/state")
}

fn folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    // The XDG base directory specification says to ignore a relative path in these variables.
    if let Some(dir) = env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        return Ok(dir.join(PROJECT));
    }
    let home =
        env::home_dir().with_context(|| format!("neither {variable} nor HOME is set: set one of them"))?;
    Ok(home.join(below_home).join(PROJECT))
}

/// Waits for the lock of this file, which lasts as long as the file is open; calls `waiting` while another process has it.
pub async fn lock(path: &Path, deadline: Duration, mut waiting: impl FnMut()) -> Result<File> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let until = Instant::now() + deadline;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => waiting(),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
        ensure!(Instant::now() < until, "another process has held {} for {deadline:?}", path.display());
        sleep(LOCK_INTERVAL).await;
    }
}
