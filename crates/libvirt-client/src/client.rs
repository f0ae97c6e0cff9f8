//! The client and its calls to libvirt.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::capabilities::host_uuid;
use crate::connections::Connections;
use crate::error::Error;
use crate::objects::{Domain, DomainState, Pool, UndefineFlags, Volume};
use crate::options::Options;
use crate::procedure::{
    ConnectGetCapabilities, ConnectGetLibVersion, ConnectGetType, ConnectGetVersion, ConnectListAllDomains,
    DomainCreate, DomainDefineXml, DomainDestroy, DomainGetState, DomainGetXmlDesc, DomainIsPersistent,
    DomainLookupByUuid, DomainUndefine, DomainUndefineFlags, Procedure, StoragePoolCreateXml,
    StoragePoolGetXmlDesc, StoragePoolListAllVolumes, StoragePoolLookupByName, StoragePoolNumOfVolumes,
    StorageVolCreateXml, StorageVolDelete, StorageVolLookupByName, StorageVolLookupByPath,
};
use crate::uri::ConnectUri;

/// Asks for a domain's description when it is off.
const INACTIVE: u32 = 2;

/// A client of one libvirt daemon. Clones share its connections; the last one dropped closes them.
#[derive(Debug, Clone)]
pub struct Client {
    connections: Arc<Connections>,
    stalled_after: Duration,
    call_timeout: Duration,
}

impl Client {
    /// A client that connects when it is first used, within a tokio runtime.
    pub fn new(uri: ConnectUri, options: Options) -> Self {
        let options = options.bounded();
        Self {
            connections: Arc::new(Connections::new(uri, &options)),
            stalled_after: options.stalled_after,
            call_timeout: options.call_timeout,
        }
    }

    /// Where this client connects to.
    pub fn uri(&self) -> &ConnectUri {
        self.connections.uri()
    }

    /// libvirt's version: major × 1,000,000 + minor × 1,000 + release.
    pub async fn lib_version(&self) -> Result<u64, Error> {
        self.call::<ConnectGetLibVersion>(()).await
    }

    /// The name of the driver that serves the connection, such as `QEMU`.
    pub async fn hypervisor(&self) -> Result<String, Error> {
        self.call::<ConnectGetType>(()).await
    }

    /// The hypervisor's version, built like [`lib_version`](Self::lib_version)'s; 0 if the driver knows none.
    pub async fn hypervisor_version(&self) -> Result<u64, Error> {
        self.call::<ConnectGetVersion>(()).await
    }

    /// The host's UUID, which distinguishes hosts for libvirt; `None` if the driver has none, such as the test driver.
    ///
    /// It comes from the mainboard (SMBIOS) or from the daemon's configuration (`host_uuid`, `host_uuid_source`). On a machine
    /// without SMBIOS, such as s390x, and without that configuration, each start of the daemon draws another one.
    pub async fn host_uuid(&self) -> Result<Option<Uuid>, Error> {
        Ok(host_uuid(&self.call::<ConnectGetCapabilities>(()).await?))
    }

    /// Proves that the address leads to the expected host ([`Options::host`]) at present: opens a connection, asks for the host's UUID,
    /// and closes it. The connections for calls stay as they are. Without an expected host there is nothing to prove, and nothing is
    /// opened. [`Error::OtherHost`] if another host answers.
    pub async fn verify_host(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.call_timeout;
        let verified = timeout_at(deadline, self.connections.verify_host()).await;
        let procedure = ConnectGetCapabilities::NAME;
        verified.unwrap_or(Err(Error::Timeout { procedure, after: self.call_timeout }))
    }

    /// All domains, running or not.
    pub async fn domains(&self) -> Result<Vec<Domain>, Error> {
        let (domains, _count) = self.call::<ConnectListAllDomains>((1, 0)).await?;
        Ok(domains)
    }

    /// The domain with this UUID; [`NoDomain`](crate::ErrorCode::NoDomain) if there is none.
    pub async fn domain_lookup_by_uuid(&self, uuid: Uuid) -> Result<Domain, Error> {
        self.call::<DomainLookupByUuid>((uuid,)).await
    }

    /// What the domain is doing now.
    pub async fn domain_state(&self, domain: &Domain) -> Result<DomainState, Error> {
        let (state, _reason) = self.call::<DomainGetState>((domain, 0)).await?;
        Ok(DomainState::from(state))
    }

    /// Whether libvirt keeps the domain's definition when it is off.
    pub async fn domain_is_persistent(&self, domain: &Domain) -> Result<bool, Error> {
        Ok(self.call::<DomainIsPersistent>((domain,)).await? != 0)
    }

    /// The domain's description as libvirt's domain XML, without its secrets. Of `domain` only the UUID matters.
    pub async fn domain_xml(&self, domain: &Domain) -> Result<String, Error> {
        self.call::<DomainGetXmlDesc>((domain, 0)).await
    }

    /// The description of the domain when it is off, as [`domain_define`](Self::domain_define) takes it.
    pub async fn domain_xml_inactive(&self, domain: &Domain) -> Result<String, Error> {
        self.call::<DomainGetXmlDesc>((domain, INACTIVE)).await
    }

