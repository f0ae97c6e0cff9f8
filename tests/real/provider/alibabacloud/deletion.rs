//! Deletions by the provider and by the operator, and refusals.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, ErrorClass, InstanceId, Stage,
    alibabacloud::{CLOUD, POLICY},
};
use peers::alibaba::{Alibaba, Feature, Instance, Left, REGION};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::Cloud;
use crate::{
    provider::own,
    support::{alone_beside, run},
};

#[test]
fn a_deletion_takes_six_requests_and_each_further_check_takes_one() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        let accepted = provider.delete(&own).await?;
        ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
        assert_eq!(cloud.requests(), 2);
        let leaving = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(leaving.is_ok_and(|vm| vm.stage == Stage::Leaving));
        assert_eq!(cloud.requests(), 3);
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(cloud.requests(), 7);
        assert_eq!(cloud.peer.relay().seen().len(), 8, "whose the credentials are is asked once");
        Ok(())
    })
}

#[test]
fn a_vm_that_is_locked_for_security_and_one_that_cannot_be_deleted_now_stay() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let locked = Instance { features: &[Feature::Locked, Feature::UserData], ..Instance::named(&name) };
        let locked = cloud.peer.make(&locked).await?;
        let refused = cloud.describe(&locked).await?.err().context("it is described")?;
        ensure!(refused.class == ErrorClass::Refused && refused.to_string().contains("locked"), "{refused}");

        let id = cloud.peer.make(&Instance::named(&name)).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        for (status, code, class) in [
            (403, "IncorrectInstanceStatus.Initializing", ErrorClass::Transient),
            (403, "InvalidOperation.DeletionProtection", ErrorClass::Refused),
        ] {
            cloud.answer("Force=true", status, &format!(r#"{{"Code":"{code}"}}"#));
            let refused = provider.delete(&own).await.err().context("it is deleted")?;
            assert_eq!(refused.class, class, "{refused}");
            cloud.peer.relay().forget_rules();
        }
        let left = cloud.peer.left(&id).await?;
        ensure!(left.vm && !left.deleting && cloud.peer.left(&locked).await?.data == 1, "{left:?}");
        ensure!(!provider.delete(&own).await?.may_only_stop, "the first call is accepted");
        // ECS refuses a further one with the status of a VM that only stops.
        ensure!(provider.delete(&own).await?.may_only_stop, "the refused call counts as accepted");
        Ok(())
    })
}

#[test]
fn a_vm_of_ecs_is_deleted_with_its_pod_and_foreign_vms_and_disks_stay() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Alibaba::start(&dir.join("alibaba"), POLICY).await?;
        let settings = Settings::alibabacloud(&peer, REGION);
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let other = peer.make(&Instance::named("podvm-other-1a2b3c4d")).await?;
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer
            .make(&Instance { features: &[Feature::External, Feature::UserData], ..Instance::named(&name) })
            .await?;
        let peerpod = scene.caa.record(&owner, "alibabacloud", &id).await?.name_any();
        // The PeerPod names another Pod's VM.
        let thief = scene.pods.run("thief").await?;
        let stolen = scene.caa.record(&thief, "alibabacloud", &other).await?.name_any();
        scene.pods.delete("web").await?;
        scene.pods.delete("thief").await?;
        wait::gone(&scene.peerpods, &peerpod, 3 * DEADLINE).await?;
        let left = peer.left(&id).await?;
        let expected = Left { vm: false, deleting: false, nics: 0, addresses: 0, system: 0, data: 1 };
        assert_eq!(left, expected);
        scene.held(&stolen, "NotThisPodsVM").await?;
        let left = peer.left(&other).await?;
        ensure!(left.vm && !left.deleting, "{left:?}");
        Ok(())
    })
}
