//! The domain: one that became something else stays, and all that libvirt keeps with it goes.

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{ErrorClass, Provider as _, libvirt::Libvirt};
use peers::libvirt::{POD_VM_DESCRIPTION, POOL};
use testbed::vm_name;

use super::{
    DOMAIN_UNDEFINE_FLAGS, INVALID_ARG, OPERATION_INVALID, Peer, STORAGE_VOL_DELETE, absent, proven,
};
use crate::support::run;

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
