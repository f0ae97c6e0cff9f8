//! Deletions by the provider and by the operator.

use std::path::Path;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, ErrorClass, InstanceId,
    ibmcloud::{ACTIONS, CLOUD},
};
use peers::ibm::{Ibm, Instance, REGION};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::{OTHER_VM, start};
use crate::{
    provider::own,
    support::{alone_beside, run},
};

#[test]
fn a_deletion_takes_three_requests_and_each_further_check_takes_one() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        let accepted = provider.delete(&own).await?;
        ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
        // VPC refuses a second deletion while the first one is in progress.
        provider.delete(&own).await?;
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(cloud.requests(), ["GET", "DELETE", "DELETE", "GET", "GET"]);
        let tokens = cloud.peer.relay().seen().iter().filter(|seen| seen.path == "/identity/token").count();
        assert_eq!(tokens, 1);
        Ok(())
    })
}

#[test]
fn a_vm_of_vpc_is_deleted_with_its_pod_and_foreign_vms_and_volumes_stay() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        let settings = Settings::ibmcloud(&peer, REGION);
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let other = peer.make(&Instance::named(OTHER_VM)).await?;
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make(&Instance { user_data: true, ..Instance::named(&name) }).await?;
        let peerpod = scene.caa.record(&owner, "ibmcloud", &id).await?.name_any();
        // The PeerPod names another Pod's VM.
        let thief = scene.pods.run("thief").await?;
        let stolen = scene.caa.record(&thief, "ibmcloud", &other).await?.name_any();
        scene.pods.delete("web").await?;
        scene.pods.delete("thief").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let left = peer.left(&id).await?;
        ensure!(!left.vm && left.boot == 0 && left.data == 1, "{left:?}");
        scene.held(&stolen, "NotThisPodsVM").await?;
        let left = peer.left(&other).await?;
        ensure!(left.vm && !left.deleting, "{left:?}");
        Ok(())
    })
}
