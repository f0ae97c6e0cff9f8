//! PeerPods of running Pods whose VM is gone or off, PeerPods of Pods that have ended, and PeerPods that record no VM.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::install::{Options, evictions};
use testbed::{
    vm_name,
    wait::{self, DEADLINE},
};

use super::{sweeping, swept};
use crate::support::{Scene, condition};

/// Waits until an event about this Pod has the reason.
async fn pod_is_told(scene: &Scene<'_>, pod: &str, reason: &str) -> Result<()> {
    let fields =
        format!("--field-selector=involvedObject.kind=Pod,involvedObject.name={pod},reason={reason}");
    wait::eventually(&format!("an event about the Pod {pod} says {reason}"), DEADLINE, async || {
        let events = scene.kubectl(&["get", "events", &fields, "--output=jsonpath={.items[*].type}"]).await?;
        ensure!(events.contains("Warning"), "{events:?}");
        Ok(())
    })
    .await
}

#[test]
fn a_lost_vm_is_reported_on_its_pod_and_peerpod_until_it_is_back() -> Result<()> {
    sweeping(&[], &[], async |alone| {
        let scene = alone.scene();
        let gone = scene.pod_with_vm("gone").await?;
        let stopped = scene.pod_with_vm("stopped").await?;
        let sound = scene.pod_with_vm("sound").await?;
        let virsh = scene.host.virsh();
        scene.caa.delete_machine(&gone, scene.host).await?;
        virsh.run(&["destroy", &stopped.machine.domain.name]).await?;
        for (vm, pod, reason) in [(&gone, "gone", "VMGone"), (&stopped, "stopped", "VMStopped")] {
            let condition = scene.held(&vm.name(), reason).await?;
            ensure!(condition.type_ == "Stalled", "{condition:?}");
            pod_is_told(&scene, pod, reason).await?;
        }
        let lost = async |state| {
            let metrics = alone.operator.metrics().await?;
            anyhow::Ok(metrics.sum("peerpod_operator_lost_vms", &[("state", state)]))
        };
        wait::eventually("the metrics count both", DEADLINE, async || {
            let (gone, stopped) = (lost("Gone").await?, lost("Stopped").await?);
            ensure!(
                (gone - 1.0).abs() < 0.5 && (stopped - 1.0).abs() < 0.5,
                "{gone} gone, {stopped} stopped"
            );
            Ok(())
        })
        .await?;
        for pod in ["gone", "stopped"] {
            scene.pods.api().get(pod).await?;
        }
        ensure!(
            condition(&scene.peerpods.get(&sound.name()).await?).is_none(),
            "a sound VM is said to be lost"
        );

        virsh.run(&["start", &stopped.machine.domain.name]).await?;
        let quiet = |it: &_| condition(it).is_none();
        wait::present(&scene.peerpods, &stopped.name(), "it says nothing any more", DEADLINE, quiet).await?;
        scene.lives(&stopped).await?;
        scene.pods.delete("gone").await?;
        scene.released(&gone.name()).await
    })
}

#[test]
fn a_pod_that_lost_its_vm_is_evicted_on_request_and_no_other() -> Result<()> {
    sweeping(&[], &["--lost-vms=delete-pod"], async |alone| {
        let scene = alone.scene();
        let dir = tempfile::tempdir()?;
        for (number, object) in evictions::objects(&Options::default())?.iter().enumerate() {
            let file = dir.path().join(format!("{number}.json"));
            fs::write(&file, object.to_string())?;
            scene.kubectl(&["apply", "--filename", file.to_str().context("UTF-8")?]).await?;
        }
        let gone = scene.pod_with_vm("gone").await?;
        // Any user with the right may write a PeerPod that names a VM which never existed.
        let pod = scene.pods.run("accused").await?;
        let forged = scene.caa.record(&pod, "libvirt", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").await?;
        scene.held(&forged.name_any(), "VMGone").await?;
        swept(&alone.operator).await?;

        scene.caa.delete_machine(&gone, scene.host).await?;
        wait::gone(scene.pods.api(), "gone", DEADLINE).await?;
        scene.released(&gone.name()).await?;
        swept(&alone.operator).await?;
        let accused = scene.pods.api().get("accused").await?;
        ensure!(accused.metadata.deletion_timestamp.is_none(), "the Pod was evicted");
        Ok(())
    })
}

#[test]
fn the_vm_that_a_pod_left_when_it_ended_is_deleted_while_the_pod_object_stays() -> Result<()> {
    sweeping(&[], &[], async |alone| {
        let scene = alone.scene();
        let ended = [("done", "Succeeded"), ("failed", "Failed")];
        let mut left = Vec::new();
        for (pod, phase) in ended {
            let vm = scene.pod_with_vm(pod).await?;
            let patch = format!(r#"--patch={{"status":{{"phase":"{phase}"}}}}"#);
            scene.kubectl(&["patch", "pod", pod, "--subresource=status", "--type=merge", &patch]).await?;
            left.push(vm);
        }
        let runs = scene.pod_with_vm("runs").await?;
        for vm in &left {
            scene.reaped(vm).await?;
        }
        for (pod, _) in ended {
            scene.pods.api().get(pod).await?;
        }
        swept(&alone.operator).await?;
        scene.lives(&runs).await
    })
}

#[test]
fn a_peerpod_without_a_vm_is_released_when_its_pod_has_no_vm() -> Result<()> {
    sweeping(&[], &[], async |alone| {
        let scene = alone.scene();
        let mut recorded = Vec::new();
        for pod in ["without", "with", "runs"] {
            let pod = scene.pods.run(pod).await?;
            recorded.push(scene.caa.record(&pod, "libvirt", "").await?.name_any());
        }
        let [without, with, runs] = &recorded[..] else { unreachable!("three were recorded") };
        let vm = scene.host.start_pod_vm(&vm_name("with")).await?;
        for pod in ["without", "with"] {
            scene.pods.delete(pod).await?;
        }
        scene.kubectl(&["delete", "peerpod", runs, "--wait=false"]).await?;
        scene.released(without).await?;
        swept(&alone.operator).await?;
        scene.held(with, "InvalidInstanceID").await?;
        scene.held(runs, "WaitingForPod").await?;
        scene.host.virsh().run(&["domstate", &vm.domain.name]).await?;
        scene.pods.delete("runs").await?;
        scene.released(runs).await
    })
}
