//! What the operator refuses to touch, and how it reports that.

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::{POD_VM_DESCRIPTION, POOL};
use serde_json::{Value, json};
use testbed::{peerpod_object, vm_name};

use crate::support::{ABANDON, Scene, alone, beside_others};

/// Waits until the operator refuses a PeerPod for `reason`: condition and Warning event have these words and say what to do. Then gives
/// the PeerPod up, and waits until it is gone.
pub async fn is_refused_until_abandoned(
    scene: &Scene<'_>,
    peerpod: &PeerPod,
    reason: &str,
    words: &str,
) -> Result<()> {
    let name = peerpod.name_any();
    is_refused(scene, &name, reason, words).await?;
    scene.abandon(&name).await?;
    scene.released(&name).await?;
    event(scene, &name, "Abandoned", "Normal", "did not touch the VM").await
}

async fn is_refused(scene: &Scene<'_>, name: &str, reason: &str, words: &str) -> Result<()> {
    let condition = scene.held(name, reason).await?;
    assert_eq!(condition.type_, "Stalled");
    for said in [words, ABANDON] {
        assert!(condition.message.contains(said), "{said:?} in {}", condition.message);
    }
    event(scene, name, reason, "Warning", words).await
}

async fn event(scene: &Scene<'_>, name: &str, reason: &str, type_: &str, words: &str) -> Result<()> {
    let what = format!("there is an event {reason} about {name}");
    testbed::wait::eventually(&what, testbed::wait::DEADLINE, async || {
        let selector = format!("--field-selector=involvedObject.name={name},reason={reason},type={type_}");
        let events = scene.kubectl(&["get", "events", &selector, "--output=json"]).await?;
        let events: Value = serde_json::from_str(&events)?;
        let first = events["items"].get(0).context("there is none")?;
        let message = first["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{words:?} is not in {message:?}");
        Ok(())
    })
    .await
}

/// Like [`is_refused`], for a PeerPod of another namespace that names the same machine. Only the log names that PeerPod.
async fn is_refused_for_one_elsewhere(
    scene: &Scene<'_>,
    name: &str,
    namespace: &str,
    other: &str,
) -> Result<()> {
    is_refused(scene, name, "ClaimedByAnother", "a PeerPod of another namespace names the same VM").await?;
    scene.shows_none_of(name, &[namespace, other]).await?;
    let log = scene.operator.log()?;
    ensure!(
        log.contains(&format!("the PeerPod {namespace}/{other} names the same VM")),
        "the log does not name it"
    );
    Ok(())
}

/// Records an instance for a Pod that runs, then deletes the Pod.
pub async fn left_behind(scene: &Scene<'_>, pod: &str, provider: &str, instance: &str) -> Result<PeerPod> {
    let pod: Pod = scene.pods.run(pod).await?;
    let peerpod = scene.caa.record(&pod, provider, instance).await?;
    scene.pods.delete(&pod.name_any()).await?;
    Ok(peerpod)
}

#[test]
fn a_machine_of_another_name_is_left_alone() -> Result<()> {
    beside_others(async |scene| {
        let name = format!("customers-{}", scene.namespace);
        let disk = scene.host.volume(&format!("{name}-root.qcow2"), "qcow2", "").await?;
        let domain = scene.host.start_domain(&name, POD_VM_DESCRIPTION, &[&disk]).await?;
        let peerpod = left_behind(scene, "web", "libvirt", &domain.uuid.to_string()).await?;
        is_refused(scene, &peerpod.name_any(), "NotThisPodsVM", "podvm-web-").await?;
        scene.shows_none_of(&peerpod.name_any(), &[&name]).await?;
        is_refused_until_abandoned(scene, &peerpod, "NotThisPodsVM", "podvm-web-").await?;
        // The machine's name is made from a Pod's name, but that Pod may be in another namespace.
        ensure!(scene.operator.log()?.contains(&name), "the log does not name the machine");
        assert!(scene.host.virsh().domains().await?.contains(&name));
        assert!(scene.host.virsh().volumes(POOL).await?.contains(&disk.name));
        Ok(())
    })
}

#[test]
fn a_machine_without_the_sign_of_a_pod_vm_is_left_alone() -> Result<()> {
    beside_others(async |scene| {
        let name = vm_name("web");
        let domain = scene.host.start_domain(&name, "somebody's own", &[]).await?;
        let peerpod = left_behind(scene, "web", "libvirt", &domain.uuid.to_string()).await?;
        is_refused_until_abandoned(scene, &peerpod, "NotThisPodsVM", "no sign").await?;
        assert!(scene.host.virsh().domains().await?.contains(&name));
        Ok(())
    })
}

#[test]
fn an_identifier_that_names_no_machine_is_refused() -> Result<()> {
    beside_others(async |scene| {
        for (pod, instance, words) in [
            ("empty", "", "spec.instanceID is empty"),
            ("number", "17", "libvirt reuses those"),
            ("malformed", "web/1", "not a domain's UUID"),
        ] {
            let peerpod = left_behind(scene, pod, "libvirt", instance).await?;
            is_refused_until_abandoned(scene, &peerpod, "InvalidInstanceID", words).await?;
        }
        Ok(())
    })
}

