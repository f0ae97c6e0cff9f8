//! Settings of cloud-api-adaptor that point to another place than the operator's files.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::stage::{Stage, configuring};
use crate::{
    provider::places::{another, entries, forget, until_recorded},
    support::Scene,
};

#[test]
fn another_place_than_the_operators_reaches_no_cloud_api_adaptor() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.settings(json!({ "LIBVIRT_URI": "test+unix:///default?socket=/elsewhere" })).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "SettingsDiverge", "NotMounted").await?;
        ensure!(message.starts_with("LIBVIRT_URI of the ConfigMap peer-pods-cm"), "{message}");
        ensure!(!message.contains("elsewhere"), "{message}");
        stage.until("config", "Ready", "NotMounted").await?;
        stage.until("config", "AdaptorReady", "AdaptorWithheld").await?;
        ensure!(!stage.has_daemon_set("config").await?, "the operator would release its PeerPods");
        // Nothing makes VMs there.
        until_recorded(alone, 1).await?;

        stage.mount(&mut alone.operator).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until_gone("config", "SettingsDiverge").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_place_that_cloud_api_adaptor_may_have_got_counts_although_the_settings_were_set_back() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        stage.until("config", "Ready", "AllReady").await?;
        until_recorded(alone, 1).await?;
        let template = stage.daemon_set("config").await?.metadata.generation;
        let dir = tempfile::tempdir()?;
        let (libvirtd, elsewhere) = another(dir.path()).await?;
        stage.settings(json!(elsewhere.config_map)).await?;
        stage.until("config", "SettingsDiverge", "NotMounted").await?;
        until_recorded(alone, 2).await?;
        // A cloud-api-adaptor that started meanwhile makes a VM there.
        let there = Scene { host: libvirtd.host(), ..alone.scene() };
        let vm = there.pod_with_vm("web").await?;
        // A kubelet has not updated the operator's files before.
        stage.settings(json!({})).await?;
        stage.until_gone("config", "SettingsDiverge").await?;
        stage.until("config", "Ready", "AllReady").await?;
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was changed");

        let scene = alone.scene();
        scene.pods.delete("web").await?;
        let condition = scene.held(&vm.name(), "InvalidSettings").await?;
        ensure!(condition.message.contains("the VM is there"), "{condition:?}");
        let current = until_recorded(alone, 2).await?;
        let former = entries(alone).await?.into_iter().find(|(key, _)| *key != current);
        let (key, _) = former.context("the place is recorded")?;
        forget(alone, &key).await?;
        scene.released(&vm.name()).await?;
        stage.clear("config").await
    })
}
