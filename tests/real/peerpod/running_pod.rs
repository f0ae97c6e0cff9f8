//! A running Pod keeps its machine, whatever objects around it are deleted. No PeerPod waits for ever.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use peerpod_operator::install::removal;
use serde_json::json;
use testbed::{
    Kubelet,
    wait::{self, DEADLINE},
};

use crate::support::{alone, beside_others};

/// How long the operator keeps a machine after its Pod's grace period.
const SLACK: Duration = Duration::from_secs(30);

/// Too short for the timer of a Pod with a grace period of 30 s to have fired.
const SOON: Duration = Duration::from_secs(40);

const CRD: &str = "peerpods.confidentialcontainers.org";

#[test]
fn a_pod_in_foreground_deletion_keeps_its_machine_until_its_containers_end() -> Result<()> {
    beside_others(async |scene| {
        let kubelet = Kubelet::join(scene.testbed.client(), "foreground").await?;
        let pod = kubelet.run(&scene.namespace, "web", 300).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        scene.kubectl(&["delete", "pod", "web", "--cascade=foreground", "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        scene.operator_catches_up().await?;
        scene.lives(&vm).await?;

        let ended = Instant::now();
        kubelet.end(&pod).await?;
        scene.reaped(&vm).await?;
        ensure!(ended.elapsed() < SOON, "it took {:?}", ended.elapsed());
        // The garbage collector waits for the PeerPod. The Pod waits for the garbage collector and for its kubelet.
        kubelet.remove(&pod).await?;
        wait::gone(scene.pods.api(), "web", DEADLINE).await
    })
}

#[test]
fn a_pod_that_never_ends_keeps_its_machine_for_its_grace_period_and_slack() -> Result<()> {
    beside_others(async |scene| {
        let kubelet = Kubelet::join(scene.testbed.client(), "never-ends").await?;
        let pod = kubelet.run(&scene.namespace, "web", 15).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        let deleted = Instant::now();
        // The Pod object itself waits for the PeerPod here.
        scene.kubectl(&["delete", "pod", "web", "--cascade=foreground", "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        scene.lives(&vm).await?;
        wait::gone(&scene.peerpods, &vm.name(), 2 * DEADLINE).await?;
        let (kept, least) = (deleted.elapsed(), Duration::from_secs(15) + SLACK);
        // Timestamps are whole seconds.
        ensure!(kept + Duration::from_secs(2) > least, "the machine was kept for {kept:?} only");
        ensure!(kept < least + SOON, "the machine was kept for {kept:?}");
        kubelet.remove(&pod).await?;
        scene.vanished(&vm).await
    })
}

#[test]
fn a_peerpod_deleted_under_a_running_pod_waits_for_the_pod() -> Result<()> {
    beside_others(async |scene| {
        let kubelet = Kubelet::join(scene.testbed.client(), "runs").await?;
        let pod = kubelet.run(&scene.namespace, "web", 30).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        let condition = scene.held(&vm.name(), "WaitingForPod").await?;
        assert_eq!(condition.type_, "Reconciling");
        assert!(condition.message.contains("Pod"), "{}", condition.message);
        scene.operator_catches_up().await?;
        scene.lives(&vm).await?;

        let deleted = Instant::now();
        kubelet.remove(&pod).await?;
        scene.released(&vm.name()).await?;
        ensure!(deleted.elapsed() < SOON, "it took {:?}", deleted.elapsed());
        scene.vanished(&vm).await
    })
}

#[test]
fn a_peerpod_deleted_under_a_running_pod_is_released_when_the_pod_completes() -> Result<()> {
    beside_others(async |scene| {
        let kubelet = Kubelet::join(scene.testbed.client(), "completes").await?;
        let pod = kubelet.run(&scene.namespace, "job", 30).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        scene.lives(&vm).await?;

        let ended = Instant::now();
        kubelet.end(&pod).await?;
        scene.released(&vm.name()).await?;
        ensure!(ended.elapsed() < SOON, "it took {:?}", ended.elapsed());
        scene.vanished(&vm).await?;
        ensure!(scene.pods.api().get("job").await?.metadata.deletion_timestamp.is_none());
        Ok(())
    })
}

#[test]
fn another_pod_of_the_same_name_keeps_nothing() -> Result<()> {
    beside_others(async |scene| {
        let kubelet = Kubelet::join(scene.testbed.client(), "recreated").await?;
        let pod = kubelet.run(&scene.namespace, "web-0", 30).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        kubelet.remove(&pod).await?;
        let next = kubelet.run(&scene.namespace, "web-0", 30).await?;
        ensure!(next.uid() != pod.uid());
        scene.reaped(&vm).await?;
        // The other Pod is already there when the operator first looks at this PeerPod.
        let late = scene.caa.start_vm(&pod, scene.host).await?;
        scene.reaped(&late).await
    })
}

#[test]
fn the_definition_deleted_under_a_running_pod_waits_for_the_pod_and_may_come_back() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        let allow = format!("{}=true", removal::ALLOW_ANNOTATION);
        scene.testbed.cluster().kubectl(&["annotate", "crd", CRD, &allow]).await?;
        scene.testbed.cluster().kubectl(&["delete", "crd", CRD, "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        scene.lives(&vm).await?;

        scene.pods.delete("web").await?;
        wait::gone(&scene.testbed.crds(), CRD, DEADLINE).await?;
        scene.vanished(&vm).await?;

        alone.testbed.install_objects().await?;
        alone.testbed.collect_new_kinds().await?;
        alone.scene().operator_catches_up().await
    })
}

#[test]
fn a_restored_condition_without_a_cause_is_removed() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm("web").await?;
        let restored = json!({ "status": { "conditions": [{
            "type": "Stalled", "status": "True", "reason": "NoOwner", "message": "of then",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } });
        let params = PatchParams { field_manager: Some("restore".to_owned()), ..PatchParams::default() };
        scene.peerpods.patch_status(&vm.name(), &params, &Patch::Merge(restored)).await?;
        wait::present(&scene.peerpods, &vm.name(), "the condition is gone", DEADLINE, |peerpod| {
            peerpod.status.as_ref().is_some_and(|status| status.conditions.is_empty())
        })
        .await?;
        scene.pods.delete("web").await?;
        scene.released(&vm.name()).await
    })
}
