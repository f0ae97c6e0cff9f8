//! What becomes of a machine that changes, or goes, between its proof and its deletion.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use libvirt_client::Volume;
use peerpod_operator::provider::{ErrorClass, InstanceId, OwnVm, Provider as _, guard, libvirt::Libvirt};
use peers::libvirt::{Libvirtd, POD_VM_DESCRIPTION, POOL, Relay};
use testbed::vm_name;
use uuid::Uuid;

use crate::support::run;

/// Calls of libvirt's, and what it may answer.
const STORAGE_VOL_LOOKUP_BY_NAME: i32 = 95;
const STORAGE_VOL_LOOKUP_BY_PATH: i32 = 97;
const SYSTEM_ERROR: i32 = 38;
const NO_STORAGE_VOL: i32 = 50;
const ACCESS_DENIED: i32 = 88;

/// A libvirtd, and this operator's way to it.
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

    /// The machine of the Pod `web`, proven to be that.
    async fn proven(&self, uuid: Uuid) -> Result<OwnVm> {
        let id = InstanceId::parse("libvirt", &uuid.to_string())?;
        Ok(guard::prove(self.provider.describe(&id).await?, "web")?)
    }
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
        }
        Ok(())
    })
}

#[test]
fn the_volumes_of_a_domain_that_somebody_undefined_since_it_was_proven_go() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let own = peer.proven(vm.domain.uuid).await?;
        host.client().domain_destroy(&vm.domain).await?;
        host.client().domain_undefine_plain(&vm.domain).await?;

        peer.provider.delete(&own).await?;
        let volumes = host.virsh().volumes(POOL).await?;
        ensure!(![&vm.root, &vm.cloudinit].iter().any(|own| volumes.contains(&own.name)), "{volumes:?}");
        Ok(())
    })
}

#[test]
fn a_domain_whose_volumes_cannot_be_deleted_stays_to_be_found_again() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let root = host.volume(&format!("{name}-root.qcow2"), "qcow2", "").await?;
        // In a pool that is not active, or none.
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
        // The others are tried all the same, and it runs no longer.
        ensure!(!host.virsh().volumes(POOL).await?.contains(&root.name));
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "shut off");
        Ok(())
    })
}

#[test]
fn a_domain_that_goes_when_it_is_off_is_turned_off_only_if_its_volumes_can_be_looked_for() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        // Somebody undefines it while it runs.
        host.client().domain_undefine_plain(&vm.domain).await?;
        let own = peer.proven(vm.domain.uuid).await?;

        let faulty = Relay::start(host, peer.dir.path(), Duration::ZERO)?;
        faulty.refuse(STORAGE_VOL_LOOKUP_BY_PATH, &[], SYSTEM_ERROR);
        let provider = Libvirt::new(&faulty.uri().to_string(), POOL, 4)?;
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(host.virsh().run(&["domstate", &name]).await?.trim() == "running");
        ensure!(
            error.class == ErrorClass::Transient
                && error.message.for_status().contains("leaves the domain running"),
            "{error}"
        );

        peer.provider.delete(&own).await?;
        ensure!(!host.virsh().domains().await?.contains(&name), "{name} is still there");
        let volumes = host.virsh().volumes(POOL).await?;
        ensure!(![&vm.root, &vm.cloudinit].iter().any(|own| volumes.contains(&own.name)), "{volumes:?}");
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
fn a_domain_that_cannot_be_turned_off_keeps_everything_and_says_so() -> Result<()> {
    run(async {
        let peer = Peer::start().await?;
        let (host, name) = (peer.libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let own = peer.proven(vm.domain.uuid).await?;
        // By the socket that lets machines be looked at and no more.
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
