//! Builds programs as they are released.

use std::{io::BufReader, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::Message;

use crate::repository;

/// Links the C library statically. With the shared one, a process would keep 1.5 MiB more in memory.
const RUSTC_ARGUMENTS: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// Builds the program of the package of this name, with further arguments for cargo. Returns the program.
pub(crate) fn build(name: &str, further: &[&str]) -> Result<PathBuf> {
    let mut cargo = repository::cargo()
        .args(["rustc", "--release", "--package", name, "--bin", name])
        // Settings of cargo, in files and variables, choose the folder. So cargo is asked which one it was.
        .arg("--message-format=json-render-diagnostics")
        .args(further)
        .arg("--")
        .args(RUSTC_ARGUMENTS)
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo rustc")?;
    let messages = cargo.stdout.take().context("cargo's messages were asked for")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(messages)) {
        if let Message::CompilerArtifact(artifact) = message.context("reading cargo's messages")?
            && artifact.target.name == name
        {
            program = artifact.executable.or(program);
        }
    }
    ensure!(cargo.wait()?.success(), "building {name} failed: see above");
    Ok(program.with_context(|| format!("cargo built no program {name}"))?.into_std_path_buf())
}
