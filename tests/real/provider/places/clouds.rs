//! Another project or another region of a cloud.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::aws;
use peers::{
    aws::Moto,
    gcp::{ComputeEngine, Instance, OTHER_PROJECT, OTHER_ZONE, PERMISSIONS},
    libvirt::Libvirtd,
};
use testbed::{Operator, OperatorOptions, Settings, Testbed, vm_name};

use super::until_recorded;
use crate::{
    provider::former::Former,
    support::{PROGRAM, alone_with},
};

#[test]
fn a_vm_in_the_former_project_holds_its_peerpod_until_the_project_is_named_again() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let key = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let here = Settings::gcp(peer.address(), Some(key));
        let mut before = here.clone();
        before.config_map.insert("GCP_PROJECT_ID".into(), OTHER_PROJECT.into());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((peer, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (peer, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        let name = vm_name("web");
        let instance = Instance { project: OTHER_PROJECT, zone: OTHER_ZONE, ..Instance::running(&name) };
        peer.make(&instance).await?;
        let hidden = [OTHER_PROJECT, "127.0.0.1"];
        let vm = Former { cloud: "gcp", id: &name, before, here, setting: "GCP_PROJECT_ID", hidden: &hidden };
        vm.holds(alone, async || Ok(peer.state(&instance).await?.instance)).await
    })
}

#[test]
fn a_vm_in_the_former_region_holds_its_peerpod_until_the_region_is_named_again() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let moto = Moto::start(&dir.join("aws")).await?;
        let before = Settings::aws(moto.api(), Some(moto.user(aws::POLICY).await?));
        let mut here = before.clone();
        here.config_map.insert("AWS_REGION".into(), "us-east-1".into());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((moto, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (moto, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        // The VM has an elastic address and an interface of its own.
        let id = moto.make(&vm_name("web"), "running").await?;
        let hidden = ["eu-west-1", "127.0.0.1", "123456789012"];
        let vm = Former { cloud: "aws", id: &id, before, here, setting: "AWS_REGION", hidden: &hidden };
        vm.holds(alone, async || Ok(moto.left(&id).await?.vm)).await?;
        let left = moto.left(&id).await?;
        ensure!(left.belongings == 0, "{left:?}");
        Ok(())
    })
}
