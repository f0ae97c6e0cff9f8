//! Settings of cloud-api-adaptor that change while it runs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::stage::{Stage, configuring};

async fn nothing_pends(stage: &Stage) -> Result<()> {
    wait::eventually("its Pods run on the new settings", DEADLINE, async || {
        let config = stage.configs.get("config").await?;
        let status = config.status.unwrap_or_default();
        ensure!(status.observed_generation == config.metadata.generation, "{status:#?}");
        ensure!(!status.conditions.iter().any(|it| it.type_ == "SettingsPending"), "{status:#?}");
        Ok(())
    })
    .await
}

#[test]
fn changed_settings_wait_and_are_said_to() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let template = stage.daemon_set("config").await?.metadata.generation;
        // The times of containers are whole seconds.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        stage.settings(json!({ "CLOUD_PROVIDER": "libvirt", "LIBVIRT_CPU": "4" })).await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        assert!(message.contains("config-cloud-api-adaptor-"), "{message}");
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, template, "it was rolled");
        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        nothing_pends(&stage).await?;
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
        tokio::time::sleep(Duration::from_millis(1100)).await;
        stage.settings(json!({ "CLOUD_PROVIDER": "aws", "PROBE_PORT": "9000" })).await?;
        let message = stage.until("config", "SettingsPending", "OlderSettings").await?;
        assert!(message.contains("CLOUD_PROVIDER libvirt and PROBE_PORT 8000"), "{message}");
        stage.until("config", "Ready", "AllReady").await?;
        assert_eq!(generation().await?, Some(first), "it was rolled");

        let restart = json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": true } });
        stage.configure("config", restart).await?;
        nothing_pends(&stage).await?;
        assert_eq!(generation().await?, Some(first + 1));
        let template = stage.daemon_set("config").await?.spec.context("a spec")?.template;
        let pod = template.spec.context("a Pod")?;
        let probe = pod.containers[0].startup_probe.as_ref().and_then(|probe| probe.http_get.as_ref());
        assert_eq!(probe.map(|probe| &probe.port), Some(&IntOrString::Int(9000)));
        assert!(!pod.volumes.iter().flatten().any(|volume| volume.name == "ssh"), "libvirt's alone");

        // Whoever takes the wish back does not restart anything by that.
        stage
            .configure("config", json!({ "limit": 2, "adaptor": { "restartOnSettingsChange": false } }))
            .await?;
        nothing_pends(&stage).await?;
        assert_eq!(generation().await?, Some(first + 1));
        stage.clear("config").await
    })
}
