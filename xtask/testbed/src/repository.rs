//! Where this repository is, and cargo in it.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Its top folder.
pub fn root() -> PathBuf {
    // The crate's folder is two below the top.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_path_buf()
}

/// Cargo in this repository, as if run from a terminal. What it tells the program that it runs would reach build scripts
/// that depend on it: each such run would build these again, and so would the next one without.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root());
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|told| name.to_string_lossy().starts_with(told)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Builds the program of an operator, of the package of the same name, as one for development.
pub fn build(name: &str) -> Command {
    let mut cargo = cargo();
    // With both packages named their dependencies have the same features, so that none is built twice.
    cargo.args(["build", "--package=xtask", "--package", name, "--bin", name]);
    cargo
}
