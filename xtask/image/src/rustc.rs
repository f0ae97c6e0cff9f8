//! Facts about the compiler.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The target that a program is built for, which is this machine's. `root` is the folder of its workspace, which chooses the compiler.
pub(crate) fn host(root: &Path) -> Result<String> {
    said(root, "host: ")
}

/// The version of the compiler, and so of the standard library.
pub(crate) fn release(root: &Path) -> Result<String> {
    said(root, "release: ")
}

fn said(root: &Path, key: &str) -> Result<String> {
    let output = Command::new("rustc").arg("-vV").current_dir(root).output().context("running rustc")?;
    ensure!(output.status.success(), "rustc failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let value = text.lines().find_map(|line| line.strip_prefix(key));
    Ok(value.with_context(|| format!("`rustc -vV` has no line `{key}`"))?.to_owned())
}
