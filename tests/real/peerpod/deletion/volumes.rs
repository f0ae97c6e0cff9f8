//! The volumes: all are deleted, however the domain was lost, and none is taken for deleted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libvirt_client::Volume;
use peerpod_operator::provider::{Bears, ErrorClass, Provider as _, Stage, Vm, libvirt::Libvirt};
use peers::libvirt::{POD_VM_DESCRIPTION, POOL, PodVm, Relay};
use testbed::vm_name;

use super::{
    ACCESS_DENIED, DOMAIN_DEFINE_XML, NO_STORAGE_VOL, OPERATION_INVALID, Peer, STORAGE_VOL_DELETE,
    STORAGE_VOL_LOOKUP_BY_NAME, STORAGE_VOL_LOOKUP_BY_PATH, SYSTEM_ERROR, absent, proven,
};
use crate::support::run;

/// Has a deletion fail because no volume can be deleted, now and later.
async fn keeps_volumes(relay: &Relay, provider: &Libvirt, vm: &PodVm) -> Result<()> {
    relay.refuse(STORAGE_VOL_DELETE, &[], SYSTEM_ERROR);
    let deleted = provider.delete(&proven(provider, vm.domain.uuid).await?).await;
    ensure!(deleted.is_err(), "it was deleted");
    Ok(())
}

#[test]
fn a_volume_that_the_running_domain_lost_is_deleted() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, client) = (peer.libvirtd.host(), peer.libvirtd.host().client());
        let vm = host.start_pod_vm(&vm_name("web")).await?;
        let kept = client.domain_xml_inactive(&vm.domain).await?;
        let at = kept.find(&vm.root.name).context("the definition has the root volume")?;
        let begin = kept[..at].rfind("<disk ").context("it is a disk")?;
        let end = at + kept[at..].find("</disk>").context("the disk ends")? + "</disk>".len();
        client.domain_destroy(&vm.domain).await?;
        client.domain_define(&format!("{}{}", &kept[..begin], &kept[end..])).await?;
        client.domain_create(&vm.domain).await?;
        client.domain_define(&kept).await?;
        ensure!(
            !client.domain_xml(&vm.domain).await?.contains(&vm.root.name),
            "it runs with its root volume"
        );

        peer.provider.delete(&peer.proven(vm.domain.uuid).await?).await?;
        peer.vanished(&vm).await
    })
}

#[test]
fn volumes_that_were_left_are_deleted_although_another_program_undefined_the_domain() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let host = peer.libvirtd.host();
        let vm = host.start_pod_vm(&vm_name("web")).await?;
        let (relay, provider) = peer.relayed()?;
        keeps_volumes(&relay, &provider, &vm).await?;
        // As of a pool that is not active.
        relay.refuse_none();
        relay.refuse(STORAGE_VOL_DELETE, &[], OPERATION_INVALID);
        let error = provider.delete(&proven(&provider, vm.domain.uuid).await?).await.err();
        assert_eq!(error.map(|error| error.class), Some(ErrorClass::Refused));
        host.client().domain_undefine_plain(&vm.domain).await?;
        relay.refuse_none();
        provider.delete(&proven(&provider, vm.domain.uuid).await?).await?;
        peer.vanished(&vm).await
    })
}

#[test]
fn volumes_that_were_left_and_deleted_by_hand_are_absent() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let (relay, provider) = peer.relayed()?;
        keeps_volumes(&relay, &provider, &vm).await?;
        host.virsh().run(&["undefine", &name]).await?;
        for volume in [&vm.root, &vm.cloudinit] {
            ensure!(proven(&provider, vm.domain.uuid).await.is_ok(), "{} is forgotten", volume.name);
            host.client().volume_delete(volume).await?;
        }
        absent(&provider, vm.domain.uuid).await
    })
}

#[test]
fn volumes_of_a_domain_undefined_after_its_proof_are_deleted_on_retry() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let (relay, provider) = peer.relayed()?;
        let own = proven(&provider, vm.domain.uuid).await?;
        host.client().domain_destroy(&vm.domain).await?;
        host.client().domain_undefine_plain(&vm.domain).await?;

        relay.refuse(STORAGE_VOL_DELETE, &[], SYSTEM_ERROR);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.message.for_log().contains(&vm.root.key), "{error:?}");
        // Only this process knows of the volumes.
        let left = proven(&provider, vm.domain.uuid).await?;
        let remains = Vm { stage: Stage::Remains(Bears::Name), ..own.vm().clone() };
        ensure!(*left.vm() == remains, "{left:?}");
        relay.refuse_none();
        provider.delete(&left).await?;
        peer.vanished(&vm).await?;
        absent(&provider, vm.domain.uuid).await
    })
}

