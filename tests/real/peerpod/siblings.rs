//! Several PeerPods of one Pod: cloud-api-adaptor was restarted and made new machines.

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::ResourceExt as _;
use testbed::{Vm, wait};
use uuid::Uuid;

use crate::support::{Scene, alone, beside_others, created, next_second};

/// A name that an API server generated, as for a `ReplicaSet`. No earlier Pod had it, so a newer machine replaces an older one at once.
const WEB: &str = "web-x7k2p";

/// New machines for new sandboxes of the Pod.
async fn more_vms(scene: &Scene<'_>, count: usize) -> Result<Vec<Vm>> {
    let pod = scene.pods.sandbox_is_lost(WEB).await?;
    try_join_all((0..count).map(|_| scene.caa.start_vm(&pod, scene.host))).await
}

/// Fails unless the machine runs and its PeerPod is not being deleted.
async fn stays(scene: &Scene<'_>, vm: &Vm) -> Result<()> {
    scene.lives(vm).await?;
    ensure!(scene.peerpods.get(&vm.name()).await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

/// Fails if the operator sees a sibling of this PeerPod whose order is unclear.
async fn has_no_sibling(scene: &Scene<'_>, vm: &Vm) -> Result<()> {
    let status = scene.peerpods.get(&vm.name()).await?.status;
    ensure!(status.is_none(), "another PeerPod counts as a sibling: {status:?}");
    Ok(())
}

/// Deletes the Pod, and waits until its machine is gone.
async fn goes_with_its_pod(scene: &Scene<'_>, vm: &Vm) -> Result<()> {
    scene.pods.delete(WEB).await?;
    scene.reaped(vm).await
}

#[test]
fn the_newest_of_twenty_siblings_stays_until_its_pod_is_deleted() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run(WEB).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        let mut older = Vec::new();
        for _ in 0..19 {
            older.push(scene.caa.start_vm(&pod, scene.host).await?);
        }
        let newest = scene.caa.start_vm(&pod, scene.host).await?;
        for vm in &older {
            scene.reaped(vm).await?;
        }
        scene.operator_catches_up().await?;
        stays(scene, &newest).await?;
        goes_with_its_pod(scene, &newest).await
    })
}

#[test]
fn a_first_start_that_is_recorded_last_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run(WEB).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        // The kubelet gave the first sandbox up. The next sandbox has a machine before the first one's machine has an address.
        let slow = scene.host.start_pod_vm(&testbed::vm_name(WEB)).await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        let late = scene.caa.record(&pod, "libvirt", &slow.domain.uuid.to_string()).await?;
        let condition = scene.held(&vm.name(), "AmbiguousSiblings").await?;
        ensure!(condition.message.contains("cannot tell which one is the newest"), "{}", condition.message);
        scene.operator_catches_up().await?;
        stays(scene, &vm).await?;

        goes_with_its_pod(scene, &vm).await?;
        scene.released(&late.name_any()).await
    })
}

#[test]
fn a_slow_start_of_an_earlier_pod_of_the_same_name_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.come_and_go("web-0").await?;
        scene.pods.run("web-0").await?;
        let pod = scene.pods.sandbox_is_lost("web-0").await?;
        let vm = scene.caa.start_vm(&pod, scene.host).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        // It began before the first Pod was deleted. cloud-api-adaptor records its machine for the Pod that has the name now.
        let late = scene.caa.start_vm(&pod, scene.host).await?;
        scene.operator_catches_up().await?;
        stays(scene, &vm).await?;
        stays(scene, &late).await?;

        scene.pods.delete("web-0").await?;
        scene.reaped(&vm).await?;
        scene.reaped(&late).await
    })
}

#[test]
fn a_newer_sibling_replaces_the_older_one_under_the_running_pod() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run(WEB).await?;
        let older = more_vms(scene, 1).await?;
        // The machine is recorded twice, and neither PeerPod needs the one that the other names.
        let pod = scene.pods.api().get(WEB).await?;
        let again = scene.caa.record(&pod, "libvirt", &vm_id(&older[0])).await?;
        next_second(&older).await?;
        wait::second_after(again.creation_timestamp().context("it was made")?.0).await?;
        let newer = more_vms(scene, 1).await?;
        scene.released(&older[0].name()).await?;
        scene.released(&again.name_any()).await?;
        scene.vanished(&older[0]).await?;
        scene.operator_catches_up().await?;
        scene.lives(&newer[0]).await?;
        ensure!(scene.peerpods.get(&newer[0].name()).await?.status.is_none(), "nothing is wrong with it");
        Ok(())
    })
}

