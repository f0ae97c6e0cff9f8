//! Whether the disks have room for the tests. On a full disk etcd and API servers fail in ways that say nothing about the code.

use std::{env, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use crate::repository;

/// The free space that the tests need on each disk, in bytes.
const NEEDED: u64 = 4 * GB;
const GB: u64 = 1_000_000_000;

/// Fails unless the disks of this repository, of cargo's builds and of temporary files have room.
pub(super) fn has_room() -> Result<()> {
    let target = repository::target();
    fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
    let folders = [
        (repository::root(), "delete target/ of other clones, or other files on its disk"),
        (target, "delete old builds in it, or set CARGO_TARGET_DIR to a folder on another disk"),
        (env::temp_dir(), "delete files on its disk, or set TMPDIR to a folder on another disk"),
    ];
    for (folder, remedy) in folders {
        let disk = rustix::fs::statvfs(&folder);
        let disk = disk.with_context(|| format!("reading how full the disk of {} is", folder.display()))?;
        is_enough(&folder, disk.f_bavail.saturating_mul(disk.f_frsize), remedy)?;
    }
    Ok(())
}

/// Fails unless so many free bytes are enough.
fn is_enough(folder: &Path, free: u64, remedy: &str) -> Result<()> {
    let tenths = free / (GB / 10);
    ensure!(
        free >= NEEDED,
        "{} has {}.{} GB of free disk, and the tests need {} GB: {remedy}",
        folder.display(),
        tenths / 10,
        tenths % 10,
        NEEDED / GB
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_named_with_what_to_do() {
        let folder = Path::new("/tmp");
        is_enough(folder, NEEDED, "delete files").unwrap();
        let problem = is_enough(folder, NEEDED - 1, "delete files").unwrap_err().to_string();
        assert_eq!(problem, "/tmp has 3.9 GB of free disk, and the tests need 4 GB: delete files");
        let problem = is_enough(folder, 0, "delete files").unwrap_err().to_string();
        assert!(problem.starts_with("/tmp has 0.0 GB"), "{problem}");
    }
}
