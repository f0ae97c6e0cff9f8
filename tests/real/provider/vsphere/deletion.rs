//! The steps of a deletion, and refusals.

use std::path::Path;

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    ErrorClass,
    vsphere::{CLOUD, PRIVILEGES},
};
use peers::vsphere::{Behavior, Machine, PATH, Special, Vsphere};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::{Stand, describe, refused};
use crate::{
    provider::own,
    support::{alone_beside, run},
};

#[test]
fn a_deletion_powers_a_vm_off_and_destroys_it() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make(&Machine::named(&name)).await?;
        let provider = cloud.settings().open()?;
        for step in ["PowerOffVM_Task", "Destroy_Task"] {
            let own = own(&*provider, &CLOUD, &id.to_uppercase(), "web").await?;
            ensure!(own.vm().created.is_some(), "it has no date");
            let accepted = provider.delete(&own).await?;
            ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
            assert_eq!(cloud.methods().last().map(String::as_str), Some(step));
        }
        wait::eventually("it is gone", DEADLINE, async || {
            let gone = describe(&*provider, &id).await?;
            ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
            Ok(())
        })
        .await?;
        let left = cloud.peer.left(&id, &name).await?;
        ensure!(!left.vm && left.own == 0, "{left:?}");
        let methods = cloud.methods();
        let (look, absent) = (
            ["FindAllByUuid", "RetrievePropertiesEx"],
            [
                "FindAllByUuid",
                "FindByInventoryPath",
                "HasPrivilegeOnEntities",
                "RetrieveEntityPermissions",
                "RetrievePropertiesEx",
            ],
        );
        assert_eq!(methods[..3], ["RetrieveServiceContent", "Login", "RetrievePropertiesEx"]);
        assert_eq!(methods[3..8], [&look[..], &look, &["PowerOffVM_Task"]].concat());
        assert_eq!(methods[8..13], [&look[..], &look, &["Destroy_Task"]].concat());
        assert_eq!(methods[methods.len() - 5..], absent);
        Ok(())
    })
}

#[test]
fn a_users_disk_is_never_deleted_with_a_vm() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        for (pod, machine, says) in [
            ("disk", Machine { special: Special::UserDisk, ..Machine::default() }, "detach the disk"),
            (
                "snapshot",
                Machine { special: Special::Snapshot, stopped: true, ..Machine::default() },
                "delete the snapshots",
            ),
            ("template", Machine { special: Special::Template, ..Machine::default() }, "template"),
        ] {
            let name = vm_name(pod);
            let id = cloud.peer.make(&Machine { name: &name, folder: PATH, ..machine }).await?;
            let provider = cloud.settings().open()?;
            let own = own(&*provider, &CLOUD, &id, pod).await?;
            let error = refused(&*provider, &own).await?;
            ensure!(error.class == ErrorClass::Refused && error.to_string().contains(says), "{error}");
            let left = cloud.peer.left(&id, &name).await?;
            ensure!(
                left.vm && left.own > 0 && left.data == u64::from(machine.special == Special::UserDisk),
                "{left:?}"
            );
        }
        let methods = cloud.methods();
        ensure!(!methods.iter().any(|method| method.ends_with("_Task")), "{methods:?}");
        Ok(())
    })
}

#[test]
fn a_vm_that_has_the_uuid_of_a_deleted_one_is_left_alone() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let provider = cloud.settings().open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        cloud.peer.remove(&id).await?;
        cloud.peer.make(&Machine { name: "database", uuid: &id, folder: PATH, ..Machine::default() }).await?;
        let error = refused(&*provider, &own).await?;
        ensure!(error.class == ErrorClass::Transient, "{error}");
        ensure!(cloud.peer.left(&id, "database").await?.vm, "a VM of the same UUID is gone");
        Ok(())
    })
}

#[test]
fn a_failed_deletion_is_reported_and_retried() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make(&Machine { stopped: true, ..Machine::named(&name) }).await?;
        cloud.peer.behave(&id, Behavior::Fails).await?;
        let provider = cloud.settings().open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        provider.delete(&own).await?;
        let error = refused(&*provider, &own).await?;
        ensure!(error.class == ErrorClass::Refused && error.to_string().contains("FileLocked"), "{error}");
        ensure!(error.message.for_log().contains("a file is locked"), "{}", error.message.for_log());
        cloud.peer.behave(&id, Behavior::Well).await?;
        refused(&*provider, &own).await?;
        wait::eventually("it is gone", DEADLINE, async || {
            ensure!(!cloud.peer.left(&id, &name).await?.vm);
            Ok(())
        })
        .await
    })
}

#[test]
fn a_vm_of_vsphere_is_deleted_with_its_pod() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Vsphere::start(&dir.join("vsphere"), &PRIVILEGES).await?;
        let settings = Settings::vsphere(&peer);
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make(&Machine::named(&name)).await?;
        let peerpod = scene.caa.record(&owner, "vsphere", &id).await?.name_any();
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let left = peer.left(&id, &name).await?;
        ensure!(!left.vm && left.own == 0, "{left:?}");
        Ok(())
    })
}
