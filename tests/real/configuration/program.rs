//! Which image the webhook runs, and what it is pulled with.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use peerpod_operator::{NAMESPACE, install::DEFAULT_IMAGE};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json};
use testbed::{
    Operator, Testbed,
    wait::{self, DEADLINE},
};

use super::{
    admission::trust,
    stage::{Stage, operator_with},
};
use crate::{
    kustomize::{LIBVIRT, built},
    support::{Alone, alone_with},
};

/// The operator's own Pod.
const POD: &str = "operator-itself";

const IMAGE: &str = "registry.example/mine/peerpod-operator:v9";

/// The overlay with an image of one's own, as kustomize's users name it, and a Secret that it is pulled with.
fn kustomization() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    // kustomize takes relative paths alone.
    let up = "../".repeat(fs::canonicalize(dir.path())?.components().count() - 1);
    let pull = json!([{ "op": "add", "path": "/spec/template/spec/imagePullSecrets", "value": [{ "name": "pull" }] }]);
    let kustomization = json!({
        "resources": [format!("{up}{}", LIBVIRT.trim_start_matches('/'))],
        "images": [{ "name": "peerpod-operator", "newName": "registry.example/mine/peerpod-operator", "newTag": "v9" }],
        "patches": [{ "target": { "kind": "Deployment" }, "patch": pull.to_string() }],
    });
    fs::write(dir.path().join("kustomization.yaml"), kustomization.to_string())?;
    Ok(dir)
}

/// The Pod that the Deployment of this kustomization would make.
async fn pod(alone: &Alone<'_>) -> Result<Pod> {
    let dir = kustomization()?;
    let objects = built(alone.testbed.cluster(), dir.path().to_str().context("UTF-8")?).await?;
    let text = Value::from(objects.clone()).to_string();
    ensure!(!text.contains(DEFAULT_IMAGE), "{DEFAULT_IMAGE} is left: {text}");
    let deployment = objects.into_iter().find(|object| object["kind"] == "Deployment").context("none")?;
    let spec = deployment["spec"]["template"]["spec"].clone();
    Ok(serde_json::from_value(json!({ "metadata": { "name": POD }, "spec": spec }))?)
}

async fn in_pod(testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd) -> Result<Operator> {
    operator_with(testbed, dir, libvirtd, &[&format!("--pod-name={POD}")]).await
}

#[test]
fn the_webhook_is_pulled_as_the_operators_own_pod_is() -> Result<()> {
    alone_with(in_pod, async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 2, "admission": { "mode": "Webhook" } })).await?;
        let message = stage.until("config", "AdmissionReady", "AdmissionFailed").await?;
        ensure!(message.contains(POD) && message.contains("PEERPOD_OPERATOR_IMAGE"), "{message}");

        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &pod(alone).await?).await?;
        let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let made = |_: &Deployment| true;
        let deployment = wait::present(&deployments, "config-webhook", "it is made", DEADLINE, made).await?;
        let pod = deployment.spec.and_then(|spec| spec.template.spec).context("it has a template")?;
        ensure!(pod.containers[0].image.as_deref() == Some(IMAGE), "{:?}", pod.containers[0].image);
        let secrets: Vec<_> = pod.image_pull_secrets.into_iter().flatten().map(|it| it.name).collect();
        ensure!(secrets == ["pull"], "{secrets:?}");
        trust(&stage.client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;

        pods.delete(POD, &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await?;
        wait::gone(&pods, POD, DEADLINE).await?;
        stage.clear("config").await
    })
}