#[test]
fn a_sibling_that_cloud_api_adaptor_released_does_not_replace_the_older_one() -> Result<()> {
    beside_others(async |scene| {
        scene.pods.run(WEB).await?;
        let older = more_vms(scene, 1).await?;
        next_second(&older).await?;
        // A late clean-up of a failed start removed its finalizer. Its machine may go at any time, and the Pod may run on the older one.
        let pod = scene.pods.api().get(WEB).await?;
        let newer = scene.host.start_pod_vm(&testbed::vm_name(WEB)).await?;
        let mut stripped = testbed::peerpod_object(&pod, "libvirt", &newer.domain.uuid.to_string());
        stripped["metadata"].as_object_mut().context("an object")?.remove("finalizers");
        scene.caa.create(stripped).await?;
        scene.operator_catches_up().await?;
        stays(scene, &older[0]).await?;
        has_no_sibling(scene, &older[0]).await
    })
}

fn vm_id(vm: &Vm) -> String {
    vm.machine.domain.uuid.to_string()
}

#[test]
fn a_newer_peerpod_of_the_same_pod_that_names_a_foreign_machine_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        let database = scene.host.start_domain(&format!("database-{}", scene.namespace), "", &[]).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        let foreign = scene.caa.record(&pod, "libvirt", &database.uuid.to_string()).await?;
        scene.operator_catches_up().await?;
        stays(scene, &vm).await?;
        has_no_sibling(scene, &vm).await?;

        goes_with_its_pod(scene, &vm).await?;
        scene.held(&foreign.name_any(), "NotThisPodsVM").await?;
        scene.abandon(&foreign.name_any()).await?;
        scene.released(&foreign.name_any()).await
    })
}

#[test]
fn a_newer_peerpod_with_the_machine_of_a_namesake_pod_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        let elsewhere = scene.elsewhere().await?;
        let namesake = elsewhere.pod_with_vm(WEB).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        let forged = scene.caa.record(&pod, "libvirt", &vm_id(&namesake)).await?;
        scene.held(&vm.name(), "AmbiguousSiblings").await?;
        stays(scene, &vm).await?;

        goes_with_its_pod(scene, &vm).await?;
        scene.held(&forged.name_any(), "ClaimedByAnother").await?;
        elsewhere.lives(&namesake).await?;
        scene.abandon(&forged.name_any()).await?;
        scene.released(&forged.name_any()).await
    })
}

#[test]
fn a_newer_peerpod_with_an_untracked_machine_replaces_no_ready_sandbox() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        let pod = scene.pods.sandbox_is_ready_since(WEB, created(&vm)).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        // The writer of the PeerPod also made a machine with the name and the mark of one of this Pod.
        let untracked = scene.host.start_pod_vm(&testbed::vm_name(WEB)).await?;
        let forged = scene.caa.record(&pod, "libvirt", &untracked.domain.uuid.to_string()).await?;
        scene.held(&vm.name(), "AmbiguousSiblings").await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        scene.operator_catches_up().await?;
        scene.lives(&vm).await?;

        goes_with_its_pod(scene, &vm).await?;
        scene.released(&forged.name_any()).await
    })
}

#[test]
fn a_released_machine_is_replaced_and_a_new_record_of_it_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let older = scene.pod_with_vm(WEB).await?;
        // A late clean-up of a failed start removes the finalizer, but the machine is still there.
        scene.caa.release(&older.peerpod).await?;
        scene.operator_catches_up().await?;
        stays(scene, &older).await?;
        next_second(std::slice::from_ref(&older)).await?;
        let newer = more_vms(scene, 1).await?.pop().context("it was made")?;
        scene.released(&older.name()).await?;
        scene.vanished(&older).await?;
        next_second(std::slice::from_ref(&newer)).await?;
        let pod = scene.pods.api().get(WEB).await?;
        scene.caa.record(&pod, "libvirt", &vm_id(&older)).await?;
        scene.operator_catches_up().await?;
        stays(scene, &newer).await?;

        goes_with_its_pod(scene, &newer).await
    })
}

#[test]
fn a_machine_stays_for_its_pod_despite_a_second_record_and_a_newer_sibling() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        let pod = scene.pods.sandbox_is_ready_since(WEB, created(&vm)).await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;
        next_second(std::slice::from_ref(&vm)).await?;
        let again = scene.caa.record(&pod, "libvirt", &vm_id(&vm)).await?;
        wait::second_after(again.creation_timestamp().context("it was made")?.0).await?;
        let untracked = scene.host.start_pod_vm(&testbed::vm_name(WEB)).await?;
        scene.caa.record(&pod, "libvirt", &untracked.domain.uuid.to_string()).await?;
        scene.held(&again.name_any(), "AmbiguousSiblings").await?;
        scene.operator_catches_up().await?;
        scene.lives(&vm).await?;

        goes_with_its_pod(scene, &vm).await
    })
}