    /// Makes a domain known, or changes it, from libvirt's domain XML. It is not started.
    pub async fn domain_define(&self, xml: &str) -> Result<Domain, Error> {
        self.call::<DomainDefineXml>((xml,)).await
    }

    /// Starts a domain that is off.
    pub async fn domain_create(&self, domain: &Domain) -> Result<(), Error> {
        self.call::<DomainCreate>((domain,)).await
    }

    /// Turns the domain off at once; [`OperationInvalid`](crate::ErrorCode::OperationInvalid) if it is off.
    pub async fn domain_destroy(&self, domain: &Domain) -> Result<(), Error> {
        self.call::<DomainDestroy>((domain,)).await
    }

    /// Makes libvirt forget the domain and the things in `flags`. A driver that does not know the flags answers
    /// [`NoSupport`](crate::ErrorCode::NoSupport) or [`InvalidArg`](crate::ErrorCode::InvalidArg).
    pub async fn domain_undefine(&self, domain: &Domain, flags: UndefineFlags) -> Result<(), Error> {
        self.call::<DomainUndefineFlags>((domain, flags.0)).await
    }

    /// Makes libvirt forget the domain. Every driver has this call.
    pub async fn domain_undefine_plain(&self, domain: &Domain) -> Result<(), Error> {
        self.call::<DomainUndefine>((domain,)).await
    }

    /// Makes a pool from libvirt's pool XML and starts it. It disappears when the daemon ends.
    pub async fn pool_create(&self, xml: &str) -> Result<Pool, Error> {
        self.call::<StoragePoolCreateXml>((xml, 0)).await
    }

    /// The pool of this name; [`NoStoragePool`](crate::ErrorCode::NoStoragePool) if there is none.
    pub async fn pool_lookup_by_name(&self, name: &str) -> Result<Pool, Error> {
        self.call::<StoragePoolLookupByName>((name,)).await
    }

    /// The pool's description as libvirt's pool XML.
    pub async fn pool_xml(&self, pool: &Pool) -> Result<String, Error> {
        self.call::<StoragePoolGetXmlDesc>((pool, 0)).await
    }

    /// The volumes in the pool, as of its last refresh, without those that an access rule hides.
    pub async fn pool_volumes(&self, pool: &Pool) -> Result<Vec<Volume>, Error> {
        let (volumes, _count) = self.call::<StoragePoolListAllVolumes>((pool, 1, 0)).await?;
        Ok(volumes)
    }

    /// The number of these volumes. It answers for a pool with more of them than libvirt lists, too.
    pub async fn pool_volume_count(&self, pool: &Pool) -> Result<i32, Error> {
        self.call::<StoragePoolNumOfVolumes>((pool,)).await
    }

    /// The volume of this name in the pool; [`NoStorageVolume`](crate::ErrorCode::NoStorageVolume) if it has none.
    pub async fn volume_lookup_by_name(&self, pool: &Pool, name: &str) -> Result<Volume, Error> {
        self.call::<StorageVolLookupByName>((pool, name)).await
    }

    /// The volume at this path; [`NoStorageVolume`](crate::ErrorCode::NoStorageVolume) if no pool has it.
    pub async fn volume_lookup_by_path(&self, path: &str) -> Result<Volume, Error> {
        self.call::<StorageVolLookupByPath>((path,)).await
    }

    /// Makes a volume in the pool from libvirt's volume XML.
    pub async fn volume_create(&self, pool: &Pool, xml: &str) -> Result<Volume, Error> {
        self.call::<StorageVolCreateXml>((pool, xml, 0)).await
    }

    /// Deletes the volume and what is on it.
    pub async fn volume_delete(&self, volume: &Volume) -> Result<(), Error> {
        self.call::<StorageVolDelete>((volume, 0)).await
    }

    async fn call<P: Procedure>(&self, arguments: P::Arguments<'_>) -> Result<P::Result, Error> {
        let begun = Instant::now();
        let answer = self.call_by_deadline::<P>(arguments).await;
        if matches!(answer, Err(Error::Timeout { .. } | Error::Disconnected(_))) {
            self.connections.forget_idle(begun);
        }
        answer
    }

    async fn call_by_deadline<P: Procedure>(&self, arguments: P::Arguments<'_>) -> Result<P::Result, Error> {
        let deadline = Instant::now() + self.call_timeout;
        let late = || Error::Timeout { procedure: P::NAME, after: self.call_timeout };
        let place = timeout_at(deadline, self.connections.place()).await.map_err(|_| late())??;
        let connection = timeout_at(deadline, place.connection()).await.map_err(|_| late())??;
        let mut call = pin!(connection.call::<P>(arguments));
        let stalled = deadline.min(Instant::now() + self.stalled_after);
        if let Ok(answer) = timeout_at(stalled, &mut call).await {
            if answer.as_ref().is_err_and(Error::is_of_lost_backend) {
                place.retire(&connection);
            }
            return answer;
        }
        match place.stall(&connection) {
            Ok(_stalled) => timeout_at(deadline, call).await.unwrap_or_else(|_| Err(late())),
            Err(place) => timeout_at(deadline, call).await.unwrap_or_else(|_| {
                place.retire(&connection);
                Err(late())
            }),
        }
    }
}
