//! `status`, which reaches the operator that leads in its Pod.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::wait::{self, DEADLINE};
use tokio::process::Command;

use crate::support::{Installation, PROGRAM, beside_others};

async fn status(installation: &Installation) -> Result<Value> {
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("KUBECONFIG", installation.testbed.cluster().kubeconfig());
    command.args(["status", "-A", "-o", "json"]).stdin(Stdio::null());
    let output = command.kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("it prints one document")
}

#[test]
fn it_shows_what_the_operator_last_saw_of_the_cloud() -> Result<()> {
    beside_others(async |installation| {
        wait::eventually("the operator has listed its cloud", DEADLINE, async || {
            let seen = status(installation).await?;
            let [cloud] = seen["clouds"].as_array().map(Vec::as_slice).unwrap_or_default() else {
                anyhow::bail!("{}", seen["problems"])
            };
            ensure!(cloud["cloud"] == "libvirt" && cloud["listed"].is_string(), "{cloud}");
            let leader = seen["leader"]["identity"].as_str().unwrap_or_default();
            ensure!(leader.starts_with("peerpod-operator-"), "{leader}");
            let settings = seen["settings"].as_array().into_iter().flatten();
            let providers: Vec<_> = settings.map(|it| &it["provider"]).collect();
            ensure!(providers == ["libvirt"], "{providers:?}");
            Ok(())
        })
        .await
    })
}
