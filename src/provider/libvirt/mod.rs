//! libvirt: a pod VM is a domain with two volumes of its own.
//!
//! Calls for one deletion: look up, read the definition, destroy, then look up and delete both volumes at once, undefine,
//! look up again. The domain is undefined last and only when its volumes are gone, so that a retry still finds what
//! is left.

mod definition;

use async_trait::async_trait;
use futures::future::join_all;
use libvirt_client::{
    Client, ConnectError, ConnectFailure, ConnectUri, Domain, ErrorCode, Options, UndefineFlags, Volume,
};
use uuid::Uuid;

use self::definition::Definition;
use super::{Error, ErrorClass, InstanceId, OwnVm, Provider, Vm};

/// The value of `CLOUD_PROVIDER` and of a PeerPod's `spec.cloudProvider`.
pub const NAME: &str = "libvirt";

/// The libvirt daemon that one set of settings names.
pub struct Libvirt {
    client: Client,
    uri: String,
    pool: String,
}

impl Libvirt {
    /// A provider for the daemon at `uri` (`LIBVIRT_URI`) whose pod VMs have their volumes in `pool` (`LIBVIRT_POOL`).
    /// Connects at the first call.
    pub fn new(uri: &str, pool: &str) -> Result<Self, Error> {
        let parsed: ConnectUri = uri.parse().map_err(|problem| {
            Error::new(ErrorClass::Invalid, format!("LIBVIRT_URI cannot be used: {problem}"))
        })?;
        let uri = parsed.to_string();
        Ok(Self { client: Client::new(parsed, Options::default()), uri, pool: pool.to_owned() })
    }

    async fn lookup(&self, id: &InstanceId) -> Result<Domain, Error> {
        let uuid = Uuid::try_parse(id.as_str()).map_err(|_| {
            Error::new(
                ErrorClass::Invalid,
                format!("{id} is not a domain's UUID, so it names no domain for good"),
            )
        })?;
        self.client
            .domain_lookup_by_uuid(uuid)
            .await
            .map_err(|error| self.explain("looking up the domain", &error))
    }

    /// Deletes one of the domain's own volumes; one that is not there is deleted already.
    async fn delete_volume(&self, path: &str) -> Result<(), Error> {
        let Some(volume) = self.find_volume(path).await? else { return Ok(()) };
        match self.client.volume_delete(&volume).await {
            Err(error) if error.code() != Some(ErrorCode::NoStorageVolume) => {
                Err(self.explain(&format!("deleting the volume {path}"), &error))
            }
            _ => Ok(()),
        }
    }

    /// The volume at `path`. A pool that is not active knows none of its volumes, so before a volume counts as absent
    /// the pool itself must have said so.
    async fn find_volume(&self, path: &str) -> Result<Option<Volume>, Error> {
        match self.client.volume_lookup_by_path(path).await {
            Ok(volume) => return Ok(Some(volume)),
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => {}
            Err(error) => return Err(self.explain(&format!("looking up the volume {path}"), &error)),
        }
        let doing = || {
            format!("making sure that the volume {path} is not in the pool {:?} (LIBVIRT_POOL)", self.pool)
        };
        let pool = self
            .client
            .pool_lookup_by_name(&self.pool)
            .await
            .map_err(|error| self.explain(&doing(), &error))?;
        let volumes =
            self.client.pool_volumes(&pool).await.map_err(|error| self.explain(&doing(), &error))?;
        Ok(volumes
            .into_iter()
            .find(|volume| volume.key == path || volume.name == definition::file_name(path)))
    }

    /// `undefine` with everything that hangs on the definition; drivers that know no such flags get the plain call.
    async fn undefine(&self, domain: &Domain) -> Result<(), Error> {
        let flags = UndefineFlags::MANAGED_SAVE | UndefineFlags::SNAPSHOTS_METADATA | UndefineFlags::NVRAM;
        let mut answer = self.client.domain_undefine(domain, flags).await;
        if let Err(error) = &answer
            && matches!(error.code(), Some(ErrorCode::NoSupport | ErrorCode::InvalidArg))
        {
            answer = self.client.domain_undefine_plain(domain).await;
        }
        match answer {
            Err(error) if error.code() != Some(ErrorCode::NoDomain) => {
                Err(self.explain("undefining the domain", &error))
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, doing: &str, error: &libvirt_client::Error) -> Error {
        Error::new(class(error), format!("{doing} at {}: {error}", self.uri))
    }
}

/// What a libvirt error means.
fn class(error: &libvirt_client::Error) -> ErrorClass {
    match error.code() {
        Some(ErrorCode::NoDomain) => ErrorClass::NotFound,
        Some(
            ErrorCode::AuthFailed
            | ErrorCode::AuthCancelled
            | ErrorCode::AuthUnavailable
            | ErrorCode::AccessDenied,
        ) => ErrorClass::Unauthorized,
        Some(ErrorCode::NoStoragePool) => ErrorClass::Invalid,
        Some(ErrorCode::NoSupport) => ErrorClass::NotSupported,
        None if refused(error) => ErrorClass::Unauthorized,
        _ => ErrorClass::Transient,
    }
}

/// Whether the daemon, or its socket's mode, turned us away.
fn refused(error: &libvirt_client::Error) -> bool {
    match error {
        libvirt_client::Error::Auth(_) => true,
        libvirt_client::Error::Connect(ConnectError { reason: ConnectFailure::Io(problem), .. }) => {
            problem.kind() == std::io::ErrorKind::PermissionDenied
        }
        _ => false,
    }
}

#[async_trait]
impl Provider for Libvirt {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        let domain = self.lookup(id).await?;
        let xml = self
            .client
            .domain_xml(&domain)
            .await
            .map_err(|error| self.explain("reading the domain's definition", &error))?;
        let definition = Definition::parse(&xml).map_err(|problem| {
            Error::new(
                ErrorClass::Transient,
                format!("the definition of {} cannot be read: {problem}", domain.name),
            )
        })?;
        Ok(Vm {
            id: id.clone(),
            marked: definition.is_pod_vm(),
            own_disks: definition.own_disks(&domain.name),
            name: domain.name,
            // libvirt keeps no time of creation.
            created: None,
        })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<(), Error> {
        let vm = vm.vm();
        let domain = self.lookup(&vm.id).await?;
        if domain.name != vm.name {
            let message =
                format!("the domain {} was renamed from {} to {} meanwhile", vm.id, vm.name, domain.name);
            return Err(Error::new(ErrorClass::Transient, message));
        }
        match self.client.domain_destroy(&domain).await {
            // A domain that is off already cannot be destroyed, which is as good.
            Err(error)
                if !matches!(error.code(), Some(ErrorCode::OperationInvalid | ErrorCode::NoDomain)) =>
            {
                return Err(self.explain("destroying the domain", &error));
            }
            _ => {}
        }
        for deleted in join_all(vm.own_disks.iter().map(|path| self.delete_volume(path))).await {
            deleted?;
        }
        self.undefine(&domain).await
    }
}
