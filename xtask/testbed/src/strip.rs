//! Programs of tests without their debug information, which is most of them and of the images that they are packed into.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// Copies a program without its symbols into a folder, under the same name. Returns the path of the copy.
pub fn strip(program: &Path, dir: &Path) -> Result<PathBuf> {
    let copy = dir.join(program.file_name().context("a program has a name")?);
    let status = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    let status = status.context("running strip, which is installed with gcc")?;
    ensure!(status.success(), "strip {} ended with {status}: see above", program.display());
    Ok(copy)
}
