//! One PeerPodConfig: cloud-api-adaptor on the selected nodes, the admission, and how many VMs each node advertises.

mod admission;
mod certificate;
mod deletion;
mod diverging;
mod drift;
mod limit;
mod lost;
mod outage;
mod overlap;
mod program;
mod quiet;
mod rights;
mod settings;
mod shared;
mod snapshot;
pub mod stage;
mod status;
mod sweep;
mod taints;
mod takeover;
mod tls;
mod upstream;
mod usage;
mod waiting;
mod withheld;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Pod, ResourceQuota},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use self::stage::{RESOURCE, Stage, configuring};

#[test]
fn one_configuration_runs_the_adaptor_and_shares_the_limit_out() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        stage.configure("config", json!({ "limit": "10" })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(3), Some(3), Some(4)]).await?;
        let status = stage.configs.get("config").await?.status.context("a status")?;
        assert_eq!((status.nodes, status.advertised, status.setup_completed), (3, 10, true));
        let daemon_set = stage.daemon_set("config").await?;
        assert_eq!(daemon_set.status.map(|status| status.number_ready), Some(3));

        // The scheduler places exactly as many peer pods.
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "generateName": "peer-" },
            "spec": {
                "nodeSelector": stage.label,
                "containers": [{ "name": "main", "image": "any", "resources": { "limits": { RESOURCE: "1" } } }],
            },
        }))?;
        for _ in 0..11 {
            pods.create(&PostParams::default(), &pod).await?;
        }
        wait::eventually("ten run and the eleventh finds no node", DEADLINE, async || {
            let pods = pods.list(&ListParams::default()).await?;
            let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
            let running = pods.iter().filter(|pod| phase(pod).as_deref() == Some("Running")).count();
            let refused = pods.iter().filter(|pod| {
                let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions
                    .is_some_and(|all| all.iter().any(|it| it.reason.as_deref() == Some("Unschedulable")))
            });
            ensure!((running, refused.count()) == (10, 1), "{running} run");
            Ok(())
        })
        .await?;
        alone.scene().pods.clear().await?;
        stage.clear("config").await
    })
}

#[test]
fn node_changes_and_kubelet_resets_are_followed() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 5 })).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        // A kubelet that restarts sets the resource to zero.
        let reset = json!({ "status": { "capacity": { RESOURCE: "0" }, "allocatable": { RESOURCE: "0" } } });
        let node = &stage.nodes.names()[0];
        stage.nodes.api().patch_status(node, &PatchParams::default(), &Patch::Merge(reset)).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        // One node leaves the selection.
        let label = json!({ "metadata": { "labels": { "test": "other" } } });
        stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await?;
        stage.shares(&[None, Some(5)]).await?;
        let label = json!({ "metadata": { "labels": stage.label } });
        stage.nodes.api().patch(node, &PatchParams::default(), &Patch::Merge(label)).await?;
        stage.shares(&[Some(2), Some(3)]).await?;
        stage.clear("config").await
    })
}

