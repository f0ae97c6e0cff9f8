//! What cargo builds. Settings of cargo, in files and variables, choose the folder, so cargo is asked which one it was.

use std::{
    io::BufReader,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Artifact, Message};

/// Makes cargo tell its artifacts beside the messages that it prints.
pub(crate) const FORMAT: &str = "--message-format=json-render-diagnostics";

/// The program of this name that this call of cargo builds, which has [`FORMAT`] among its arguments.
pub(crate) fn program(cargo: &mut Command, name: &str) -> Result<PathBuf> {
    let built = build(cargo).with_context(|| format!("building {name}"))?;
    let found = built.into_iter().filter(|it| it.target.name == name).find_map(|it| it.executable);
    Ok(found.with_context(|| format!("cargo built no program {name}"))?.into_std_path_buf())
}

/// The artifacts of such a call of cargo. Cargo prints errors and warnings.
pub(crate) fn build(cargo: &mut Command) -> Result<Vec<Artifact>> {
    let mut cargo = cargo.stdout(Stdio::piped()).spawn().context("running cargo")?;
    let messages = cargo.stdout.take().context("cargo's messages were asked for")?;
    let mut artifacts = Vec::new();
    for message in Message::parse_stream(BufReader::new(messages)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading cargo's messages")? {
            artifacts.push(artifact);
        }
    }
    ensure!(cargo.wait()?.success(), "cargo failed: see above");
    Ok(artifacts)
}
