//! The life of an installation by helm: upgrades, rollbacks, removal.

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPodConfig, install};
use serde_json::{Value, json};
use testbed::Testbed;

use super::{
    CHART, Helm, RELEASE,
    hook::{self, NOWHERE},
};
use crate::{
    install::kustomize::remove,
    support::{alone, without_operator},
};

/// What a PeerPodConfig asks for.
async fn spec(configs: &Api<PeerPodConfig>) -> Result<Value> {
    Ok(serde_json::to_value(configs.get("config").await?.spec)?)
}

#[test]
fn a_release_with_a_configuration_is_upgraded_rolled_back_and_uninstalled() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let cluster = testbed.cluster();
        remove(cluster).await?;
        let helm = Helm::of(cluster).await?;
        let values = format!("{CHART}/providers/libvirt.yaml");
        let create = format!("{NOWHERE},peerPodConfig.create=true");
        let first = ["--values", &values, "--set", &create];
        let apply = async |work: &[&str]| {
            let options = [&first[..], work].concat();
            hook::during(testbed, install::APPLY_JOB, helm.upgrade(&options)).await
        };
        let told = apply(&[]).await?;
        ensure!(told.contains("wait --for=condition=Ready peerpodconfig/config"), "{told}");
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        let made = configs.get("config").await.context("the hook makes it after its definition")?;
        ensure!(spec(&configs).await?["limit"] == "10");

        let replicas = async || -> Result<String> {
            let deployment = ["get", "deployment", install::NAME, "--namespace", NAMESPACE];
            cluster.kubectl(&[&deployment[..], &["--output=jsonpath={.spec.replicas}"]].concat()).await
        };
        ensure!(replicas().await? == "2");
        // An edit by hand. The upgrade reverts fields that the values set, and keeps all others.
        let edit = json!({ "spec": { "limit": 7, "instanceType": "large" } });
        configs.patch("config", &PatchParams::default(), &Patch::Merge(edit)).await?;
        apply(&["--set", "operator.replicas=1"]).await?;
        ensure!(replicas().await? == "1");
        let now = spec(&configs).await?;
        ensure!(now["limit"] == "10" && now["instanceType"] == "large", "{now}");
        apply(&["--set", "limit=5"]).await?;
        ensure!(spec(&configs).await?["limit"] == 5, "{}", spec(&configs).await?);
        for (revision, expected) in [("2", "1"), ("1", "2")] {
            let rollback = ["rollback", RELEASE, revision];
            hook::during(testbed, install::APPLY_JOB, helm.run(&rollback)).await?;
            ensure!(replicas().await? == expected);
            let now = spec(&configs).await?;
            ensure!(now["limit"] == "10" && now["instanceType"] == "large", "{now}");
        }
        // An upgrade with values that no longer create a PeerPodConfig leaves it in place.
        helm.upgrade(&["--values", &values, "--set", NOWHERE]).await?;
        ensure!(configs.get("config").await?.uid() == made.uid(), "it was made anew");
        let left = "jobs,configmaps,serviceaccounts,roles,rolebindings";
        let left = cluster.kubectl(&["get", left, "--namespace", NAMESPACE, "--output=name"]).await?;
        ensure!(!left.contains(install::APPLY_JOB), "{left}");

        let uninstall = ["uninstall", RELEASE, "--timeout=180s"];
        hook::during(testbed, install::DRAIN_JOB, helm.run(&uninstall)).await?;
        let missing = replicas().await.err().context("the Deployment is there")?;
        ensure!(format!("{missing:#}").contains("not found"), "{missing:#}");
        ensure!(configs.get_opt("config").await?.is_none(), "its definition stays, and it does not");
        let left =
            cluster.kubectl(&["get", "clusterroles,validatingadmissionpolicies", "--output=name"]).await?;
        let left: Vec<_> = left.lines().filter(|name| name.contains("peerpod")).collect();
        ensure!(left.is_empty(), "{left:?}");
        // The objects that stay do not hinder the next installation.
        apply(&[]).await?;
        ensure!(configs.get("config").await?.uid() != made.uid());
        hook::during(testbed, install::DRAIN_JOB, helm.run(&uninstall)).await.map(drop)
    })
}