#[test]
fn the_message_names_a_command_that_shows_why_pods_do_not_start() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(stage.client.clone(), NAMESPACE);
        stage
            .make::<ResourceQuota>(json!({
                "metadata": { "name": "no-more" }, "spec": { "hard": { "pods": "0" } },
            }))
            .await?;
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let probe: Pod = serde_json::from_value(json!({
            "metadata": { "name": "probe" }, "spec": { "containers": [{ "name": "main", "image": "any" }] },
        }))?;
        // The API server enforces a new quota only a moment later.
        wait::eventually("no Pod can be made", DEADLINE, async || {
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            let problem = pods.create(&dry_run, &probe).await.err().context("it can be made")?.to_string();
            ensure!(problem.contains("no-more"), "{problem}");
            Ok(())
        })
        .await?;
        stage.write_settings(&json!({ "CLOUD_PROVIDER": "libvirt" })).await?;
        stage.mount(&mut alone.operator).await?;
        alone.operator.reloaded(2, 0).await?;
        stage.configure("config", json!({ "limit": 1, "admission": { "mode": "Webhook" } })).await?;
        for (condition, reason) in
            [("AdaptorReady", "AdaptorStarting"), ("AdmissionReady", "WebhookStarting")]
        {
            let what = format!("the command that {reason} names tells of the quota");
            wait::eventually(&what, DEADLINE, async || {
                let message = stage.until("config", condition, reason).await?;
                let (_, command) = message.split_once("`kubectl ").with_context(|| message.clone())?;
                let (command, _) = command.split_once('`').context("it ends")?;
                let arguments: Vec<_> = command.split(' ').collect();
                let told = alone.testbed.cluster().kubectl(&arguments).await?;
                ensure!(told.contains("no-more"), "{command}: {told}");
                Ok(())
            })
            .await?;
        }
        let message = stage.until("config", "AdaptorReady", "AdaptorStarting").await?;
        ensure!(message.contains("neither the ConfigMap peer-pods-cm nor"), "{message}");
        ensure!(message.contains(" has LIBVIRT_URI; "), "{message}");
        // Missing settings are no refusal: once its Pods are created, they may start all the same.
        quotas.delete("no-more", &DeleteParams::default()).await?;
        let running = stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        ensure!(!running.contains("kubectl") && !running.contains("LIBVIRT_URI"), "{running}");
        stage.clear("config").await
    })
}

#[test]
fn configurations_that_cannot_work_are_reported() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        // Another program advertises VMs there.
        let level = json!({ RESOURCE: "7" });
        let status = json!({ "status": { "capacity": level, "allocatable": level } });
        let node = &stage.nodes.names()[0];
        stage.nodes.api().patch_status(node, &PatchParams::default(), &Patch::Merge(status)).await?;
        stage.configure("config", json!({ "limit": 2, "configMapName": "later" })).await?;
        let message = stage.until("config", "AdaptorReady", "SettingsMissing").await?;
        assert!(message.contains("the ConfigMap later does not exist"), "{message}");
        stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        stage.shares(&[Some(7)]).await?;
        // Another cloud-api-adaptor on the same nodes.
        let foreign = json!({
            "metadata": { "name": "cloud-api-adaptor-daemonset" },
            "spec": {
                "selector": { "matchLabels": { "app": "cloud-api-adaptor" } },
                "template": {
                    "metadata": { "labels": { "app": "cloud-api-adaptor" } },
                    "spec": { "nodeSelector": stage.label, "containers": [{ "name": "main", "image": "any" }] },
                },
            },
        });
        stage.make::<DaemonSet>(foreign).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "Conflict", "AnotherAdaptor").await?;
        assert!(message.contains("kubectl"), "{message}");
        let message = stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        assert!(message.contains("cloud-api-adaptor-daemonset"), "{message}");
        stage.shares(&[Some(7)]).await?;
        let api: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        api.delete("cloud-api-adaptor-daemonset", &DeleteParams::background()).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2)]).await?;
        // The running cloud-api-adaptor continues without the settings that it started with.
        stage.configure("config", json!({ "limit": 3, "configMapName": "later" })).await?;
        stage.until("config", "AdaptorReady", "SettingsMissing").await?;
        stage.shares(&[Some(3)]).await?;
        stage.until("config", "CapacityAdvertised", "Advertised").await?;
        stage.configure("config", json!({ "limit": 2 })).await?;

        let other: Api<PeerPodConfig> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let elsewhere: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "elsewhere" }, "spec": { "limit": 3 },
        }))?;
        other.create(&PostParams::default(), &elsewhere).await?;
        wait::present(&other, "elsewhere", "it says that it is not honoured", DEADLINE, |config| {
            config
                .status
                .as_ref()
                .is_some_and(|status| status.conditions.iter().any(|it| it.reason == "WrongNamespace"))
        })
        .await?;
        stage.clear("config").await
    })
}
