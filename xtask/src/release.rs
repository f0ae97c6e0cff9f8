//! Builds programs as they are released.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{artifacts, repository};

/// Links the C library statically. With the shared one, a process would keep 1.5 MiB more in memory.
const RUSTC_ARGUMENTS: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// Builds the program of the package of this name, with further arguments for cargo. Returns the program.
pub(crate) fn build(name: &str, further: &[&str]) -> Result<PathBuf> {
    let arguments = ["rustc", "--release", "--package", name, "--bin", name, artifacts::FORMAT];
    let mut cargo = repository::cargo();
    cargo.args(arguments).args(further).arg("--").args(RUSTC_ARGUMENTS);
    let built = artifacts::build(&mut cargo).with_context(|| format!("building {name}"))?;
    let program = built.into_iter().filter(|it| it.target.name == name).find_map(|it| it.executable);
    Ok(program.with_context(|| format!("cargo built no program {name}"))?.into_std_path_buf())
}