#[test]
fn a_configuration_that_is_refused_fails_the_upgrade_by_name_and_changes_nothing() -> Result<()> {
    without_operator(async |testbed: &Testbed| {
        let helm = Helm::of(testbed.cluster()).await?;
        let create = format!("{NOWHERE},peerPodConfig.create=true");
        let first = ["--take-ownership", "--set", &create];
        hook::during(testbed, install::APPLY_JOB, helm.upgrade(&first)).await?;
        let configs: Api<PeerPodConfig> = Api::namespaced(testbed.client(), NAMESPACE);
        let before = spec(&configs).await?;

        let wrong = [&first[..], &["--set", "peerPodConfig.spec.limit=many"]].concat();
        let hook = async { hook::run(testbed, &hook::pod(testbed, install::APPLY_JOB).await?).await };
        let (refused, ran) = tokio::join!(helm.upgrade(&wrong), hook);
        let (status, told) = ran?;
        ensure!(status.code() == Some(1) && told.contains("limit must be a whole number"), "{told}");
        let refused = format!("{:#}", refused.err().context("it was upgraded")?);
        ensure!(refused.contains(&format!("job {} failed", install::APPLY_JOB)), "{refused}");
        ensure!(spec(&configs).await? == before);
        // The failed Job, which stays for its log, does not hinder the upgrade.
        hook::during(
            testbed,
            install::APPLY_JOB,
            helm.upgrade(&[&first[..], &["--set", "limit=3"]].concat()),
        )
        .await?;
        ensure!(spec(&configs).await?["limit"] == 3);
        helm.run(&["uninstall", RELEASE, "--no-hooks"]).await?;
        testbed.install_objects().await
    })
}

#[test]
fn uninstalling_waits_for_what_is_going_and_refuses_while_machines_are_left() -> Result<()> {
    alone(async |alone| {
        let helm = Helm::of(alone.testbed.cluster()).await?;
        let values = format!("{NOWHERE},drain.timeout=20s");
        helm.upgrade(&["--take-ownership", "--set", &values]).await?;
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;

        let uninstall = ["uninstall", RELEASE, "--timeout=180s"];
        let drain =
            async { hook::run(alone.testbed, &hook::pod(alone.testbed, install::DRAIN_JOB).await?).await };
        let (refused, drained) = tokio::join!(helm.run(&uninstall), drain);
        let (status, told) = drained?;
        ensure!(status.code() == Some(1), "{told}");
        ensure!(
            told.contains(&format!(
                "PeerPods of Pods that still exist, running or ended: {}/web (PeerPod {})",
                alone.namespace,
                vm.name()
            )),
            "{told}"
        );
        let refused = format!("{:#}", refused.err().context("it was uninstalled")?);
        ensure!(refused.contains("job peerpod-operator-drain failed"), "{refused}");
        scene.lives(&vm).await?;
        ensure!(scene.peerpods.get(&vm.name()).await?.metadata.deletion_timestamp.is_none());

        // The release can be upgraded again after a rollback to the revision that is marked.
        let history = helm.run(&["history", RELEASE, "--max=1", "--output=json"]).await?;
        let history: Value = serde_json::from_str(&history)?;
        ensure!(history[0]["status"] == "uninstalling", "{history}");
        let stuck = helm.upgrade(&["--set", &values]).await.err().context("it was upgraded")?;
        ensure!(format!("{stuck:#}").contains("has no deployed releases"), "{stuck:#}");
        helm.run(&["rollback", RELEASE, &history[0]["revision"].to_string()]).await?;
        helm.upgrade(&["--set", &values]).await?;

        // The Pod is deleted, and the deletion of its machine hangs for a while. The operator stays until the machine is gone.
        alone.libvirtd.pause()?;
        scene.pods.delete("web").await?;
        scene.going(&vm.name()).await?;
        let drain = async {
            let pod = hook::pod(alone.testbed, install::DRAIN_JOB).await?;
            alone.libvirtd.resume()?;
            hook::run(alone.testbed, &pod).await
        };
        let (uninstalled, drained) = tokio::join!(helm.run(&uninstall), drain);
        let (status, told) = drained?;
        ensure!(status.success(), "{told}");
        uninstalled?;
        ensure!(scene.peerpods.get_opt(&vm.name()).await?.is_none(), "it did not wait");
        scene.vanished(&vm).await?;
        ensure!(alone.testbed.crds().get_opt("peerpods.confidentialcontainers.org").await?.is_some());
        alone.testbed.install_objects().await
    })
}
