//! libvirt: a pod VM is a domain with two volumes of its own.
//!
//! Calls for one deletion: look up and read the definition; read it again and ask whether it is persistent, at once; destroy
//! and look up both volumes at once; delete both at once; undefine; look up again. The domain is undefined last and only when
//! its volumes are gone, so that a retry still finds what is left.
//!
//! A domain that somebody undefined while it runs is not persistent: it is gone when it is off, and with it all knowledge of
//! its volumes. Before it is destroyed its volumes are looked up, and it runs on while one cannot be. Any other domain is
//! destroyed whatever becomes of its volumes: running, it costs more than they do.

mod definition;
mod examine;
mod failure;

use async_trait::async_trait;
use futures::future::{join, join_all};
use libvirt_client::{
    CALLS_PER_CONNECTION, Client, ConnectUri, Domain, DomainState, ErrorCode, Options, UndefineFlags, Volume,
};
use uuid::Uuid;

use self::definition::Definition;
use super::{Error, ErrorClass, Finding, InstanceId, OwnVm, Provider, Vm};
use crate::runtime::Message;

/// The value of `CLOUD_PROVIDER` and of a PeerPod's `spec.cloudProvider`.
pub const NAME: &str = "libvirt";

/// The libvirt daemon that one set of settings names.
pub struct Libvirt {
    client: Client,
    /// For the log: the URI without its parameters.
    uri: String,
    pool: String,
}

impl Libvirt {
    /// A provider for the daemon at `uri` (`LIBVIRT_URI`) whose pod VMs have their volumes in `pool` (`LIBVIRT_POOL`).
    /// Connects at the first call. There is room for `calls` calls at once, beside as many that hang.
    pub fn new(uri: &str, pool: &str, calls: usize) -> Result<Self, Error> {
        let parsed: ConnectUri = uri.parse().map_err(|problem| {
            let full = format!("LIBVIRT_URI cannot be used: {problem}");
            Error::new(ErrorClass::Invalid, Message::new("LIBVIRT_URI cannot be used", full))
        })?;
        let uri = parsed.to_string().split('?').next().unwrap_or_default().to_owned();
        let connections = calls.div_ceil(CALLS_PER_CONNECTION);
        // Those that hang, and those that are about to.
        let options = Options { connections, stalled: 2 * calls, ..Options::default() };
        Ok(Self { client: Client::new(parsed, options), uri, pool: pool.to_owned() })
    }

    async fn lookup(&self, id: &InstanceId) -> Result<Domain, Error> {
        self.client
            .domain_lookup_by_uuid(uuid(id)?)
            .await
            .map_err(|error| self.explain("looking up the domain", &error))
    }

    /// Finds the domain's own volumes; none at a path where there is none.
    async fn find_volumes(&self, paths: &[String]) -> Vec<Result<Option<Volume>, Error>> {
        join_all(paths.iter().map(|path| self.find_volume(path))).await
    }

    /// Deletes what was found, all at once, and tells the first problem, also of finding, when all were tried. One that is
    /// not there is deleted already.
    async fn delete_volumes(&self, found: Vec<Result<Option<Volume>, Error>>) -> Result<(), Error> {
        let deleted = found.into_iter().map(async |found| {
            let Some(volume) = found? else { return Ok(()) };
            match self.client.volume_delete(&volume).await {
                Err(error) if error.code() != Some(ErrorCode::NoStorageVolume) => {
                    let doing = format!("deleting the volume {}", volume.key);
                    Err(self.explain(Message::new("deleting a volume of the VM", doing), &error))
                }
                _ => Ok(()),
            }
        });
        join_all(deleted).await.into_iter().collect()
    }

    /// The volume at `path`. Pools that are not active know none of their volumes, and a volume that an access rule hides is in
    /// no answer either, so before a volume counts as absent the pool whose folder it lies in must have said so, asked for it
    /// by name.
    ///
    /// A pool knows what was there at its last refresh and what was made through libvirt since: a volume that came otherwise
    /// is not found. No pool is refreshed for that, as one whose refresh fails is not active any more.
    async fn find_volume(&self, path: &str) -> Result<Option<Volume>, Error> {
        match self.client.volume_lookup_by_path(path).await {
            Ok(volume) => return Ok(Some(volume)),
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => {}
            Err(error) => {
                let doing = format!("looking up the volume {path}");
                return Err(self.explain(Message::new("looking up a volume of the VM", doing), &error));
            }
        }
        let pool = &self.pool;
        let doing = Message::new(
            "looking for a volume of the VM in the pool (LIBVIRT_POOL)",
            format!("looking for the volume {path} in the pool {pool:?} (LIBVIRT_POOL)"),
        );
        let explain = |error| self.explain(doing.clone(), &error);
        let pool = self.client.pool_lookup_by_name(pool).await.map_err(explain)?;
        let (folder, name) = definition::split(path);
        if definition::pool_folder(&self.client.pool_xml(&pool).await.map_err(explain)?).as_deref()
            != Some(folder)
        {
            let message = doing.map(|doing| {
                format!(
                    "{doing} failed: the volume is in a folder of another pool; set LIBVIRT_POOL to that pool, and start it"
                )
            });
            return Err(Error::new(ErrorClass::Invalid, message));
        }
        match self.client.volume_lookup_by_name(&pool, name).await {
            Err(error) if error.code() == Some(ErrorCode::NoStorageVolume) => Ok(None),
            found => found.map(Some).map_err(explain),
        }
    }