#[test]
fn a_cloud_that_is_not_served_is_refused() -> Result<()> {
    beside_others(async |scene| {
        let instance = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
        for (pod, provider, words) in [
            ("unknown", "nonsense", "is not a cloud"),
            ("other", "vsphere", "this operator's settings are for libvirt"),
            ("none", "", "is not a cloud"),
        ] {
            let peerpod = left_behind(scene, pod, provider, instance).await?;
            is_refused_until_abandoned(scene, &peerpod, "UnknownProvider", words).await?;
        }
        Ok(())
    })
}

/// A PeerPod as any user could write it.
fn ownerless(scene: &Scene<'_>, instance: &str) -> Result<Value> {
    let pod: Pod = serde_json::from_value(
        json!({ "metadata": { "name": "web", "namespace": scene.namespace, "uid": "u" } }),
    )?;
    let mut object = peerpod_object(&pod, "libvirt", instance);
    object["metadata"].as_object_mut().context("an object")?.remove("ownerReferences");
    Ok(object)
}

#[test]
fn without_an_owner_a_machine_stays_and_an_absent_one_is_released() -> Result<()> {
    beside_others(async |scene| {
        let domain = scene.host.start_domain(&vm_name("web"), POD_VM_DESCRIPTION, &[]).await?;
        let stuck = scene.caa.create(ownerless(scene, &domain.uuid.to_string())?).await?;
        let absent = scene.caa.create(ownerless(scene, "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11")?).await?;
        for peerpod in [&stuck, &absent] {
            let reported = scene.held(&peerpod.name_any(), "NoOwner").await?;
            assert!(reported.message.contains("nothing deletes the PeerPod"), "{}", reported.message);
            scene.kubectl(&["delete", "peerpod", &peerpod.name_any(), "--wait=false"]).await?;
        }
        scene.released(&absent.name_any()).await?;
        is_refused_until_abandoned(scene, &stuck, "NoOwner", "no Pod owns").await?;
        assert!(scene.host.virsh().domains().await?.contains(&domain.name));
        Ok(())
    })
}

#[test]
fn pods_with_dots_and_with_the_longest_name_have_their_machines_reaped() -> Result<()> {
    beside_others(async |scene| {
        for name in ["a.b.c", &"x".repeat(253), &format!("{}.y", "x".repeat(60))] {
            let vm = scene.pod_with_vm(name).await?;
            scene.pods.delete(name).await?;
            scene.reaped(&vm).await?;
        }
        Ok(())
    })
}

#[test]
fn a_machine_stays_while_a_living_peerpod_elsewhere_names_it() -> Result<()> {
    beside_others(async |scene| {
        let elsewhere = scene.elsewhere().await?;
        let vm = scene.pod_with_vm("web").await?;
        let other = elsewhere.pods.run("web").await?;
        // Another spelling of the same identifier.
        let instance = vm.machine.domain.uuid.simple().to_string().to_uppercase();
        let claim = elsewhere.caa.record(&other, "libvirt", &instance).await?;
        scene.pods.delete("web").await?;
        is_refused_for_one_elsewhere(scene, &vm.name(), &elsewhere.namespace, &claim.name_any()).await?;
        scene.lives(&vm).await?;

        elsewhere.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        elsewhere.released(&claim.name_any()).await
    })
}

#[test]
fn peerpods_that_cannot_have_a_machine_do_not_keep_it() -> Result<()> {
    beside_others(async |scene| {
        let elsewhere = scene.elsewhere().await?;
        let vm = scene.pod_with_vm("web").await?;
        let instance = vm.machine.domain.uuid.to_string();
        let ownerless = scene.caa.create(ownerless(&elsewhere, &instance)?).await?;
        let other = elsewhere.pods.run("other").await?;
        let claim = elsewhere.caa.record(&other, "libvirt", &instance).await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        // Their VM is absent now, so they are released like any other.
        elsewhere.kubectl(&["delete", "peerpod", &ownerless.name_any(), "--wait=false"]).await?;
        elsewhere.pods.delete("other").await?;
        elsewhere.released(&ownerless.name_any()).await?;
        elsewhere.released(&claim.name_any()).await
    })
}

#[test]
fn a_machine_stays_for_the_running_pod_of_another_deleted_peerpod() -> Result<()> {
    beside_others(async |scene| {
        let elsewhere = scene.elsewhere().await?;
        let vm = scene.pod_with_vm("web").await?;
        // A Pod of the same name exists, so the machine's name alone proves nothing.
        let namesake = elsewhere.pods.run("web").await?;
        let instance = vm.machine.domain.uuid.to_string();
        let claim = elsewhere.caa.record(&namesake, "libvirt", &instance).await?;
        scene.kubectl(&["delete", "peerpod", &vm.name(), "--wait=false"]).await?;
        scene.held(&vm.name(), "WaitingForPod").await?;

        elsewhere.pods.delete("web").await?;
        is_refused_for_one_elsewhere(&elsewhere, &claim.name_any(), &scene.namespace, &vm.name()).await?;
        scene.lives(&vm).await?;

        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        elsewhere.released(&claim.name_any()).await
    })
}

