//! A real libvirt daemon with its test driver, behind a relay that can disturb calls.

use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use cluster::process::Lifetime;
use peerpod_operator::provider::{
    Cloud, Error, Provider,
    contract::{Behavior, Cannot, Example, Kind, Left, Peer},
    libvirt,
};
use peers::libvirt::{Libvirtd, POOL, Relay};
use tempfile::TempDir;
use uuid::Uuid;

use super::failed;
use crate::{Settings, vm_name};

/// libvirt's procedures.
const DOMAIN_GET_XML_DESC: i32 = 14;
const STORAGE_VOL_DELETE: i32 = 94;
const STORAGE_POOL_LIST_ALL_VOLUMES: i32 = 282;

/// libvirt's errors.
const SYSTEM_ERROR: i32 = 38;
const ACCESS_DENIED: i32 = 88;

pub(super) struct Libvirt {
    libvirtd: Libvirtd,
    relay: Relay,
    _dir: TempDir,
}

impl Libvirt {
    pub(super) async fn start() -> anyhow::Result<Self> {
        Libvirtd::install()?;
        let dir = tempfile::tempdir().context("making a folder")?;
        let libvirtd = Libvirtd::start(dir.path(), Lifetime::Owned).await?;
        let relay = Relay::start(libvirtd.host(), dir.path(), Duration::ZERO)?;
        Ok(Self { libvirtd, relay, _dir: dir })
    }

    pub(super) fn settings(&self) -> Settings {
        Settings::libvirt(&self.relay.uri().to_string())
    }

    async fn names(&self) -> Result<(Vec<String>, Vec<String>), Cannot> {
        let virsh = self.libvirtd.host().virsh();
        Ok((virsh.domains().await.map_err(failed)?, virsh.volumes(POOL).await.map_err(failed)?))
    }
}

/// The name of the volume with a user's data that is attached to this VM.
fn user_data(vm: &str) -> String {
    format!("data-of-{vm}.qcow2")
}

#[async_trait]
impl Peer for Libvirt {
    fn cloud(&self) -> &Cloud {
        &libvirt::CLOUD
    }

    fn open(&self) -> Result<Box<dyn Provider>, Error> {
        Ok(Box::new(libvirt::Libvirt::new(&self.relay.uri().to_string(), POOL, 32)?))
    }

    async fn make(&self, kind: Kind, pod: &str) -> Result<Example, Cannot> {
        let (host, name) = (self.libvirtd.host(), vm_name(pod));
        let domain = match kind {
            Kind::Running | Kind::Stopped => host.start_pod_vm(&name).await.map_err(failed)?.domain,
            Kind::WithUserData => {
                let data = host.volume(&user_data(&name), "qcow2", "").await.map_err(failed)?;
                host.start_pod_vm_with(&name, &[&data]).await.map_err(failed)?.domain
            }
            Kind::Foreign => {
                let name = format!("database-{name}");
                host.start_domain(&name, "a database", &[]).await.map_err(failed)?
            }
            Kind::Remains => {
                return Err(Cannot::Here(
                    "libvirt knows no volumes of a domain that is gone; the provider deletes them first",
                ));
            }
            Kind::InAnotherScope => return Err(Cannot::Here("a domain's UUID says nothing of its host")),
        };
        if kind == Kind::Stopped {
            host.client().domain_destroy(&domain).await?;
        }
        Ok(Example { id: domain.uuid.to_string(), name: domain.name })
    }

    async fn left(&self, example: &Example) -> Result<Left, Cannot> {
        let (domains, volumes) = self.names().await?;
        Ok(Left {
            vm: domains.contains(&example.name),
            belongings: volumes.iter().filter(|name| name.starts_with(&example.name)).count(),
            user_data: volumes.contains(&user_data(&example.name)),
        })
    }

    async fn remove(&self, example: &Example) -> Result<(), Cannot> {
        let client = self.libvirtd.host().client();
        let domain = client.domain_lookup_by_uuid(Uuid::try_parse(&example.id)?).await?;
        client.domain_destroy(&domain).await?;
        client.domain_undefine_plain(&domain).await?;
        for volume in client.pool_volumes(self.libvirtd.host().pool()).await? {
            if volume.name.starts_with(&example.name) {
                client.volume_delete(&volume).await?;
            }
        }
        Ok(())
    }

    async fn behave(&self, behavior: Behavior, example: &Example) -> Result<(), Cannot> {
        match behavior {
            Behavior::Well => {
                self.relay.refuse_none();
                self.relay.lose_none();
            }
            Behavior::Unauthorized => self.relay.refuse(DOMAIN_GET_XML_DESC, &[], ACCESS_DENIED),
            Behavior::Hangs => self.relay.lose([Uuid::try_parse(&example.id)?.into_bytes().to_vec()]),
            Behavior::HoldsBelongings => self.relay.refuse(STORAGE_VOL_DELETE, &[], SYSTEM_ERROR),
            Behavior::CutsListsOff => self.relay.refuse(STORAGE_POOL_LIST_ALL_VOLUMES, &[], SYSTEM_ERROR),
            Behavior::Throttled => return Err(Cannot::Here("libvirt never asks for fewer calls")),
            Behavior::DeletesLater => return Err(Cannot::Here("libvirt answers a deletion when it is done")),
            Behavior::NotYetShown => {
                return Err(Cannot::Here("libvirt shows a domain as soon as it is defined"));
            }
        }
        Ok(())
    }
}
