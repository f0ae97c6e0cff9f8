//! How signals end the commands that are no servers.

use std::{fs, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use super::apply::PATIENCE;
use crate::support::PROGRAM;

/// A cluster that nobody serves.
const DEAD: &str = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], \
                    clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: a, user: {}}]}";

/// In the Job that drains and in a Pod for one command, the program is the first process.
#[tokio::test]
async fn a_signal_ends_a_command_that_is_the_first_process_of_a_container() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let kubeconfig = dir.path().join("kubeconfig");
    fs::write(&kubeconfig, DEAD)?;
    for (signal, status) in [("TERM", 143), ("INT", 130)] {
        let mut command = Command::new("unshare");
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--map-root-user",
            PROGRAM,
            "drain",
            "--timeout=5m",
        ]);
        command.env("KUBECONFIG", &kubeconfig).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut first = command.kill_on_drop(true).spawn()?;
        let errors = first.stderr.take().context("its errors are read once")?;
        let waits = timeout(PATIENCE, BufReader::new(errors).lines().next_line()).await??;
        ensure!(waits.is_some_and(|line| line.contains("trying again")), "it does not wait for the cluster");

        let unshare = first.id().context("it runs")?;
        let drain = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children"))?;
        let sent = Command::new("kill").args(["-s", signal, drain.trim()]).status().await?;
        ensure!(sent.success(), "no signal could be sent to {drain}");
        let ended = timeout(PATIENCE, first.wait()).await.context("it goes on")??;
        ensure!(ended.code() == Some(status), "after {signal} it ended with {ended}");
    }
    Ok(())
}