#[test]
fn a_domain_whose_volumes_cannot_be_deleted_stays_to_be_found_again() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let root = host.volume(&format!("{name}-root.qcow2"), "qcow2", "").await?;
        // The pool is not active, or there is none.
        let cloudinit = format!("{name}-cloudinit.iso");
        let lost = Volume { key: format!("/elsewhere/{cloudinit}"), name: cloudinit, ..root.clone() };
        let domain = host.start_domain(&name, POD_VM_DESCRIPTION, &[&root, &lost]).await?;
        let own = peer.proven(domain.uuid).await?;

        let error = peer.provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(
            error.class == ErrorClass::Invalid && error.message.for_log().contains(&lost.key),
            "{error:?}"
        );
        ensure!(host.virsh().domains().await?.contains(&name));
        // The provider tries the other volumes all the same. The domain no longer runs.
        ensure!(!host.virsh().volumes(POOL).await?.contains(&root.name));
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "shut off");
        Ok(())
    })
}

#[test]
fn volumes_of_an_undefined_running_domain_are_found_until_deleted() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        host.client().domain_undefine_plain(&vm.domain).await?;
        let (relay, provider) = peer.relayed()?;
        let own = proven(&provider, vm.domain.uuid).await?;

        relay.refuse(DOMAIN_DEFINE_XML, &[], ACCESS_DENIED);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(
            error.class == ErrorClass::Unauthorized
                && error.message.for_status().contains("leaves the domain running"),
            "{error}"
        );
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "running");

        relay.refuse_none();
        relay.refuse(STORAGE_VOL_DELETE, &[], SYSTEM_ERROR);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.message.for_log().contains(&vm.root.key), "{error:?}");
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "shut off");
        // Another process does not know of the failed attempt.
        peer.provider.delete(&peer.proven(vm.domain.uuid).await?).await?;
        peer.vanished(&vm).await
    })
}

#[test]
fn volumes_that_an_access_rule_hides_are_not_taken_for_deleted() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let own = peer.proven(vm.domain.uuid).await?;
        let ruled = Relay::start(host, peer.dir.path(), Duration::ZERO)?;
        let provider = Libvirt::new(&ruled.uri().to_string(), POOL, 4)?;

        ruled.refuse(STORAGE_VOL_LOOKUP_BY_PATH, &[], NO_STORAGE_VOL);
        let by_name = provider.examine().await?;
        let found =
            by_name.iter().find(|it| it.subject == "look up volumes").context("they are looked for")?;
        ensure!(format!("{found:?}").contains("libvirt found "), "{found:?}");

        ruled.refuse(STORAGE_VOL_LOOKUP_BY_NAME, &[], ACCESS_DENIED);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(
            error.class == ErrorClass::Unauthorized && error.message.for_log().contains(&vm.root.key),
            "{error:?}"
        );
        ensure!(host.virsh().domains().await?.contains(&name), "{name} is gone");
        Ok(())
    })
}

#[test]
fn a_volume_that_libvirt_does_not_find_when_it_deletes_it_is_not_taken_for_deleted() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let (relay, provider) = peer.relayed()?;
        let own = proven(&provider, vm.domain.uuid).await?;
        // As of a pool whose refresh fails after the volume was found. A later refresh shows the volume again.
        relay.refuse(STORAGE_VOL_DELETE, &[], NO_STORAGE_VOL);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Transient, "{error:?}");
        ensure!(error.message.for_log().contains(&vm.root.key), "{error:?}");
        ensure!(host.virsh().domains().await?.contains(&name), "{name} is gone");

        relay.refuse_none();
        provider.delete(&own).await?;
        peer.vanished(&vm).await
    })
}

#[test]
fn a_pool_that_shows_no_volume_at_all_does_not_prove_that_those_of_the_vm_are_gone() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let own = peer.proven(vm.domain.uuid).await?;
        let virsh = host.virsh();
        for volume in virsh.volumes(POOL).await? {
            virsh.run(&["vol-delete", &volume, "--pool", POOL]).await?;
        }
        let error = peer.provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Refused, "{error:?}");
        ensure!(error.message.for_status().contains("virsh pool-refresh"), "{error}");
        ensure!(virsh.domains().await?.contains(&name), "{name} is gone");

        host.volume("podvm-base.qcow2", "qcow2", "").await?;
        peer.provider.delete(&own).await?;
        ensure!(!virsh.domains().await?.contains(&name), "{name} is left");
        Ok(())
    })
}
