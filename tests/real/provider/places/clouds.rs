//! Another project or another region of a cloud.

use std::path::Path;

use anyhow::{Result, ensure};
use peerpod_operator::provider::aws;
use peers::{
    aws::Moto,
    gcp::{ComputeEngine, Instance, OTHER_PROJECT, OTHER_ZONE, PERMISSIONS},
};
use testbed::{Settings, vm_name};

use super::until_recorded;
use crate::{provider::former::Former, support::alone_beside};

#[test]
fn a_vm_in_the_former_project_holds_its_peerpod_until_the_project_is_named_again() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let key = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let here = Settings::gcp(peer.address(), Some(key));
        let mut before = here.clone();
        before.config_map.insert("GCP_PROJECT_ID".into(), OTHER_PROJECT.into());
        Ok(((peer, before.clone(), here), before))
    };
    alone_beside(start, async |alone, (peer, before, here)| {
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
    let start = async |dir: &Path, _: &_| {
        let moto = Moto::start(&dir.join("aws")).await?;
        let before = Settings::aws(moto.api(), Some(moto.user(aws::POLICY).await?));
        let mut here = before.clone();
        here.config_map.insert("AWS_REGION".into(), "us-east-1".into());
        Ok(((moto, before.clone(), here), before))
    };
    alone_beside(start, async |alone, (moto, before, here)| {
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
