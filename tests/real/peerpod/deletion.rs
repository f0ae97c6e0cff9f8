//! Machines that change or disappear between their proof and their deletion.

mod domain;
pub mod dropped;
mod volumes;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, NAME_LIMIT, OwnVm, Provider as _, libvirt::Libvirt, ownership,
};
use peers::libvirt::{Libvirtd, POOL, PodVm, Relay};
use uuid::Uuid;

/// libvirt's procedures, and errors that it may answer with.
const DOMAIN_DEFINE_XML: i32 = 11;
const DOMAIN_UNDEFINE_FLAGS: i32 = 231;
pub const STORAGE_VOL_DELETE: i32 = 94;
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
