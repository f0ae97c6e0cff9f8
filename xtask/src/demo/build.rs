//! Builds the operator's program, with progress for a watching user.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::{artifacts, repository};

/// Builds the operator in the package of this name. Returns the program.
pub(super) async fn operator(name: &str, progress: &mut Progress) -> Result<PathBuf> {
    let mut cargo = Command::from(repository::build(name))
        .stderr(Stdio::piped())
        .spawn()
        .context("running cargo build")?;
    let stderr = cargo.stderr.take().context("cargo's messages were asked for")?;
    let mut messages = BufReader::new(stderr).lines();
    let (mut said, mut compiled) = (Vec::new(), 0);
    while let Some(message) = messages.next_line().await? {
        if let Some(package) = message.trim_start().strip_prefix("Compiling ") {
            compiled += 1;
            progress.detail(&format!("{compiled} packages so far, now {package}"));
        }
        said.push(message);
    }
    ensure!(cargo.wait().await?.success(), "building the operator failed:\n{}", said.join("\n"));
    // It is built, so cargo only says where it is.
    artifacts::program(repository::build(name).args([artifacts::FORMAT, "--quiet"]), name)
}
