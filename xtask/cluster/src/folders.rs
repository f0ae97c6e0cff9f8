//! Folders that stay between runs.

use std::env;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError, symlink_metadata};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
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

/// The folder of the runs of tests: `/tmp/peerpod-operator-tests-UID`, which is made for this user alone.
pub fn test_runs() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    // The path must be short, because paths of sockets must be.
    let dir = env::temp_dir().join(format!("{PROJECT}-tests-{user}"));
    make_private(&dir, user)?;
    Ok(dir)
}

/// Makes a folder that only this user may enter. It may be there already. All users may write to the folder above it, and one of them
/// may have put a folder or a link of this name there: root would then write where that user wants.
fn make_private(dir: &Path, user: u32) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(dir);
    if let Err(error) = made
        && error.kind() != ErrorKind::AlreadyExists
    {
        return Err(error).with_context(|| format!("creating {}", dir.display()));
    }
    let found = symlink_metadata(dir).with_context(|| format!("reading {}", dir.display()))?;
    ensure!(
        found.is_dir() && found.uid() == user,
        "{} is a link, a file, or another user's folder: remove it, or set TMPDIR to a folder of your own",
        dir.display()
    );
    Ok(())
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("writing {}", path.display()))
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_folder_of_this_user_is_private() -> Result<()> {
        let above = tempfile::tempdir()?;
        let (dir, user) = (above.path().join("dir"), rustix::process::geteuid().as_raw());
        for _ in 0..2 {
            make_private(&dir, user)?;
            assert_eq!(symlink_metadata(&dir)?.mode() & 0o777, 0o700);
        }
        let (link, file) = (above.path().join("link"), above.path().join("file"));
        symlink(&dir, &link)?;
        fs::write(&file, "")?;
        for (path, user) in [(&link, user), (&file, user), (&dir, user + 1)] {
            let error = make_private(path, user).expect_err("it is not this user's folder").to_string();
            assert!(error.contains("another user's folder: remove it"), "{error}");
        }
        Ok(())
    }
}
