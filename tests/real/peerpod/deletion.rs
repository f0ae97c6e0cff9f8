//! Machines that change or disappear between their proof and their deletion.

mod dropped;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use libvirt_client::Volume;
use peerpod_operator::provider::{
    Bears, Claim, Error, ErrorClass, InstanceId, NAME_LIMIT, OwnVm, Provider as _, Stage, Vm,
    libvirt::Libvirt, ownership,
};
use peers::libvirt::{Libvirtd, POD_VM_DESCRIPTION, POOL, PodVm, Relay};
use testbed::vm_name;
use uuid::Uuid;

use crate::support::run;

/// libvirt's procedures, and errors that it may answer with.
const DOMAIN_DEFINE_XML: i32 = 11;
const DOMAIN_UNDEFINE_FLAGS: i32 = 231;
const STORAGE_VOL_DELETE: i32 = 94;
const STORAGE_VOL_LOOKUP_BY_NAME: i32 = 95;
const STORAGE_VOL_LOOKUP_BY_PATH: i32 = 97;
const INVALID_ARG: i32 = 8;
const SYSTEM_ERROR: i32 = 38;
const NO_STORAGE_VOL: i32 = 50;
const OPERATION_INVALID: i32 = 55;
const ACCESS_DENIED: i32 = 88;

/// A libvirtd, and the provider that is connected to it.
struct Peer {
    libvirtd: Libvirtd,
    provider: Libvirt,
    dir: tempfile::TempDir,
}

impl Peer {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let libvirtd = Libvirtd::start(&dir.path().join("l"), Lifetime::Owned).await?;
        let provider = Libvirt::new(&libvirtd.host().uri().to_string(), POOL, 4)?;
        Ok(Self { libvirtd, provider, dir })
    }

    /// A relay to the same libvirtd that can refuse calls, and a provider that uses it.
    fn relayed(&self) -> Result<(Relay, Libvirt)> {
        let relay = Relay::start(self.libvirtd.host(), self.dir.path(), Duration::ZERO)?;
        let provider = Libvirt::new(&relay.uri().to_string(), POOL, 4)?;
        Ok((relay, provider))
    }

    /// The machine of the Pod `web`, with its proof.
    async fn proven(&self, uuid: Uuid) -> Result<OwnVm> {
        proven(&self.provider, uuid).await
    }

    /// Fails if the machine or one of its volumes is there.
    async fn vanished(&self, vm: &PodVm) -> Result<()> {
        let (name, virsh) = (&vm.domain.name, self.libvirtd.host().virsh());
        ensure!(!virsh.domains().await?.contains(name), "{name} is still there");
        let volumes = virsh.volumes(POOL).await?;
        ensure!(![&vm.root, &vm.cloudinit].iter().any(|own| volumes.contains(&own.name)), "{volumes:?}");
        Ok(())
    }
}

async fn proven(provider: &Libvirt, uuid: Uuid) -> Result<OwnVm> {
    let id = InstanceId::parse("libvirt", &uuid.to_string())?;
    Ok(ownership::verify(provider.describe(&id, &Claim::default()).await?, "web", NAME_LIMIT)?)
}

/// Fails unless nothing is left of the machine, as far as the provider knows.
async fn absent(provider: &Libvirt, uuid: Uuid) -> Result<()> {
    let gone = proven(provider, uuid).await.err().context("something is left")?;
    ensure!(gone.downcast_ref().is_some_and(|it: &Error| it.class == ErrorClass::NotFound), "{gone:#}");
    Ok(())
}

/// Has a deletion fail because no volume can be deleted, now and later.
async fn keeps_volumes(relay: &Relay, provider: &Libvirt, vm: &PodVm) -> Result<()> {
    relay.refuse(STORAGE_VOL_DELETE, &[], SYSTEM_ERROR);
    let deleted = provider.delete(&proven(provider, vm.domain.uuid).await?).await;
    ensure!(deleted.is_err(), "it was deleted");
    Ok(())
}

