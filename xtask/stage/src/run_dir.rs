//! The folder of a run of tests.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use cluster::folders;

/// Makes a folder for the files of a run of tests. It stays for inspection until another run begins. The run holds the folder's lock as
/// long as the file is open. A folder whose lock is free belongs to a run that has ended, and is removed.
pub fn run_dir() -> Result<(PathBuf, File)> {
    let runs = folders::test_runs()?;
    // One run at a time: between making its folder and locking it, a run's folder looks like one of a run that has ended.
    let gate = runs.join("gate");
    let gate = File::create(&gate).with_context(|| format!("creating {}", gate.display()))?;
    gate.lock()?;
    for entry in fs::read_dir(&runs)? {
        let dir = entry?.path();
        // The gate is a file, so it has no lock in it.
        if File::create(dir.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // A process of that run may still be ending and write. The next run then removes the rest.
            let _ = fs::remove_dir_all(&dir);
        }
    }
    let dir = runs.join(std::process::id().to_string());
    fs::create_dir(&dir)?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    Ok((dir, lock))
}
