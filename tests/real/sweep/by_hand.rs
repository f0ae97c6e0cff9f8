//! The command `sweep`.

use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::install;
use serde_json::Value;
use testbed::{MountedFolder, Settings, vm_name};
use tokio::{process::Command, time::timeout};

use super::{sweeping, uid_of_cluster};
use crate::{
    cli::apply::PATIENCE,
    provider::places::{set_other_host, until_recorded},
    support::{Alone, PROGRAM},
};

/// Runs `sweep` with the operator's rights, for a place that belongs to this cluster alone.
async fn by_hand(alone: &Alone<'_>, arguments: &[&str]) -> Result<Output> {
    let dir = tempfile::tempdir()?;
    let mut settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
    settings.config_map.insert("SWEEP_CLUSTER".to_owned(), uid_of_cluster(alone.testbed).await?);
    settings.config_map.insert("SWEEP_EXCLUSIVE".to_owned(), "true".to_owned());
    let credentials = MountedFolder::create(dir.path().join("credentials"), &settings.secret)?;
    let settings = MountedFolder::create(dir.path().join("settings"), &settings.config_map)?;
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("KUBECONFIG", alone.testbed.kubeconfig_of(install::NAME).await?);
    command.args(["sweep", "--pause=1s", "--settings-dir"]).arg(settings.path());
    command.arg("--credentials-dir").arg(credentials.path()).args(arguments);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await.context("sweep takes too long")??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

#[test]
fn a_dry_run_lists_stray_vms_and_a_real_run_deletes_them() -> Result<()> {
    sweeping(&[], &["--sweep=off"], async |alone| {
        let scene = alone.scene();
        let tracked = scene.pod_with_vm("web").await?;
        let stray = scene.host.start_pod_vm(&vm_name("crashed")).await?;
        let name = &stray.domain.name;

        let young = by_hand(alone, &["--dry-run"]).await?;
        let told = String::from_utf8(young.stderr)?;
        ensure!(young.stdout.is_empty() && told.contains("1 more that are younger"), "{told}");

        let found = by_hand(alone, &["--dry-run", "--grace=1s", "-o", "json"]).await?;
        let found: Value = serde_json::from_slice(&found.stdout)?;
        ensure!(found.as_array().is_some_and(|all| all.len() == 1), "{found}");
        ensure!(found[0]["name"] == name.as_str() && found[0]["verdict"] == "delete", "{found}");
        ensure!(found[0]["pod"] == "crashed", "{found}");
        ensure!(found[0]["proof"].as_str().is_some_and(|proof| proof.contains("SWEEP_EXCLUSIVE")), "{found}");
        ensure!(scene.host.virsh().domains().await?.contains(name), "a dry run deleted the VM");

        let deleted = by_hand(alone, &["--grace=1s"]).await?;
        let (table, told) = (String::from_utf8(deleted.stdout)?, String::from_utf8(deleted.stderr)?);
        ensure!(table.starts_with("KIND") && table.contains(name.as_str()), "{table}");
        ensure!(told.contains("1 deleted"), "{told}");
        ensure!(!scene.host.virsh().domains().await?.contains(name), "the VM is there");
        scene.lives(&tracked).await
    })
}

#[test]
fn a_declaration_proves_nothing_where_another_host_answers_than_is_recorded() -> Result<()> {
    sweeping(&[], &["--sweep=off"], async |alone| {
        let key = until_recorded(alone, 1).await?;
        let scene = alone.scene();
        let stray = scene.host.start_pod_vm(&vm_name("crashed")).await?;
        set_other_host(alone, &key).await?;

        let kept = by_hand(alone, &["--grace=1s", "-o", "json"]).await?;
        let found: Value = serde_json::from_slice(&kept.stdout)?;
        ensure!(
            found[0]["name"] == stray.domain.name.as_str() && found[0]["verdict"] == "unproven",
            "{found}"
        );
        let said = String::from_utf8(kept.stderr)?;
        ensure!(
            said.contains("another host, account or pool answers") && said.contains("0 deleted"),
            "{said}"
        );
        ensure!(scene.host.virsh().domains().await?.contains(&stray.domain.name), "the VM is gone");
        Ok(())
    })
}