#[test]
fn many_deleted_peerpods_of_one_machine_do_not_refuse_each_other() -> Result<()> {
    /// The operator asks for the Pods of fewer PeerPods.
    const MOST: usize = 20;
    beside_others(async |scene| {
        // Machines have so much of the names of their Pods that all of these have the same name.
        let long = "w".repeat(60);
        let vm = scene.pod_with_vm(&long).await?;
        let instance = vm.machine.domain.uuid.to_string();
        let others = (0..MOST).map(async |number| {
            let pod = scene.pods.run(&format!("{long}-{number}")).await?;
            scene.caa.record(&pod, "libvirt", &instance).await
        });
        let others = try_join_all(others).await?;
        scene.pods.api().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        scene.released(&vm.name()).await?;
        for other in &others {
            scene.released(&other.name_any()).await?;
        }
        scene.vanished(&vm).await
    })
}

#[test]
fn the_claim_of_a_deleted_peerpod_ends_with_its_pod() -> Result<()> {
    beside_others(async |scene| {
        let elsewhere = scene.elsewhere().await?;
        let vm = scene.pod_with_vm("web").await?;
        let other = elsewhere.pods.run("web").await?;
        let claim = elsewhere.caa.record(&other, "libvirt", &vm.machine.domain.uuid.to_string()).await?;
        elsewhere.kubectl(&["delete", "peerpod", &claim.name_any(), "--wait=false"]).await?;
        elsewhere.held(&claim.name_any(), "WaitingForPod").await?;
        scene.pods.delete("web").await?;
        is_refused_for_one_elsewhere(scene, &vm.name(), &elsewhere.namespace, &claim.name_any()).await?;
        scene.lives(&vm).await?;

        elsewhere.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        elsewhere.released(&claim.name_any()).await
    })
}

#[test]
fn a_peerpod_without_spec_is_refused_and_delays_no_other() -> Result<()> {
    beside_others(async |scene| {
        let pod = scene.pods.run("web").await?;
        let mut object = peerpod_object(&pod, "libvirt", "");
        object.as_object_mut().context("a PeerPod is an object")?.remove("spec");
        let empty = scene.caa.create(object).await?;
        let vm = scene.pod_with_vm("other").await?;
        scene.pods.delete("other").await?;
        scene.reaped(&vm).await?;
        scene.pods.delete("web").await?;
        is_refused_until_abandoned(scene, &empty, "InvalidInstanceID", "is empty").await
    })
}

#[test]
fn refused_peerpods_cause_no_reconciles_while_nothing_changes() -> Result<()> {
    alone(async |alone| {
        let scene = alone.scene();
        for (pod, provider, instance, reason) in [
            ("empty", "libvirt", "", "InvalidInstanceID"),
            ("unknown", "nonsense", "i-1", "UnknownProvider"),
            ("malformed", "libvirt", "web/1", "InvalidInstanceID"),
        ] {
            let peerpod = left_behind(&scene, pod, provider, instance).await?;
            scene.held(&peerpod.name_any(), reason).await?;
        }
        let domain = scene.host.start_domain("customers", "somebody's own", &[]).await?;
        let peerpod = left_behind(&scene, "web", "libvirt", &domain.uuid.to_string()).await?;
        scene.held(&peerpod.name_any(), "NotThisPodsVM").await?;
        let waiting = scene.pod_with_vm("runs").await?;
        scene.kubectl(&["delete", "peerpod", &waiting.name(), "--wait=false"]).await?;
        scene.held(&waiting.name(), "WaitingForPod").await?;

        // The operator may still receive the events and the last status.
        scene.operator_catches_up().await?;
        let reconciles = async || -> Result<f64> {
            Ok(scene.operator.metrics().await?.sum("peerpod_operator_reconciles_total", &[]))
        };
        let (before, writes) = (reconciles().await?, scene.writes()?.len());
        let passes = 5;
        for _ in 0..passes {
            scene.operator_catches_up().await?;
        }
        let each = (reconciles().await? - before) / f64::from(passes);
        // To reap one machine the operator looks at the new PeerPod, once when it is deleted, and at most once after the release.
        ensure!(each < 4.0, "{each} reconciles for each machine that was reaped meanwhile");
        assert_eq!(scene.writes()?.len(), writes);
        Ok(())
    })
}

#[test]
fn abandoning_a_living_peerpod_has_no_effect_before_its_deletion() -> Result<()> {
    beside_others(async |scene| {
        let vm = scene.pod_with_vm("web").await?;
        scene.abandon(&vm.name()).await?;
        scene.operator_catches_up().await?;
        ensure!(!scene.peerpods.get(&vm.name()).await?.finalizers().is_empty());
        scene.pods.delete("web").await?;
        scene.released(&vm.name()).await?;
        scene.lives(&vm).await
    })
}
