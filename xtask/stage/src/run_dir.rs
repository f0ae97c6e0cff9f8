//! Where a run of tests keeps what it writes.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
};

use anyhow::{Context as _, Result};

/// Makes a folder for what a run of tests writes, which stays for inspection until another run begins. No other run has its
/// lock, which lasts as long as the file is open: folders whose lock nobody holds are of runs that ended, and go.
pub fn run_dir() -> Result<(PathBuf, File)> {
    // Short, as paths of sockets must be.
    let runs = env::temp_dir().join("peerpod-operator-tests");
    fs::create_dir_all(&runs).with_context(|| format!("creating {}", runs.display()))?;
    for entry in fs::read_dir(&runs)? {
        let dir = entry?.path();
        if File::create(dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // Somebody of that run may still be about to end and write; the next run removes what is left.
            let _ = fs::remove_dir_all(&dir);
        }
    }
    let dir = runs.join(std::process::id().to_string());
    fs::create_dir(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    Ok((dir, lock))
}
