//! The Jobs that helm runs, and what a node would do for them.

use std::{fs, path::Path, process::ExitStatus};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, PodSpec};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::{
    Testbed,
    wait::{self, DEADLINE},
};
use tokio::process::Command;

use crate::support::PROGRAM;

/// A node selector that no node matches, so that the test decides what becomes of a Pod.
pub const NOWHERE: &str = "operator.nodeSelector.nowhere=x";

/// The Pod of a Job, which no node has run yet.
pub async fn pod(testbed: &Testbed, job: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
    let of_job = ListParams::default().labels(&format!("job-name={job}"));
    // Helm installs everything else first.
    wait::eventually(&format!("the Job {job} has its Pod"), 3 * DEADLINE, async || {
        let pending =
            |pod: &Pod| pod.status.as_ref().is_some_and(|it| it.phase.as_deref() == Some("Pending"));
        let mut pods = pods.list(&of_job).await?.items.into_iter();
        pods.find(|pod| pending(pod) && pod.metadata.deletion_timestamp.is_none()).context("there is none")
    })
    .await
}

/// Runs the Pod's program under its `ServiceAccount`. Returns how it ended, and its errors.
pub async fn run(testbed: &Testbed, pod: &Pod) -> Result<(ExitStatus, String)> {
    let spec = pod.spec.as_ref().context("it has a spec")?;
    let [container] = &*spec.containers else { anyhow::bail!("{} containers", spec.containers.len()) };
    let volumes = tempfile::tempdir()?;
    let mut arguments = container.args.clone().context("it has arguments")?;
    for (path, folder) in mounted(testbed, spec, container, volumes.path()).await? {
        for argument in &mut arguments {
            *argument = argument.replace(&path, &folder);
        }
    }
    let account = spec.service_account_name.as_deref().context("it has a ServiceAccount")?;
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env("KUBECONFIG", testbed.kubeconfig_of(account).await?)
        .env("PEERPOD_OPERATOR_NAMESPACE", NAMESPACE)
        .kill_on_drop(true)
        .output()
        .await?;
    let phase = if output.status.success() { "Succeeded" } else { "Failed" };
    let status = json!({ "status": { "phase": phase } });
    let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok((output.status, String::from_utf8(output.stderr)?))
}

/// The container's `ConfigMap`s as files: the path that the program expects, and the folder here that has them.
async fn mounted(
    testbed: &Testbed,
    spec: &PodSpec,
    container: &Container,
    dir: &Path,
) -> Result<Vec<(String, String)>> {
    let config_maps: Api<ConfigMap> = Api::namespaced(testbed.client(), NAMESPACE);
    let mut folders = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
        let source = volume.and_then(|volume| volume.config_map.as_ref());
        // The projected token of the ServiceAccount is no ConfigMap.
        let Some(source) = source else { continue };
        let folder = dir.join(&mount.name);
        fs::create_dir(&folder)?;
        for (key, text) in config_maps.get(&source.name).await?.data.into_iter().flatten() {
            fs::write(folder.join(key), text)?;
        }
        folders.push((mount.mount_path.clone(), folder.to_str().context("UTF-8")?.to_owned()));
    }
    Ok(folders)
}

/// helm's output while the test runs the Job as a node would.
pub async fn during(
    testbed: &Testbed,
    job: &str,
    helm: impl Future<Output = Result<String>>,
) -> Result<String> {
    let hook = async { run(testbed, &pod(testbed, job).await?).await };
    let (told, ran) = tokio::join!(helm, hook);
    let (status, problem) = ran?;
    ensure!(status.success(), "{job}: {problem}");
    told
}
