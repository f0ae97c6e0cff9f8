//! The webhook's image, its pull secrets, and its nodes.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{NAMESPACE, names::DEFAULT_IMAGE};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json, to_value};
use testbed::{
    Operator, Testbed,
    wait::{self, DEADLINE},
};

use super::{
    admission::trust,
    stage::{Stage, operator_with},
};
use crate::{
    install::kustomize::{LIBVIRT, built},
    support::{Alone, alone_with},
};

/// The name of a Pod that does not exist.
const POD: &str = "operator-itself";

const IMAGE: &str = "registry.example/mine/peerpod-operator:v9";

/// The overlay with the user's own image, as kustomize's users set it, and their patch of the Deployment.
fn kustomization(patch: &Value) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    // kustomize takes relative paths alone.
    let up = "../".repeat(fs::canonicalize(dir.path())?.components().count() - 1);
    let kustomization = json!({
        "resources": [format!("{up}{}", LIBVIRT.trim_start_matches('/'))],
        "images": [{ "name": "peerpod-operator", "newName": "registry.example/mine/peerpod-operator", "newTag": "v9" }],
        "patches": [{ "target": { "kind": "Deployment" }, "patch": patch.to_string() }],
    });
    fs::write(dir.path().join("kustomization.yaml"), kustomization.to_string())?;
    Ok(dir)
}

/// The operator's Deployment by this kustomization, with a pull secret and these fields of the Pod.
async fn deployment(alone: &Alone<'_>, placement: &[(&str, Value)]) -> Result<Value> {
    let pull = ("imagePullSecrets", json!([{ "name": "pull" }]));
    let fields = placement.iter().cloned().chain([pull]);
    let add = |(field, value): (&str, Value)| json!({ "op": "add", "path": format!("/spec/template/spec/{field}"), "value": value });
    let dir = kustomization(&fields.map(add).collect())?;
    let objects = built(alone.testbed.cluster(), dir.path().to_str().context("UTF-8")?).await?;
    let text = Value::from(objects.clone()).to_string();
    ensure!(!text.contains(DEFAULT_IMAGE), "{DEFAULT_IMAGE} is left: {text}");
    objects.into_iter().find(|object| object["kind"] == "Deployment").context("none")
}

/// The image that a Deployment runs.
fn image(deployment: &Deployment) -> Option<&str> {
    deployment.spec.as_ref()?.template.spec.as_ref()?.containers.first()?.image.as_deref()
}

async fn in_pod(testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd) -> Result<Operator> {
    operator_with(testbed, dir, libvirtd, &[&format!("--pod-name={POD}")]).await
}

#[test]
fn the_webhook_is_pulled_and_placed_as_the_operators_own_pod_is() -> Result<()> {
    let (dir, told_dir) = (tempfile::tempdir()?, tempfile::tempdir()?);
    alone_with(in_pod, async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2, "admission": { "mode": "Webhook" } })).await?;
        let message = stage.until("config", "AdmissionReady", "AdmissionFailed").await?;
        ensure!(message.contains(POD) && message.contains("PEERPOD_OPERATOR_IMAGE"), "{message}");
        alone.operator.stop().await?;

        // The advice in the message works.
        let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let told = [format!("--pod-name={POD}"), "--image=registry.example/told".to_owned()];
        let told = told.each_ref().map(String::as_str);
        alone.operator = operator_with(alone.testbed, told_dir.path(), &alone.libvirtd, &told).await?;
        let runs_it = |it: &Deployment| image(it) == Some("registry.example/told");
        wait::present(&deployments, "config-webhook", "it runs that image", DEADLINE, runs_it).await?;
        alone.operator.stop().await?;
        deployments.delete("config-webhook", &DeleteParams::foreground()).await?;
        wait::gone(&deployments, "config-webhook", DEADLINE).await?;

        // In this cluster every node has a taint, so no node takes all Pods.
        let taint = ["taint", "nodes", "--all", "infra=yes:NoSchedule"];
        Stage::kubectl(alone, &taint).await?;
        let placement = [
            ("nodeSelector", json!(stage.label)),
            ("tolerations", json!([{ "key": "infra", "operator": "Exists", "effect": "NoSchedule" }])),
            ("priorityClassName", json!("system-cluster-critical")),
        ];
        let own = stage.make::<Deployment>(deployment(alone, &placement).await?).await?.name_any();
        let available =
            |it: &Deployment| it.status.as_ref().is_some_and(|it| it.available_replicas > Some(0));
        wait::present(&deployments, &own, "it is available", DEADLINE, available).await?;
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let operators = ListParams::default().labels("app.kubernetes.io/component=operator");
        let pod = pods.list(&operators).await?.items.pop().context("it has no Pod")?;

        let pod_name = format!("--pod-name={}", pod.name_any());
        alone.operator = operator_with(alone.testbed, dir.path(), &alone.libvirtd, &[&pod_name]).await?;
        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        let webhook = deployments.get("config-webhook").await?;
        ensure!(webhook.metadata.generation == Some(1), "it was written again");
        ensure!(image(&webhook) == Some(IMAGE), "{:?}", image(&webhook));
        let pod = webhook.spec.and_then(|spec| spec.template.spec).context("it has a template")?;
        let pod = to_value(pod)?;
        ensure!(pod["imagePullSecrets"] == json!([{ "name": "pull" }]), "{pod:#}");
        for (field, expected) in &placement {
            // The webhook's Pod lacks what API servers add to the operator's Pod.
            ensure!(pod[*field] == *expected, "{field} is {}", pod[*field]);
        }

        // The configuration must be deleted before the operator, and the Pods before their node.
        stage.delete("config").await?;
        deployments.delete(&own, &DeleteParams::foreground()).await?;
        wait::gone(&deployments, &own, DEADLINE).await?;
        Stage::kubectl(alone, &["taint", "nodes", "--all", "infra-"]).await?;
        stage.leave().await
    })
}
