//! VMs that a PeerPod names and that are not its Pod's: another cluster's, and a running Pod's by another spelling.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use peerpod_operator::provider::{CLUSTER_UID_TAG, aws::POLICY};
use peers::{
    aws::Moto,
    gcp::{ComputeEngine, Instance, PERMISSIONS},
};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use crate::support::alone_beside;

#[test]
fn a_vm_that_has_another_clusters_tag_stays_until_the_tag_is_corrected() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let moto = Moto::start(&dir.join("aws")).await?;
        let settings = Settings::aws(moto.api(), Some(moto.user(POLICY).await?));
        Ok((moto, settings))
    };
    alone_beside(start, async |alone, moto| {
        let scene = alone.scene();
        // As after a backup of the other cluster was restored here: the PeerPod is an exact copy, and its Pod does not exist.
        let id = moto.make(&vm_name("web"), "bare").await?;
        moto.tag(&id, CLUSTER_UID_TAG, "another-cluster").await?;
        let pod = scene.pods.run("web").await?;
        let peerpod = scene.caa.record(&pod, "aws", &id).await?.name_any();
        scene.pods.delete("web").await?;
        scene.held(&peerpod, "CloudRefused").await?;
        ensure!(moto.left(&id).await?.vm, "the VM of another cluster is gone");

        let namespaces: Api<Namespace> = Api::all(scene.testbed.client());
        let uid = namespaces.get("kube-system").await?.metadata.uid.context("every namespace has a UID")?;
        moto.tag(&id, CLUSTER_UID_TAG, &uid).await?;
        wait::eventually("the VM is deleted", DEADLINE, async || {
            ensure!(!moto.left(&id).await?.vm, "it is there");
            Ok(())
        })
        .await
    })
}

#[test]
fn a_vm_that_a_running_pods_peerpod_names_stays_with_any_spelling() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let key = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let settings = Settings::gcp(peer.address(), Some(key));
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let (name, running) = (vm_name("web"), scene.pods.run("web").await?);
        let vm = Instance::running(&name);
        peer.make(&vm).await?;
        scene.caa.record(&running, "gcp", &name).await?;

        let other = scene.pods.run("other").await?;
        let mut forged = other.clone();
        // Its owner reference names a Pod `web` that does not exist.
        forged.metadata.name = running.metadata.name.clone();
        let forged = scene.caa.record(&forged, "gcp", &vm.path()).await?.name_any();
        scene.held(&forged, "ClaimedByAnother").await?;
        ensure!(peer.state(&vm).await?.instance, "the VM of a running Pod is gone");
        Ok(())
    })
}
