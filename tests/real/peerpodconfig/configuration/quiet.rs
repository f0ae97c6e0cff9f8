//! The operator writes nothing while nothing changes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{DaemonSet, Deployment},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::{
    Metrics,
    wait::{self, DEADLINE},
};

use super::{
    admission::trust,
    shared::forget_certificate,
    stage::{Stage, configuring, operator, writes},
};
use crate::support::Alone;

/// How long the operator must write nothing.
const WINDOW: Duration = Duration::from_secs(60);

/// The API server's counts of all writes since its start, by any client, to kinds that no client has a reason to write meanwhile.
/// (Nodes have heartbeats. The garbage collector deletes Pods of nodes that other tests removed, with events.)
async fn all_writes(alone: &Alone<'_>) -> Result<Vec<(&'static str, &'static str, f64)>> {
    const RESOURCES: [&str; 11] = [
        "configmaps",
        "daemonsets",
        "deployments",
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "peerpodconfigs",
        "poddisruptionbudgets",
        "secrets",
        "serviceaccounts",
        "services",
    ];
    const COUNTS: &str = "apiserver_request_total";
    let all = alone.testbed.cluster().kubectl(&["get", "--raw", "/metrics"]).await?;
    // To parse all of its tens of thousands of lines takes long.
    let lines: Vec<_> = all.lines().filter(|line| line.starts_with(COUNTS)).collect();
    let metrics = Metrics::parse(lines.join("\n"))?;
    let mut counts = Vec::new();
    for resource in RESOURCES {
        for verb in ["POST", "PUT", "PATCH", "APPLY", "DELETE"] {
            let count = |subresource| {
                let labels = [("resource", resource), ("verb", verb), ("subresource", subresource)];
                metrics.sum(COUNTS, &labels)
            };
            counts.push((resource, verb, count("") + count("status")));
        }
    }
    Ok(counts)
}

#[test]
fn nothing_is_written_for_a_minute_in_which_nothing_changes() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        // One configuration of each mode. The webhook's objects are complete even though its runtime class does not exist.
        forget_certificate(alone).await?;
        let admission = json!({ "mode": "Webhook", "runtimeClassName": "another" });
        let webhook = json!({ "nodeSelector": { "nowhere": "yes" }, "admission": admission });
        stage.configure("webhook", webhook).await?;
        stage.configure("config", json!({ "limit": 4, "admission": { "mode": "Policy" } })).await?;
        trust(&stage.client).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.until("webhook", "AdmissionReady", "RuntimeClassMissing").await?;
        let registrations: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
        wait::present(&registrations, "peer-pods-webhook", "its certificate is trusted", DEADLINE, |it| {
            it.webhooks.iter().flatten().any(|webhook| webhook.client_config.ca_bundle.is_some())
        })
        .await?;
        let counts = all_writes(alone).await?;
        let is_known = |of: &str| counts.iter().any(|(resource, _, count)| *resource == of && *count > 0.0);
        for kind in
            ["daemonsets", "deployments", "mutatingadmissionpolicies", "mutatingwebhookconfigurations"]
        {
            ensure!(is_known(kind), "no {kind}: {counts:?}");
        }
        let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), NAMESPACE);
        wait::present(&deployments, "webhook-webhook", "its Pods are there", DEADLINE, |it| {
            let status = it.status.as_ref();
            status.is_some_and(|it| it.available_replicas == Some(2))
                && status.and_then(|it| it.observed_generation) == it.metadata.generation
        })
        .await?;
        // Other controllers may still be writing because a Pod became ready.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (own, all) = (writes(alone)?.len(), all_writes(alone).await?);
        tokio::time::sleep(WINDOW).await;
        let own_now: Vec<_> = writes(alone)?.split_off(own);
        ensure!(own_now.is_empty(), "{own_now:#?}");
        let changed: Vec<_> = all_writes(alone).await?.into_iter().filter(|it| !all.contains(it)).collect();
        ensure!(changed.is_empty(), "of {all:?} became {changed:?}");
        stage.delete("webhook").await?;
        stage.clear("config").await
    })
}

#[test]
fn a_reconcile_without_changes_writes_nothing_and_drift_is_corrected() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let spec = |instance_type: &str| json!({ "limit": 4, "instanceType": instance_type, "admission": { "mode": "Policy" } });
        stage.configure("config", spec("any")).await?;
        stage.until("config", "Ready", "AllReady").await?;
        // A look writes its findings before it ends. The first of these two may have begun before all was ready.
        for _ in 0..2 {
            stage.look_again(alone).await?;
        }
        let generation = stage.daemon_set("config").await?.metadata.generation;
        let before = writes(alone)?.len();
        // A change that makes the controller look, but that leads to no write.
        for _ in 0..5 {
            stage.configure("config", spec("")).await?;
            stage.look_again(alone).await?;
        }
        let written: Vec<_> = writes(alone)?.split_off(before);
        ensure!(written.iter().all(|request| request.resource == "peerpodconfigs/status"), "{written:#?}");
        assert_eq!(stage.daemon_set("config").await?.metadata.generation, generation);

        let api: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let drift = json!({ "spec": { "template": { "spec": { "hostNetwork": false } } } });
        api.patch("config-cloud-api-adaptor", &PatchParams::default(), &Patch::Merge(drift)).await?;
        wait::eventually("the drift is put back", DEADLINE, async || {
            let daemon_set = stage.daemon_set("config").await?;
            let pod = daemon_set.spec.and_then(|spec| spec.template.spec).context("a pod")?;
            ensure!(pod.host_network == Some(true));
            Ok(())
        })
        .await?;
        stage.clear("config").await
    })
}

#[test]
fn a_restarted_operator_writes_nothing_if_nothing_changed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        // After a restart the operator does not take the policy for a new one if the status says that it is in force.
        stage.configure("config", json!({ "limit": 2, "admission": { "mode": "Policy" } })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        alone.operator.stop().await?;
        let before = writes(alone)?.len();
        alone.operator = operator(alone.testbed, dir.path(), &alone.libvirtd).await?;
        for _ in 0..3 {
            stage.look_again(alone).await?;
        }
        let written: Vec<_> = writes(alone)?.split_off(before);
        ensure!(written.is_empty(), "{written:#?}");
        stage.clear("config").await
    })
}
