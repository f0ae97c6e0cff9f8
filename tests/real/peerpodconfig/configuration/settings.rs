//! Settings of cloud-api-adaptor that change while it runs.

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::util::intstr::IntOrString};
use serde_json::json;
use testbed::wait;

use super::stage::{Stage, configuring};

#[test]
fn changed_settings_are_reported_as_pending_until_a_restart() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let template = stage.daemon_set("config").await?.metadata.generation;
        // The times of containers are whole seconds.
        wait::second_after(Timestamp::now()).await?;
        stage.settings(json!({ "LIBVIRT_CPU": "4" })).await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        assert!(message.contains("config-cloud-api-adaptor-"), "{message}");
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was rolled");

        // An administrator restarts them by hand.
        let adaptors = ["delete", "pods", "--selector", "app.kubernetes.io/component=adaptor"];
        Stage::kubectl(alone, &adaptors).await?;
        stage.until_gone("config", "SettingsPending").await?;

        wait::second_after(Timestamp::now()).await?;
        stage.settings(json!({ "LIBVIRT_CPU": "8" })).await?;
        stage.until("config", "SettingsPending", "OlderSettings").await?;
        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        stage.until_gone("config", "SettingsPending").await?;
        stage.clear("config").await
    })
}

#[test]
fn another_cloud_replaces_no_pod_until_that_is_asked_for() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let generation =
            async || Ok::<_, anyhow::Error>(stage.daemon_set("config").await?.metadata.generation);
        let first = generation().await?.context("a generation")?;
        // The times of containers are whole seconds.
        wait::second_after(Timestamp::now()).await?;
        stage.settings(json!({ "CLOUD_PROVIDER": "aws", "PROBE_PORT": "9000" })).await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        assert!(message.contains("CLOUD_PROVIDER libvirt and PROBE_PORT 8000"), "{message}");
        stage.until("config", "Ready", "AllReady").await?;
        assert_eq!(generation().await?, Some(first), "it was rolled");

        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        stage.until_gone("config", "SettingsPending").await?;
        assert_eq!(generation().await?, Some(first + 1));
        let template = stage.daemon_set("config").await?.spec.context("a spec")?.template;
        let pod = template.spec.context("a Pod")?;
        let probe = pod.containers[0].readiness_probe.as_ref().and_then(|probe| probe.http_get.as_ref());
        assert_eq!(probe.map(|probe| &probe.port), Some(&IntOrString::Int(9000)));
        assert!(!pod.volumes.iter().flatten().any(|volume| volume.name == "ssh"), "libvirt's alone");

        // Withdrawing the wish restarts nothing.
        stage
            .configure("config", json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": false } }))
            .await?;
        stage.until_gone("config", "SettingsPending").await?;
        assert_eq!(generation().await?, Some(first + 1));
        stage.clear("config").await
    })
}

#[test]
fn settings_that_the_operator_does_not_have_reach_no_cloud_api_adaptor() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let others = json!({ "metadata": { "name": "others" }, "data": { "CLOUD_PROVIDER": "libvirt" } });
        stage.make::<ConfigMap>(others).await?;
        stage.configure("config", json!({ "limit": 2, "configMapName": "others" })).await?;
        let message = stage.until("config", "SettingsDiverge", "NotMounted").await?;
        assert!(
            message.starts_with(
                "configMapName is others, but by its flags the operator has peer-pods-cm mounted;"
            ),
            "{message}"
        );
        stage.until("config", "Ready", "NotMounted").await?;
        stage.until("config", "AdaptorReady", "AdaptorWithheld").await?;
        stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        ensure!(!stage.has_daemon_set("config").await?, "the operator would release its PeerPods");
        stage.configure("config", json!({ "limit": 2, "configMapName": "peer-pods-cm" })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until_gone("config", "SettingsDiverge").await?;

        // One that runs keeps the settings that it has.
        let template = stage.daemon_set("config").await?.metadata.generation;
        let others =
            json!({ "limit": 3, "configMapName": "others", "adaptor": { "podLabels": { "a": "b" } } });
        stage.configure("config", others).await?;
        stage.until("config", "Ready", "NotMounted").await?;
        stage.shares(&[Some(3)]).await?;
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was changed");
        stage.clear("config").await
    })
}
