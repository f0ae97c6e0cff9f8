//! The folder of this repository, and cargo in it.

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

/// The folder of cargo's builds.
pub fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Cargo in this repository, as if run from a terminal. The variables that cargo sets for the program that it runs would reach build
/// scripts that depend on them. Then each such run, and the next one without them, would build those packages again.
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

/// Builds an operator's program in the package of the same name, for development.
pub fn build(name: &str) -> Command {
    let mut cargo = cargo();
    // With both packages named, their dependencies have the same features, so that none is built twice.
    cargo.args(["build", "--package=xtask", "--package", name, "--bin", name]);
    cargo
}
