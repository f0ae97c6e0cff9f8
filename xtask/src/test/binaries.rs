//! The test binaries of the workspace, as cargo builds them.

use std::{
    io::BufReader,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Artifact, Message};

use crate::repository;

/// A program that runs tests and reports them in the format of Rust's test harness.
pub(super) struct Binary {
    /// Its main source file, below the top folder.
    pub(super) name: String,
    /// The command that runs it as cargo would.
    pub(super) command: Command,
}

/// Builds all of them; cargo prints errors and warnings. The examples in the documentation come last.
pub(super) fn build() -> Result<Vec<Binary>> {
    let mut cargo = repository::cargo()
        .args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo test --no-run")?;
    let messages = cargo.stdout.take().context("cargo's messages were asked for")?;
    let mut binaries = Vec::new();
    for message in Message::parse_stream(BufReader::new(messages)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading cargo's messages")? {
            binaries.extend(Binary::of(artifact));
        }
    }
    ensure!(cargo.wait()?.success(), "the tests cannot be built: see above");
    ensure!(!binaries.is_empty(), "cargo built no test");
    let mut examples = repository::cargo();
    examples.args(["test", "--workspace", "--doc"]);
    binaries.push(Binary { name: "documentation".to_owned(), command: examples });
    Ok(binaries)
}

impl Binary {
    /// The binary of this artifact, if it runs tests.
    fn of(artifact: Artifact) -> Option<Self> {
        let executable = artifact.executable.filter(|_| artifact.profile.test)?;
        let mut command = Command::new(executable);
        command.current_dir(artifact.manifest_path.parent()?);
        let source = artifact.target.src_path.as_std_path();
        let name = source.strip_prefix(repository::root()).unwrap_or(source).display().to_string();
        Some(Self { name, command })
    }
}
