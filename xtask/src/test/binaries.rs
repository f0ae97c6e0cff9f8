//! The test binaries of the workspace, as cargo builds them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::Artifact;

use crate::{artifacts, repository};

/// The binary some of whose tests run apart.
const MIXED: &str = "tests/real/main.rs";

/// Tests of [`MIXED`] that run apart, by a part of their names. Those of the service take turns on a cluster of their own. By their
/// names they would begin last, and the processors would be idle. Those of the contract would occupy all threads at once, and wait for
/// clouds most of the time.
const APART: [&str; 2] = ["webhook::service", "provider::contract"];

/// The name of the examples in the documentation.
pub(super) const DOCUMENTATION: &str = "documentation";

/// A program that runs tests and reports them in the format of Rust's test harness.
pub(super) struct Binary {
    /// Its main source file, below the top folder.
    pub(super) name: String,
    /// The command that runs it as cargo would.
    pub(super) command: Command,
}

/// Builds all of them; cargo prints errors and warnings. The examples in the documentation come last.
pub(super) fn build() -> Result<Vec<Binary>> {
    let mut cargo = repository::cargo();
    cargo.args(["test", "--workspace", "--no-run", "--quiet", artifacts::FORMAT]);
    let built = artifacts::build(&mut cargo).context("building the tests")?;
    let mut binaries: Vec<_> = built.iter().flat_map(Binary::of).collect();
    ensure!(!binaries.is_empty(), "cargo built no test");
    let mut examples = repository::cargo();
    examples.args(["test", "--workspace", "--doc"]);
    binaries.push(Binary { name: DOCUMENTATION.to_owned(), command: examples });
    Ok(binaries)
}

impl Binary {
    /// The binary of this artifact, if it runs tests; several times if some of them run apart.
    fn of(artifact: &Artifact) -> Vec<Self> {
        let executable = artifact.executable.as_ref().filter(|_| artifact.profile.test);
        let Some((executable, folder)) = executable.zip(artifact.manifest_path.parent()) else {
            return Vec::new();
        };
        let source = artifact.target.src_path.as_std_path();
        let name = source.strip_prefix(repository::root()).unwrap_or(source).display().to_string();
        let running = |name: String, arguments: &[&str]| {
            let mut command = Command::new(executable);
            command.current_dir(folder).args(arguments);
            Self { name, command }
        };
        if name != MIXED {
            return vec![running(name, &[])];
        }
        let skipped: Vec<_> = APART.into_iter().flat_map(|tests| ["--skip", tests]).collect();
        let apart = APART.map(|tests| running(format!("{name} {tests}"), &[tests]));
        apart.into_iter().chain([running(name, &skipped)]).collect()
    }
}
