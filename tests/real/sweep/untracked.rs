//! VMs and volumes that no PeerPod tracks.

use anyhow::{Result, ensure};
use peers::libvirt::{POOL, PodVm};
use testbed::{
    vm_name,
    wait::{self, DEADLINE},
};

use super::{sweeping, swept, untracked};
use crate::support::{Alone, Scene};

async fn domain_is_there(scene: &Scene<'_>, name: &str) -> Result<()> {
    let domains = scene.host.virsh().domains().await?;
    ensure!(domains.iter().any(|it| it == name), "the domain {name} is gone");
    Ok(())
}

async fn goes(scene: &Scene<'_>, vm: &PodVm) -> Result<()> {
    wait::eventually(&format!("the VM {} and its volumes are gone", vm.domain.name), DEADLINE, async || {
        let (domains, volumes) =
            (scene.host.virsh().domains().await?, scene.host.virsh().volumes(POOL).await?);
        ensure!(!domains.contains(&vm.domain.name), "the domain is there");
        for volume in [&vm.root, &vm.cloudinit] {
            ensure!(!volumes.contains(&volume.name), "the volume {} is there", volume.name);
        }
        Ok(())
    })
    .await
}

/// VMs that stay: one of a Pod with its PeerPod, one of a Pod without a PeerPod, and a foreign one.
async fn bystanders(alone: &Alone<'_>) -> Result<Vec<String>> {
    let scene = alone.scene();
    let tracked = scene.pod_with_vm("web").await?;
    scene.pods.run("unrecorded").await?;
    let unrecorded = scene.host.start_pod_vm(&vm_name("unrecorded")).await?;
    let foreign = scene.host.start_domain("database", "", &[]).await?;
    let odd = scene.host.start_domain("podvm-template", "", &[]).await?;
    Ok(vec![tracked.machine.domain.name, unrecorded.domain.name, foreign.name, odd.name])
}

#[test]
fn an_untracked_vm_is_deleted_where_the_place_is_exclusive() -> Result<()> {
    sweeping(&[("SWEEP_EXCLUSIVE", "true")], &["--sweep=delete"], async |alone| {
        let others = bystanders(alone).await?;
        let stray = alone.scene().host.start_pod_vm(&vm_name("crashed")).await?;
        // cloud-api-adaptor or a user released the PeerPod although its VM is there.
        let removed = alone.scene().pod_with_vm("removed").await?;
        alone.caa.release(&removed.peerpod).await?;
        alone.scene().pods.delete("removed").await?;
        goes(&alone.scene(), &stray).await?;
        goes(&alone.scene(), &removed.machine).await?;
        swept(&alone.operator).await?;
        for name in &others {
            domain_is_there(&alone.scene(), name).await?;
        }
        let deletions = alone.operator.metrics().await?;
        let deleted = deletions.sum("peerpod_operator_sweep_deletions_total", &[("kind", "vm")]);
        ensure!((deleted - 2.0).abs() < 0.5, "{deleted} VMs were deleted");
        ensure!(alone.operator.log()?.contains("SWEEP_EXCLUSIVE"), "the log names no proof");
        Ok(())
    })
}

#[test]
fn without_proof_a_vm_is_reported_and_stays() -> Result<()> {
    sweeping(&[], &["--sweep=delete"], async |alone| {
        let others = bystanders(alone).await?;
        let scene = alone.scene();
        let stray = scene.host.start_pod_vm(&vm_name("crashed")).await?;
        let volume = scene.host.volume(&format!("{}-root.qcow2", vm_name("earlier")), "qcow2", "").await?;
        let users = scene.host.volume("data.qcow2", "qcow2", "").await?;
        swept(&alone.operator).await?;
        for (kind, verdict, expected) in [
            ("vm", "unproven", 1.0),
            ("vm", "delete", 0.0),
            ("vm", "spared", 1.0),
            ("disk", "by_hand", 1.0),
            ("disk", "delete", 0.0),
        ] {
            let found = untracked(&alone.operator, kind, verdict).await?;
            ensure!((found - expected).abs() < 0.5, "{found} of {kind} {verdict}");
        }
        for name in others.iter().chain([&stray.domain.name]) {
            domain_is_there(&alone.scene(), name).await?;
        }
        let volumes = alone.scene().host.virsh().volumes(POOL).await?;
        for volume in [&volume, &users, &stray.root] {
            ensure!(volumes.contains(&volume.name), "the volume {} is gone", volume.name);
        }
        ensure!(alone.operator.log()?.contains(&stray.domain.name), "the log does not name the VM");
        Ok(())
    })
}

#[test]
fn settings_that_were_copied_from_another_cluster_prove_nothing() -> Result<()> {
    let copied = [("SWEEP_EXCLUSIVE", "true"), ("SWEEP_CLUSTER", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11")];
    sweeping(&copied, &["--sweep=delete"], async |alone| {
        let others = alone.scene().host.start_pod_vm(&vm_name("theirs")).await?;
        swept(&alone.operator).await?;
        let found = untracked(&alone.operator, "vm", "unproven").await?;
        ensure!((found - 1.0).abs() < 0.5, "{found} VMs are unproven");
        domain_is_there(&alone.scene(), &others.domain.name).await
    })
}

#[test]
fn by_default_the_sweep_deletes_nothing_and_writes_nothing() -> Result<()> {
    sweeping(&[("SWEEP_EXCLUSIVE", "true")], &[], async |alone| {
        let stray = alone.scene().host.start_pod_vm(&vm_name("crashed")).await?;
        swept(&alone.operator).await?;
        let found = untracked(&alone.operator, "vm", "delete").await?;
        ensure!((found - 1.0).abs() < 0.5, "{found} VMs could be deleted");
        domain_is_there(&alone.scene(), &stray.domain.name).await
    })
}
