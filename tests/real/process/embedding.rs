//! The controllers inside another program: `examples/embed.rs`, unchanged.

use std::{env, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use testbed::{MountedFolder, Settings};
use tokio::process::Command;

use crate::support::alone;

#[test]
fn another_operator_runs_both_controllers_beside_its_own() -> Result<()> {
    alone(async |alone| {
        alone.operator.kill().await?;
        let dir = tempfile::tempdir()?;
        let settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
        let folders = [("settings", &settings.config_map), ("credentials", &settings.secret)]
            .map(|(name, data)| MountedFolder::create(dir.path().join(name), data));
        let tests = env::current_exe()?;
        let built = tests.ancestors().nth(2).context("tests are in target/PROFILE/deps")?;
        let mut command = Command::new(built.join("examples/embed"));
        for folder in folders {
            command.arg(folder?.path());
        }
        command.env("KUBECONFIG", alone.testbed.cluster().kubeconfig()).stdout(Stdio::piped());
        let mut program =
            command.kill_on_drop(true).spawn().context("starting it: cargo build --example embed")?;

        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;

        let pid = program.id().context("it runs")?;
        ensure!(Command::new("kill").arg(pid.to_string()).status().await?.success());
        ensure!(program.wait().await?.success(), "it does not end in order");
        Ok(())
    })
}
