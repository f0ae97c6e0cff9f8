//! Uninstall while a PeerPodConfig is in force.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig, install};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    Helm, RELEASE,
    hook::{self, NOWHERE},
};
use crate::{
    peerpodconfig::configuration::stage::{Stage, configuring},
    support::Alone,
};

/// Makes the release take over the existing objects, and create a configuration for the nodes of the stage.
async fn install(alone: &Alone<'_>, helm: &Helm, stage: &Stage) -> Result<()> {
    let spec = json!({ "nodeSelector": stage.label });
    let spec = format!("peerPodConfig.spec={spec}");
    let values = format!("{NOWHERE},peerPodConfig.create=true,limit=5,admission.mode=Policy");
    let options = ["--take-ownership", "--set", &values, "--set-json", &spec];
    hook::during(alone.testbed, install::APPLY_JOB, helm.upgrade(&options)).await?;
    stage.until("config", "Ready", "AllReady").await?;
    stage.shares(&[Some(2), Some(3)]).await
}

#[test]
fn uninstall_fails_while_machines_run_and_then_deletes_the_configuration() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let helm = Helm::of(alone.testbed.cluster()).await?;
        install(alone, &helm, &stage).await?;
        let scene = alone.scene();
        let (stays, goes) = (scene.pod_with_vm("stays").await?, scene.pod_with_vm("goes").await?);

        // The deletion of one machine takes a while; another machine lives on.
        alone.libvirtd.pause()?;
        scene.pods.delete("goes").await?;
        scene.going(&goes.name()).await?;
        let uninstall = ["uninstall", RELEASE, "--timeout=120s"];
        let drain = async {
            let pod = hook::pod(alone.testbed, install::DRAIN_JOB).await?;
            alone.libvirtd.resume()?;
            hook::run(alone.testbed, &pod).await
        };
        let (refused, drained) = tokio::join!(helm.run(&uninstall), drain);
        let (status, told) = drained?;
        ensure!(status.code() == Some(1) && refused.is_err(), "{told}");
        ensure!(told.contains(&stays.name()) && !told.contains(&goes.name()), "{told}");
        ensure!(told.contains("Drain removed nothing"), "{told}");
        ensure!(scene.peerpods.get_opt(&goes.name()).await?.is_none(), "it did not wait for what goes");
        scene.vanished(&goes).await?;
        scene.lives(&stays).await?;
        ensure!(stage.configs.get("config").await?.metadata.deletion_timestamp.is_none());
        stage.shares(&[Some(2), Some(3)]).await?;

        // Then no machine is left, but a new one appears while the configuration is being deleted.
        scene.pods.delete("stays").await?;
        scene.released(&stays.name()).await?;
        alone.operator.pause()?;
        let drain =
            async { hook::run(alone.testbed, &hook::pod(alone.testbed, install::DRAIN_JOB).await?).await };
        let comes = async {
            let going = |config: &PeerPodConfig| config.metadata.deletion_timestamp.is_some();
            wait::present(&stage.configs, "config", "the configuration goes", DEADLINE, going).await?;
            let late = scene.pod_with_vm("late").await;
            alone.operator.resume()?;
            late
        };
        let (refused, drained, late) = tokio::join!(helm.run(&uninstall), drain, comes);
        let ((status, told), late) = (drained?, late?);
        ensure!(status.code() == Some(1) && refused.is_err(), "{told}");
        ensure!(told.contains(&late.name()) && !told.contains("Drain removed nothing"), "{told}");
        ensure!(stage.configs.get_opt("config").await?.is_none());
        stage.shares(&[None, None]).await?;
        scene.lives(&late).await?;

        // The operator is still there, so it deletes this machine. Then the uninstallation may remove the operator.
        scene.pods.delete("late").await?;
        scene.reaped(&late).await?;
        hook::during(alone.testbed, install::DRAIN_JOB, helm.run(&uninstall)).await?;
        for definition in ["peerpods", "peerpodconfigs"] {
            let name = format!("{definition}.confidentialcontainers.org");
            ensure!(alone.testbed.crds().get_opt(&name).await?.is_some(), "{name} is gone");
        }
        let kinds = "daemonsets,deployments,mutatingadmissionpolicies,validatingadmissionpolicies";
        let ours = "--selector=app.kubernetes.io/part-of=peer-pods";
        let kinds = ["get", kinds, "--namespace", NAMESPACE, ours, "--output=name"];
        let left = alone.testbed.cluster().kubectl(&kinds).await?;
        ensure!(left.is_empty(), "{left}");
        // The deletion of neither namespace is blocked.
        let namespaces: Api<Namespace> = Api::all(alone.testbed.client());
        for name in [&*alone.namespace, NAMESPACE] {
            // The API server notices a moment later that the policy that kept the operator's namespace is gone.
            wait::eventually("the namespace may be deleted", DEADLINE, async || {
                alone.testbed.cluster().kubectl(&["delete", "namespace", name, "--wait=false"]).await
            })
            .await?;
        }
        for name in [&*alone.namespace, NAMESPACE] {
            wait::gone(&namespaces, name, DEADLINE).await.context(name.to_owned())?;
        }
        stage.leave().await?;
        alone.testbed.install_objects().await
    })
}

#[test]
fn without_its_hook_uninstall_fails_until_the_configuration_is_deleted() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let helm = Helm::of(alone.testbed.cluster()).await?;
        install(alone, &helm, &stage).await?;
        let cluster = alone.testbed.cluster();
        let namespace = format!("--namespace={NAMESPACE}");
        let uninstall = ["uninstall", RELEASE, "--no-hooks"];
        let refused =
            helm.run(&uninstall).await.err().context("the operator went before its configuration")?;
        ensure!(format!("{refused:#}").contains("failed to delete release"), "{refused:#}");
        cluster.kubectl(&["get", "deployment", install::NAME, &namespace]).await?;

        // The command is the one of helm's notes.
        cluster.kubectl(&["delete", "peerpodconfigs", "--all", &namespace, "--timeout=180s"]).await?;
        stage.shares(&[None, None]).await?;
        // The API server notices a moment later that the definition is gone.
        wait::eventually("the release goes", DEADLINE, async || helm.run(&uninstall).await).await?;
        let deployment =
            ["get", "deployment", install::NAME, &namespace, "--ignore-not-found", "--output=name"];
        let left = cluster.kubectl(&deployment).await?;
        ensure!(left.is_empty(), "the Deployment is there: {left}");
        stage.leave().await?;
        alone.testbed.install_objects().await
    })
}
