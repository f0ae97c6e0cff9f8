//! Migration from the controller that this operator replaces.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::stage::{Stage, configuring};

/// The DaemonSet that the former controller makes, for the stage's nodes.
fn daemon_set(stage: &Stage, owners: &Value) -> Value {
    json!({
        "metadata": { "name": "peerpodconfig-ctrl-caa-daemon", "ownerReferences": owners },
        "spec": {
            "selector": { "matchLabels": { "name": "peerpodconfig-ctrl-caa-daemon" } },
            "template": {
                "metadata": { "labels": { "name": "peerpodconfig-ctrl-caa-daemon" } },
                "spec": {
                    "nodeSelector": stage.label,
                    "hostNetwork": true,
                    "containers": [{
                        "name": "cc-runtime-install-pod",
                        "image": "quay.io/confidential-containers/cloud-api-adaptor",
                        "command": ["/usr/local/bin/entrypoint.sh"],
                    }],
                },
            },
        },
    })
}

#[test]
fn a_former_daemon_set_is_replaced_once_the_user_runs_the_named_command() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.make::<DaemonSet>(daemon_set(&stage, &json!([]))).await?;
        // The spec as users wrote it for the former controller, without an admission, which that one never made.
        let spec =
            json!({ "limit": "4", "cloudSecretName": "peer-pods-secret", "configMapName": "peer-pods-cm" });
        let config = stage.configure("config", spec).await?;
        let message = stage.until("config", "Conflict", "AnotherAdaptor").await?;
        ensure!(!message.contains("v0.8.0"), "{message}");
        let owner = json!([{
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig", "controller": true,
            "blockOwnerDeletion": true, "name": "config", "uid": config.uid(),
        }]);
        stage.make::<DaemonSet>(daemon_set(&stage, &owner)).await?;
        let told = wait::eventually("it is told what is known of it", DEADLINE, async || {
            let config = stage.configs.get("config").await?;
            let conditions = config.status.map(|status| status.conditions).unwrap_or_default();
            let conflict = conditions.into_iter().find(|it| it.type_ == "Conflict").context("no conflict")?;
            ensure!(conflict.message.contains("v0.8.0"), "{}", conflict.message);
            Ok(conflict.message)
        })
        .await?;
        ensure!(!stage.has_daemon_set("config").await?, "two would run on a node");

        let (_, command) = told.split_once("kubectl ").context(told.clone())?;
        let arguments: Vec<_> = command.split_ascii_whitespace().collect();
        alone.testbed.cluster().kubectl(&arguments).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        let ready = stage.daemon_set("config").await?.status.map(|status| status.number_ready);
        assert_eq!(ready, Some(2));
        stage.clear("config").await
    })
}
