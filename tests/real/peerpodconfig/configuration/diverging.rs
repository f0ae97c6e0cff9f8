//! Settings of cloud-api-adaptor that point to another place than the operator's files.

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::{Value, json};
use testbed::wait;

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
        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        let message = stage.until("config", "SettingsDiverge", "AnotherPlace").await?;
        ensure!(message.starts_with("LIBVIRT_URI of the ConfigMap peer-pods-cm"), "{message}");
        ensure!(!message.contains("elsewhere"), "{message}");
        stage.until("config", "Ready", "AnotherPlace").await?;
        stage.until("config", "AdaptorReady", "AdaptorWithheld").await?;
        ensure!(!stage.has_daemon_set("config").await?, "the operator would release its PeerPods");
        // Nothing makes VMs there.
        until_recorded(alone, 1).await?;

        stage.mount(&mut alone.operator).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until_gone("config", "SettingsDiverge").await?;

        // Its Pods are not restarted for another place before the operator has it.
        let template = stage.daemon_set("config").await?.metadata.generation;
        wait::second_after(Timestamp::now()).await?;
        stage.settings(json!({})).await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        ensure!(
            message.ends_with("restart no Pod before the condition SettingsDiverge is gone"),
            "{message}"
        );
        stage.until("config", "SettingsDiverge", "AnotherPlace").await?;
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was rolled");
        stage.mount(&mut alone.operator).await?;
        stage.until_gone("config", "SettingsDiverge").await?;
        assert_ne!(stage.daemon_set("config").await?.metadata.generation, template, "it was not rolled");
        stage.clear("config").await
    })
}

#[test]
fn a_variable_of_the_daemon_set_that_points_elsewhere_is_reported_and_its_place_recorded() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        until_recorded(alone, 1).await?;
        let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let set = async |variable: Value| {
            let containers = json!([{ "name": "cloud-api-adaptor", "env": [variable] }]);
            let patch =
                Patch::Strategic(json!({ "spec": { "template": { "spec": { "containers": containers } } } }));
            daemon_sets.patch("config-cloud-api-adaptor", &PatchParams::default(), &patch).await
        };
        set(json!({ "name": "LIBVIRT_URI", "value": "test+unix:///default?socket=/elsewhere" })).await?;
        let message = stage.until("config", "SettingsDiverge", "AnotherPlace").await?;
        ensure!(
            message.starts_with("a variable of the DaemonSet's container, such as LIBVIRT_URI,"),
            "{message}"
        );
        until_recorded(alone, 2).await?;
        set(json!({ "name": "LIBVIRT_URI", "$patch": "delete" })).await?;
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
        stage.until("config", "SettingsDiverge", "AnotherPlace").await?;
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
