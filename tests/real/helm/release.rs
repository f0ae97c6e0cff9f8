//! What becomes of an installation by helm: upgrades, rollbacks, its end.

use std::process::ExitStatus;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPod, PeerPodConfig},
    install,
};
use serde_json::json;
use testbed::{
    Testbed,
    wait::{self, DEADLINE},
};
use tokio::process::Command;

use super::{CHART, Helm, RELEASE};
use crate::{
    kustomize::remove,
    support::{PROGRAM, alone, without_operator},
};

#[test]
fn a_release_is_installed_upgraded_rolled_back_and_uninstalled() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        remove(cluster).await?;
        let helm = Helm::of(cluster).await?;
        let values = format!("{CHART}/providers/libvirt.yaml");
        let first = ["--values", &values, "--set", "peerPodConfig.create=true"];
        let told = helm.upgrade(&first).await?;
        ensure!(told.contains("wait --for=condition=Ready peerpodconfig/config"), "{told}");
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        let made = configs.get("config").await.context("the hook makes it after its definition")?;

        let replicas = async || -> Result<String> {
            let deployment = ["get", "deployment", install::NAME, "--namespace", NAMESPACE];
            cluster.kubectl(&[&deployment[..], &["--output=jsonpath={.spec.replicas}"]].concat()).await
        };
        ensure!(replicas().await? == "2");
        let told = helm.upgrade(&[&first[..], &["--set", "operator.replicas=1"]].concat()).await?;
        ensure!(!told.contains("It differs"), "{told}");
        ensure!(replicas().await? == "1");
        let told = helm.upgrade(&[&first[..], &["--set", "limit=5"]].concat()).await?;
        ensure!(told.contains("It differs from the values"), "{told}");
        let kept = configs.get("config").await?;
        ensure!(kept.uid() == made.uid() && kept.spec == made.spec, "{kept:?}");
        helm.run(&["rollback", RELEASE, "2"]).await?;
        ensure!(replicas().await? == "1");
        helm.run(&["rollback", RELEASE, "1"]).await?;
        ensure!(replicas().await? == "2");
        ensure!(configs.get("config").await?.uid() == made.uid(), "a rollback takes no PeerPodConfig away");

        // A fake node runs the Job that drains, so it ends well at once, and does nothing.
        helm.run(&["uninstall", RELEASE, "--timeout=60s"]).await?;
        ensure!(replicas().await.is_err(), "the Deployment is there");
        configs.get("config").await.context("its definition stays, so it does, too")?;
        let left =
            cluster.kubectl(&["get", "clusterroles,validatingadmissionpolicies", "--output=name"]).await?;
        ensure!(!left.contains("peerpod"), "{left}");
        configs.delete("config", &kube::api::DeleteParams::default()).await?;
        // What stays is no obstacle for the next one.
        helm.upgrade(&first).await?;
        ensure!(configs.get("config").await?.uid() != made.uid());
        helm.run(&["uninstall", RELEASE, "--timeout=60s"]).await?;
        configs.delete("config", &kube::api::DeleteParams::default()).await?;
        Ok(())
    })
}

/// The Pod of the Job that drains, which no node has run yet.
async fn drain_pod(testbed: &Testbed) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
    let of_job = ListParams::default().labels(&format!("job-name={}", install::DRAIN_JOB));
    wait::eventually("the Job has its Pod", DEADLINE, async || {
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
        let mut pods = pods.list(&of_job).await?.items.into_iter();
        pods.find(|pod| phase(pod).as_deref() == Some("Pending")).context("there is none")
    })
    .await
}

/// Does what a node would: runs the Pod's program as the operator, and tells how it ended.
async fn run_drain(testbed: &Testbed, pod: &Pod) -> Result<(ExitStatus, String)> {
    let pods: Api<Pod> = Api::namespaced(testbed.client(), NAMESPACE);
    let spec = pod.spec.as_ref().context("it has a spec")?;
    ensure!(spec.service_account_name.as_deref() == Some(install::NAME));
    let arguments = spec.containers[0].args.clone().context("it has arguments")?;
    let kubeconfig = testbed.kubeconfig_of(install::NAME).await?;
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .kill_on_drop(true)
        .output()
        .await?;
    let phase = if output.status.success() { "Succeeded" } else { "Failed" };
    let status = json!({ "status": { "phase": phase } });
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok((output.status, String::from_utf8(output.stderr)?))
}

#[test]
fn uninstalling_waits_for_what_is_going_and_refuses_while_machines_are_left() -> Result<()> {
    alone(async |alone| {
        let helm = Helm::of(alone.testbed.cluster()).await?;
        // No node has it, so the test decides what becomes of Pods.
        let nowhere = "operator.nodeSelector.nowhere=x,drain.timeout=20s";
        helm.upgrade(&["--take-ownership", "--set", nowhere]).await?;
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;

        let uninstall = ["uninstall", RELEASE, "--timeout=60s"];
        let drain = async { run_drain(alone.testbed, &drain_pod(alone.testbed).await?).await };
        let (refused, drained) = tokio::join!(helm.run(&uninstall), drain);
        let (status, told) = drained?;
        ensure!(status.code() == Some(1), "{told}");
        ensure!(
            told.contains(&format!("PeerPods of running Pods: {}/{}", alone.namespace, vm.name())),
            "{told}"
        );
        let refused = format!("{:#}", refused.err().context("it was uninstalled")?);
        ensure!(refused.contains("job peerpod-operator-drain failed"), "{refused}");
        scene.lives(&vm).await?;
        let peerpods: Api<PeerPod> = Api::namespaced(alone.testbed.client(), &alone.namespace);
        ensure!(peerpods.get(&vm.name()).await?.metadata.deletion_timestamp.is_none());

        // The Pod goes, and its machine hangs for a while: the operator stays until it is gone.
        alone.libvirtd.pause()?;
        scene.pods.delete("web").await?;
        let going = |peerpod: &PeerPod| peerpod.metadata.deletion_timestamp.is_some();
        wait::present(&peerpods, &vm.name(), "the PeerPod goes", DEADLINE, going).await?;
        let drain = async {
            let pod = drain_pod(alone.testbed).await?;
            alone.libvirtd.resume()?;
            run_drain(alone.testbed, &pod).await
        };
        let (uninstalled, drained) = tokio::join!(helm.run(&uninstall), drain);
        let (status, told) = drained?;
        ensure!(status.success(), "{told}");
        uninstalled?;
        ensure!(peerpods.get_opt(&vm.name()).await?.is_none(), "it did not wait");
        scene.vanished(&vm).await?;
        ensure!(alone.testbed.crds().get_opt("peerpods.confidentialcontainers.org").await?.is_some());
        alone.testbed.install_objects().await
    })
}
