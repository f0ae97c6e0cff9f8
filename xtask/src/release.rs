//! Builds programs as they are released.

use std::path::PathBuf;

use anyhow::Result;

use crate::{artifacts, repository};

/// Links the C library statically. With the shared one, a process would keep 1.5 MiB more in memory.
const RUSTC_ARGUMENTS: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// Builds the program of the package of this name, with further arguments for cargo. Returns the program.
pub(crate) fn build(name: &str, further: &[&str]) -> Result<PathBuf> {
    let arguments = ["rustc", "--release", "--package", name, "--bin", name, artifacts::FORMAT];
    let mut cargo = repository::cargo();
    cargo.args(arguments).args(further).arg("--").args(RUSTC_ARGUMENTS);
    artifacts::program(&mut cargo, name)
}
