//! The operator's program as it is released.

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};
use peerpod_operator::install::NAME;

use crate::{repository, test::cargo};

/// Builds it, with further arguments of cargo's; gives the program.
pub(crate) fn build(further: &[&str]) -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", NAME, "--bin", NAME];
    cargo(&[&arguments, further].concat())?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let program = repository::root().join(target).join("release").join(NAME);
    ensure!(program.exists(), "cargo did not put the program at {}", program.display());
    Ok(program)
}