    /// The domain's definition as it is now.
    async fn definition(&self, domain: &Domain) -> Result<Definition, Error> {
        let xml = self.client.domain_xml(domain).await;
        let xml = xml.map_err(|error| self.explain("reading the domain's definition", &error))?;
        parse(domain, &xml)
    }

    /// Turns the domain off. One that is off already is as good, and only its state says that it is.
    async fn turn_off(&self, domain: &Domain) -> Result<(), Error> {
        let Err(error) = self.client.domain_destroy(domain).await else { return Ok(()) };
        let off = match error.code() {
            Some(ErrorCode::NoDomain) => true,
            Some(ErrorCode::OperationInvalid) => {
                let state = self.client.domain_state(domain).await;
                matches!(state, Ok(DomainState::ShutOff | DomainState::Crashed))
            }
            _ => false,
        };
        if off { Ok(()) } else { Err(self.explain("destroying the domain", &error)) }
    }

    /// `undefine` with everything that hangs on the definition. libvirt before 5.6 does not know the flag for checkpoints, and
    /// drivers that know no such flags at all get the plain call.
    async fn undefine(&self, domain: &Domain) -> Result<(), Error> {
        let old = UndefineFlags::MANAGED_SAVE | UndefineFlags::SNAPSHOTS_METADATA | UndefineFlags::NVRAM;
        let mut answer = self.client.domain_undefine(domain, old | UndefineFlags::CHECKPOINTS_METADATA).await;
        if is_unknown(&answer) {
            answer = self.client.domain_undefine(domain, old).await;
        }
        if is_unknown(&answer) {
            answer = self.client.domain_undefine_plain(domain).await;
        }
        match answer {
            Err(error) if error.code() != Some(ErrorCode::NoDomain) => {
                Err(self.explain("undefining the domain", &error))
            }
            _ => Ok(()),
        }
    }

    fn explain(&self, doing: impl Into<Message>, error: &libvirt_client::Error) -> Error {
        failure::explain(&doing.into(), &self.uri, error)
    }
}

/// Whether the driver does not know the flags, or the call.
fn is_unknown(answer: &Result<(), libvirt_client::Error>) -> bool {
    let code = answer.as_ref().err().and_then(libvirt_client::Error::code);
    matches!(code, Some(ErrorCode::NoSupport | ErrorCode::InvalidArg))
}

fn parse(domain: &Domain, xml: &str) -> Result<Definition, Error> {
    Definition::parse(xml).map_err(|problem| {
        let full = format!("the definition of {} cannot be read: {problem}", domain.name);
        Error::new(ErrorClass::Transient, Message::new("the VM's definition cannot be read", full))
    })
}

#[async_trait]
impl Provider for Libvirt {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        let domain = self.lookup(id).await?;
        let definition = self.definition(&domain).await?;
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
        // libvirt finds it by its UUID, whatever the rest says.
        let domain = Domain { name: vm.name.clone(), uuid: uuid(&vm.id)?, id: -1 };
        // The proof may have waited for its turn: whoever edited the domain since has a say.
        let (definition, persistent) =
            join(self.definition(&domain), self.client.domain_is_persistent(&domain)).await;
        let definition = match definition {
            Ok(definition) => definition,
            // Somebody else undefined it since it was proven. Nobody finds its volumes any more if not here and now.
            Err(gone) if gone.class == ErrorClass::NotFound => {
                return self.delete_volumes(self.find_volumes(&vm.own_disks).await).await;
            }
            Err(error) => return Err(error),
        };
        if definition.name != vm.name || !definition.is_pod_vm() {
            let message = format!(
                "the domain {} changed: its name is no longer {}, or it lost cloud-api-adaptor's sign; the \
                 operator checks it again",
                vm.id, vm.name
            );
            return Err(Error::new(ErrorClass::Transient, Message::public(message)));
        }
        let disks = definition.own_disks(&domain.name);
        let persistent = match persistent {
            // It went this very moment.
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => false,
            // A driver that does not tell them apart.
            Err(error) if error.code() == Some(ErrorCode::NoSupport) => true,
            answer => {
                answer.map_err(|error| self.explain("asking whether the domain is persistent", &error))?
            }
        };
        let volumes = if persistent {
            let (off, volumes) = join(self.turn_off(&domain), self.find_volumes(&disks)).await;
            off?;
            volumes
        } else {
            let volumes = self.find_volumes(&disks).await;
            if let Some(problem) = volumes.iter().find_map(|found| found.as_ref().err()) {
                let message = problem.message.map(|problem| {
                    format!(
                        "{problem}; the operator leaves the domain running until then: the domain is not persistent, and once \
                         it is off, libvirt no longer knows its volumes"
                    )
                });
                return Err(Error::new(problem.class, message));
            }
            self.turn_off(&domain).await?;
            volumes
        };
        self.delete_volumes(volumes).await?;
        self.undefine(&domain).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}

fn uuid(id: &InstanceId) -> Result<Uuid, Error> {
    Uuid::try_parse(id.as_str())
        .map_err(|_| Error::new(ErrorClass::Invalid, Message::public(format!("{id} is not a domain's UUID"))))
}
