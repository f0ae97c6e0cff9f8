//! Builds programs as they are released.

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};

use crate::{repository, test::cargo};

/// Links the C library statically. With the shared one, a process would keep 1.5 MiB more in memory.
const RUSTC_ARGUMENTS: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// Builds the program of the package of this name, with further arguments for cargo. Returns the program.
pub(crate) fn build(name: &str, further: &[&str]) -> Result<PathBuf> {
    let arguments = ["rustc", "--release", "--package", name, "--bin", name];
    cargo(&[&arguments, further, &["--"], &RUSTC_ARGUMENTS].concat())?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = repository::root().join(target).join("release").join(name);
    ensure!(program.exists(), "cargo did not put the program at {}", program.display());
    Ok(program)
}