#[test]
fn a_newer_peerpod_in_another_namespace_replaces_nothing() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        // A machine whose name would fit this Pod.
        let elsewhere = scene.elsewhere().await?;
        let namesake = elsewhere.pod_with_vm(WEB).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        let mut alleged = testbed::peerpod_object(&pod, "libvirt", &vm_id(&namesake));
        alleged["metadata"]["namespace"] = elsewhere.namespace.clone().into();
        scene.caa.create(alleged).await?;
        scene.operator_catches_up().await?;
        stays(scene, &vm).await?;
        has_no_sibling(scene, &vm).await?;
        scene.lives(&namesake).await
    })
}

#[test]
fn older_siblings_are_deleted_once_one_of_the_newest_has_a_machine() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm(WEB).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        let pod = scene.pods.sandbox_is_lost(WEB).await?;
        // Their machines are gone, so they replace nothing. The operator does not look all of them up.
        let record = async |number: u64| {
            let gone = Uuid::from_u64_pair(fastrand::u64(..), number).to_string();
            scene.caa.record(&pod, "libvirt", &gone).await
        };
        let gone = try_join_all((0..40).map(record)).await?;
        scene.held(&vm.name(), "AmbiguousSiblings").await?;
        stays(scene, &vm).await?;

        let newest =
            gone.iter().filter_map(kube::ResourceExt::creation_timestamp).max().context("they were made")?;
        wait::second_after(newest.0).await?;
        let newer = more_vms(scene, 1).await?.pop().context("it was made")?;
        for older in gone.iter().chain([&vm.peerpod]) {
            scene.released(&older.name_any()).await?;
        }
        scene.vanished(&vm).await?;
        stays(scene, &newer).await?;
        goes_with_its_pod(scene, &newer).await
    })
}

#[test]
fn a_sandbox_that_seems_to_become_ready_later_moves_no_pod_to_a_newer_machine() -> Result<()> {
    alone(async |alone| {
        let older = alone.scene().pod_with_vm(WEB).await?;
        alone.scene().pods.sandbox_is_ready_since(WEB, created(&older)).await?;
        next_second(std::slice::from_ref(&older)).await?;
        let pod = alone.scene().pods.api().get(WEB).await?;
        let newer = alone.caa.start_vm(&pod, alone.libvirtd.host()).await?;
        alone.scene().held(&older.name(), "AmbiguousSiblings").await?;

        // The container runtime lost sight of the sandbox for a moment, and restarted the containers in it.
        next_second(std::slice::from_ref(&newer)).await?;
        alone.scene().pods.sandbox_is_lost(WEB).await?;
        alone.scene().pods.sandbox_is_ready_since(WEB, Timestamp::now()).await?;
        alone.operator.stop().await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        alone.scene().operator_catches_up().await?;
        stays(&alone.scene(), &older).await?;

        // A user with the right to write its status empties it.
        let empty = r#"{"status":null}"#;
        let patch = ["patch", "peerpod", &older.name(), "--subresource=status", "--type=merge", "-p", empty];
        alone.scene().kubectl(&patch).await?;
        alone.scene().kubectl(&["delete", "peerpod", &older.name(), "--wait=false"]).await?;
        alone.scene().held(&older.name(), "WaitingForPod").await?;
        alone.operator.stop().await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        alone.scene().operator_catches_up().await?;
        alone.scene().lives(&older).await?;
        goes_with_its_pod(&alone.scene(), &older).await
    })
}

#[test]
fn a_container_older_than_the_newer_record_keeps_the_older_machine() -> Result<()> {
    beside_others(async |scene| {
        // No field says since when the sandbox is ready. The containers run since the Pod does.
        let older = scene.pod_with_vm(WEB).await?;
        next_second(std::slice::from_ref(&older)).await?;
        let pod = scene.pods.api().get(WEB).await?;
        let newer = scene.caa.start_vm(&pod, scene.host).await?;
        scene.held(&older.name(), "AmbiguousSiblings").await?;
        stays(scene, &older).await?;
        stays(scene, &newer).await?;
        goes_with_its_pod(scene, &older).await
    })
}

#[test]
fn a_pod_that_failed_to_start_twenty_times_leaves_two_peerpods_at_most() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run(WEB).await?;
        let mut failed = Vec::new();
        for _ in 0..20 {
            let vm = scene.caa.start_vm(&pod, scene.host).await?;
            scene.caa.stop_vm(&vm, scene.host).await?;
            failed.push(vm);
        }
        next_second(&failed).await?;
        let started = scene.caa.start_vm(&pod, scene.host).await?;
        for vm in &failed {
            scene.released(&vm.name()).await?;
        }
        stays(scene, &started).await?;
        goes_with_its_pod(scene, &started).await
    })
}
