//! `apply`, where a `PeerPodConfig` cannot be applied yet.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig};
use serde_json::json;
use testbed::{
    Testbed,
    wait::{self, DEADLINE},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    install::kustomize::remove,
    support::{PROGRAM, without_operator},
};

/// The message about a definition that is not installed.
const MISSING: &str =
    "the CRD peerpodconfigs.confidentialcontainers.org is not installed: kubectl apply -f manifests/crd";

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the program with these arguments, as the administrator.
pub fn start(testbed: &Testbed, arguments: &[&str]) -> Result<Child> {
    start_as(&testbed.cluster().kubeconfig(), arguments)
}

/// Starts the program with these arguments, as the user of this kubeconfig.
pub fn start_as(kubeconfig: &Path, arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("KUBECONFIG", kubeconfig);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command.kill_on_drop(true).spawn()?)
}

/// The next line in which it says that it waits.
async fn complaint(program: &mut Child) -> Result<String> {
    let errors = program.stderr.take().context("its errors are read once")?;
    let line = timeout(PATIENCE, BufReader::new(errors).lines().next_line()).await??;
    line.context("it ended without a word")
}

pub async fn succeeds(program: Child) -> Result<()> {
    let output = timeout(PATIENCE, program.wait_with_output()).await??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

#[test]
fn a_configuration_waits_for_its_definition_and_for_the_end_of_the_one_before() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.yaml");
        std::fs::write(
            &file,
            "apiVersion: confidentialcontainers.org/v1alpha1\nkind: PeerPodConfig\nmetadata: {name: waits}\nspec: {limit: 1}\n",
        )?;
        let file = file.to_str().context("the folder's name is UTF-8")?;
        remove(testbed.cluster()).await?;
        let output = start(testbed, &["apply", file, "--timeout=5s"])?.wait_with_output().await?;
        let told = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1), "{told}");
        ensure!(told.contains(&format!("waits was not applied: {MISSING}")), "{told}");

        let mut apply = start(testbed, &["apply", file])?;
        let told = complaint(&mut apply).await?;
        ensure!(told.contains(MISSING), "{told}");
        testbed.install_objects().await?;
        succeeds(apply).await?;
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        let first = configs.get("waits").await?;

        // The configuration keeps a finalizer, as if the operator still had to restore nodes.
        let held = Patch::Merge(json!({ "metadata": { "finalizers": ["test.example/held"] } }));
        configs.patch("waits", &PatchParams::default(), &held).await?;
        configs.delete("waits", &DeleteParams::default()).await?;
        let mut apply = start(testbed, &["apply", file])?;
        let told = complaint(&mut apply).await?;
        ensure!(told.contains("the PeerPodConfig is being deleted; apply creates it again"), "{told}");
        let going = configs.get("waits").await?;
        ensure!(going.metadata.generation == first.metadata.generation.map(|it| it + 1), "it was changed");
        let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        configs.patch("waits", &PatchParams::default(), &released).await?;
        succeeds(apply).await?;
        let new = |config: &PeerPodConfig| config.uid() != first.uid();
        wait::present(&configs, "waits", "it is made anew", DEADLINE, new).await?;
        configs.delete("waits", &DeleteParams::default()).await?;
        Ok(())
    })
}

#[test]
fn a_configuration_waits_for_the_end_of_an_earlier_revision_of_the_operator() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.yaml");
        std::fs::write(
            &file,
            "apiVersion: confidentialcontainers.org/v1alpha1\nkind: PeerPodConfig\nmetadata: {name: after}\nspec: {limit: 1}\n",
        )?;
        let file = file.to_str().context("the folder's name is UTF-8")?;
        let deployments: Api<Deployment> = Api::namespaced(testbed.client(), NAMESPACE);
        let deployment = serde_json::from_value(json!({
            "metadata": { "name": "rolling" },
            "spec": {
                "replicas": 1, "selector": { "matchLabels": { "app": "rolling" } },
                "template": {
                    "metadata": { "labels": { "app": "rolling" } },
                    "spec": { "nodeSelector": { "no": "where" }, "containers": [{ "name": "main", "image": "one" }] },
                },
            },
        }))?;
        deployments.create(&PostParams::default(), &deployment).await?;
        let all_new = |it: &Deployment| it.status.as_ref().is_some_and(|it| it.updated_replicas == Some(1));
        wait::present(&deployments, "rolling", "its Pod is made", DEADLINE, all_new).await?;
        let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
        let pod =
            pods.list(&ListParams::default().labels("app=rolling")).await?.items.pop().context("a Pod")?;
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(ready)).await?;
        let is_ready = |it: &Deployment| it.status.as_ref().is_some_and(|it| it.ready_replicas == Some(1));
        wait::present(&deployments, "rolling", "its Pod is ready", DEADLINE, is_ready).await?;
        let change = |spec| Patch::Merge(json!({ "spec": spec }));
        let image = json!({ "spec": { "containers": [{ "name": "main", "image": "two" }] } });
        let rolling = json!({ "paused": true, "template": image });
        deployments.patch("rolling", &PatchParams::default(), &change(rolling)).await?;
        let is_seen = |it: &Deployment| {
            it.status.as_ref().and_then(|it| it.observed_generation) == it.metadata.generation
        };
        wait::present(&deployments, "rolling", "its controller has seen the change", DEADLINE, is_seen)
            .await?;
        let mut apply = start(testbed, &["apply", file, "--after-rollout=rolling"])?;
        let told = complaint(&mut apply).await?;
        ensure!(
            told.contains("the Deployment rolling has 0 Pods of its present revision and 1 of earlier"),
            "{told}"
        );
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        ensure!(configs.get_opt("after").await?.is_none(), "it was applied");
        let resumed =
            change(json!({ "paused": false, "strategy": { "type": "Recreate", "rollingUpdate": null } }));
        deployments.patch("rolling", &PatchParams::default(), &resumed).await?;
        succeeds(apply).await?;
        configs.delete("after", &DeleteParams::default()).await?;
        deployments.delete("rolling", &DeleteParams::default()).await?;
        Ok(())
    })
}
