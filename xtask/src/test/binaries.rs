//! The test binaries of the workspace, as cargo builds them.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::Artifact;

use crate::{artifacts, repository};

/// Tests that take turns on a cluster of their own, in the binary of many others. By their names they would begin last, and the
/// processors would be idle.
const APART: (&str, &str) = ("tests/real/main.rs", "webhook::service");

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
    binaries.push(Binary { name: "documentation".to_owned(), command: examples });
    Ok(binaries)
}

impl Binary {
    /// The binary of this artifact, if it runs tests; twice if some of them run apart.
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
        let (binary, tests) = APART;
        if name != binary {
            return vec![running(name, &[])];
        }
        vec![running(format!("{name} {tests}"), &[tests]), running(name, &["--skip", tests])]
    }
}