#[test]
fn a_domain_that_became_something_else_since_it_was_proven_stays() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let host = peer.libvirtd.host();
        let described = format!("<description>{POD_VM_DESCRIPTION}</description>");
        for (part, otherwise, goes_by) in [
            (described.as_str(), "<description>somebody's own</description>", None),
            ("<name>podvm-", "<name>customers-", Some("customers")),
        ] {
            let name = vm_name("web");
            let vm = host.start_pod_vm(&name).await?;
            let own = peer.proven(vm.domain.uuid).await?;
            let client = host.client();
            let xml = client.domain_xml(&vm.domain).await?;
            ensure!(xml.contains(part), "{part} is not in {xml}");
            client.domain_destroy(&vm.domain).await?;
            client.domain_undefine_plain(&vm.domain).await?;
            client.domain_define(&xml.replacen(part, otherwise, 1)).await?;

            let error = peer.provider.delete(&own).await.err().context("it was deleted")?;
            ensure!(
                error.class == ErrorClass::Transient
                    && error.message.for_status().contains(" changed: its name is no longer "),
                "{error}"
            );
            let now = goes_by.map_or(name.clone(), |goes_by| name.replacen("podvm", goes_by, 1));
            ensure!(host.virsh().domains().await?.contains(&now), "{now} is gone");
            let volumes = host.virsh().volumes(POOL).await?;
            ensure!([&vm.root, &vm.cloudinit].iter().all(|own| volumes.contains(&own.name)), "{volumes:?}");
            // They are no remains of a pod VM.
            client.domain_undefine_plain(&vm.domain).await?;
            absent(&peer.provider, vm.domain.uuid).await?;
        }
        Ok(())
    })
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
fn a_domain_with_snapshots_is_deleted_without_firmware_variable_support() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let host = peer.libvirtd.host();
        let (relay, provider) = peer.relayed()?;
        let mut calls = Vec::new();
        for snapshots in [0, 1, 2, 0] {
            let name = vm_name("web");
            let vm = host.start_pod_vm(&name).await?;
            for snapshot in 0..snapshots {
                let snapshot = format!("s{snapshot}");
                host.virsh().run(&["snapshot-create-as", &name, &snapshot]).await?;
            }
            let before = relay.calls();
            provider.delete(&proven(&provider, vm.domain.uuid).await?).await?;
            peer.vanished(&vm).await?;
            calls.push(relay.calls() - before);
        }
        // The provider asks once for what the driver supports. Then it reads the definition twice and the kept one, asks whether it is
        // persistent, looks up each volume, destroys, deletes two volumes and undefines.
        ensure!(calls[1..] == [10; 3], "{calls:?}");
        Ok(())
    })
}

#[test]
fn a_driver_that_learnt_to_undefine_more_is_asked_for_it() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let host = peer.libvirtd.host();
        let (relay, provider) = peer.relayed()?;
        // At first the driver knows only the plain call.
        relay.refuse(DOMAIN_UNDEFINE_FLAGS, &[], INVALID_ARG);
        let vm = host.start_pod_vm(&vm_name("web")).await?;
        provider.delete(&proven(&provider, vm.domain.uuid).await?).await?;
        peer.vanished(&vm).await?;

        let vm = host.start_pod_vm(&vm_name("web")).await?;
        host.virsh().run(&["snapshot-create-as", &vm.domain.name, "s"]).await?;
        let own = proven(&provider, vm.domain.uuid).await?;
        let error = provider.delete(&own).await.err().context("it was undefined without its snapshot")?;
        ensure!(
            error.class == ErrorClass::Refused && error.message.for_log().contains("snapshot"),
            "{error:?}"
        );
        relay.refuse_none();
        provider.delete(&proven(&provider, vm.domain.uuid).await?).await?;
        peer.vanished(&vm).await
    })
}

#[test]
fn an_operation_invalid_in_the_machines_state_is_a_refusal() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let vm = peer.libvirtd.host().start_pod_vm(&vm_name("web")).await?;
        let (relay, provider) = peer.relayed()?;
        let own = proven(&provider, vm.domain.uuid).await?;
        relay.refuse(STORAGE_VOL_DELETE, &[], OPERATION_INVALID);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Refused, "{error}");
        Ok(())
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

#[test]
fn a_domain_that_cannot_be_turned_off_keeps_everything_and_says_so() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let own = peer.proven(vm.domain.uuid).await?;
        // The read-only socket allows no changes.
        let reader = Libvirt::new(&format!("{}-ro", host.uri()), POOL, 4)?;

        let error = reader.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Unauthorized, "{error}");
        ensure!(error.message.for_status().starts_with("destroying the domain"), "{error}");
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "running");
        let volumes = host.virsh().volumes(POOL).await?;
        ensure!([&vm.root, &vm.cloudinit].iter().all(|own| volumes.contains(&own.name)), "{volumes:?}");
        Ok(())
    })
}
