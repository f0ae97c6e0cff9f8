//! Several PeerPods of one Pod: cloud-api-adaptor was restarted and made new machines, or somebody says so.
//!
//! A test cannot wait until a sandbox is older than [`LONGEST_START`]; so kubelets say here that one became ready in times to
//! come.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use peerpod_operator::{api::v1alpha1::PeerPod, peerpod::decide::LONGEST_START};
use testbed::Vm;

use crate::support::{Scene, beside_others, created, next_second, second_after};

async fn more_vms(scene: &Scene<'_>, count: usize) -> Result<Vec<Vm>> {
    let pod = scene.pods.api().get("web").await?;
    try_join_all((0..count).map(|_| scene.caa.start_vm(&pod, scene.host))).await
}

/// Fails unless a machine runs and nobody deleted its PeerPod.
async fn stays(scene: &Scene<'_>, vm: &Vm) -> Result<()> {
    scene.lives(vm).await?;
    ensure!(scene.peerpods.get(&vm.name()).await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

#[test]
fn of_twenty_siblings_those_go_that_the_pod_has_left_and_the_others_with_the_pod() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run("web").await?;
        let mut vms = more_vms(scene, 12).await?;
        next_second(&vms).await?;
        vms.extend(more_vms(scene, 8).await?);

        let mut by_second: BTreeMap<Timestamp, Vec<Vm>> = BTreeMap::new();
        for vm in &vms {
            by_second.entry(created(vm)).or_default().push(vm.clone());
        }
        let (second, newest) = by_second.pop_last().context("there are PeerPods")?;
        let older: Vec<_> = by_second.into_values().flatten().collect();
        // The sandbox may be that of any of them.
        scene.pods.sandbox_became_ready("web", second).await?;
        for vm in &older {
            let condition = scene.held(&vm.name(), "WaitingForPod").await?;
            assert!(condition.message.contains("left it"), "{}", condition.message);
        }
        scene.operator_catches_up().await?;
        for vm in &vms {
            stays(scene, vm).await?;
        }

        // Too late for the older ones.
        scene.pods.sandbox_became_ready("web", second + LONGEST_START).await?;
        for vm in &older {
            scene.released(&vm.name()).await?;
            scene.vanished(vm).await?;
        }
        scene.operator_catches_up().await?;
        for vm in &newest {
            stays(scene, vm).await?;
            ensure!(scene.peerpods.get(&vm.name()).await?.status.is_none(), "nothing is wrong with it");
        }

        scene.pods.delete("web").await?;
        for vm in &newest {
            scene.released(&vm.name()).await?;
            scene.vanished(vm).await?;
        }
        Ok(())
    })
}

#[test]
fn a_machine_that_was_recorded_twice_goes_when_the_pod_has_left_it() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run("web").await?;
        let older = more_vms(scene, 1).await?;
        // Neither needs the machine that the other names.
        let pod = scene.pods.api().get("web").await?;
        let again = scene.caa.record(&pod, "libvirt", &vm_id(&older[0])).await?;
        second_after(again.creation_timestamp().context("it was made")?.0).await?;
        let newer = more_vms(scene, 1).await?;
        scene.pods.sandbox_became_ready("web", created(&newer[0]) + LONGEST_START).await?;
        scene.released(&older[0].name()).await?;
        scene.released(&again.name_any()).await?;
        scene.vanished(&older[0]).await?;
        scene.operator_catches_up().await?;
        stays(scene, &newer[0]).await
    })
}

/// A Pod whose kubelet said, after its machine was recorded, that its sandbox is ready; and the second is over.
async fn pod_in_sandbox(scene: &Scene<'_>) -> Result<(Pod, Vm)> {
    let vm = scene.pod_with_vm("web").await?;
    let pod = scene.pods.sandbox_became_ready("web", Timestamp::now()).await?;
    next_second(std::slice::from_ref(&vm)).await?;
    Ok((pod, vm))
}

/// After this newer PeerPod the Pod still has its machine, for as long as it runs.
async fn replaces_nothing(scene: &Scene<'_>, vm: &Vm) -> Result<()> {
    scene.operator_catches_up().await?;
    stays(scene, vm).await?;
    scene.pods.delete("web").await?;
    scene.released(&vm.name()).await?;
    scene.vanished(vm).await
}

async fn abandon(scene: &Scene<'_>, peerpod: &PeerPod) -> Result<()> {
    let abandon = "peerpods.confidentialcontainers.org/release=abandon";
    scene.kubectl(&["annotate", "peerpod", &peerpod.name_any(), abandon]).await?;
    scene.released(&peerpod.name_any()).await
}

fn vm_id(vm: &Vm) -> String {
    vm.machine.domain.uuid.to_string()
}

#[test]
fn a_newer_peerpod_that_cloud_api_adaptor_released_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let (pod, vm) = pod_in_sandbox(scene).await?;
        // A late clean-up of a failed start stripped it: its machine may be gone, and the Pod on the older one.
        let mut stripped = testbed::peerpod_object(&pod, "libvirt", &vm_id(&vm));
        stripped["metadata"].as_object_mut().context("an object")?.remove("finalizers");
        scene.caa.create(stripped).await?;
        replaces_nothing(scene, &vm).await
    })
}

#[test]
fn a_newer_peerpod_that_names_a_foreign_machine_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let (pod, vm) = pod_in_sandbox(scene).await?;
        let database = scene.host.start_domain(&format!("database-{}", scene.namespace), "", &[]).await?;
        let foreign = scene.caa.record(&pod, "libvirt", &database.uuid.to_string()).await?;
        replaces_nothing(scene, &vm).await?;
        scene.held(&foreign.name_any(), "NotThisPodsVM").await?;
        abandon(scene, &foreign).await
    })
}

#[test]
fn a_newer_peerpod_that_names_the_machine_of_another_pod_of_that_name_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let (pod, vm) = pod_in_sandbox(scene).await?;
        let elsewhere = scene.elsewhere().await?;
        let namesake = elsewhere.pod_with_vm("web").await?;
        let forged = scene.caa.record(&pod, "libvirt", &vm_id(&namesake)).await?;
        replaces_nothing(scene, &vm).await?;
        scene.held(&forged.name_any(), "ClaimedByAnother").await?;
        elsewhere.lives(&namesake).await?;
        abandon(scene, &forged).await
    })
}

#[test]
fn a_newer_peerpod_that_names_a_machine_which_no_other_one_names_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let (pod, vm) = pod_in_sandbox(scene).await?;
        // Made by whoever writes the PeerPod, named and marked as a machine of this Pod would be.
        let untracked = scene.host.start_pod_vm(&testbed::vm_name("web")).await?;
        scene.caa.record(&pod, "libvirt", &untracked.domain.uuid.to_string()).await?;
        replaces_nothing(scene, &vm).await
    })
}

#[test]
fn a_newer_peerpod_in_another_namespace_replaces_nothing_whatever_owner_it_names() -> Result<()> {
    beside_others(async |scene| {
        let (pod, vm) = pod_in_sandbox(scene).await?;
        // A machine that is named as this Pod's would be.
        let elsewhere = scene.elsewhere().await?;
        let namesake = elsewhere.pod_with_vm("web").await?;
        let mut alleged = testbed::peerpod_object(&pod, "libvirt", &vm_id(&namesake));
        alleged["metadata"]["namespace"] = elsewhere.namespace.clone().into();
        scene.caa.create(alleged).await?;
        replaces_nothing(scene, &vm).await?;
        elsewhere.lives(&namesake).await
    })
}
