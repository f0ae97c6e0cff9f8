//! The examination of a libvirt host, before a VM must be deleted there.

use futures::future::join;
use libvirt_client::{Domain, ErrorCode};
use operator_kit::Message;

use super::{
    Libvirt, definition, parse,
    volumes::{Found, empty_pool},
};
use crate::provider::{Error, ErrorClass, Finding, POD_VM, finding::counted};

/// What libvirt has no dry run for.
const NO_DRY_RUN: &str = "libvirt has no dry run, so check deletes nothing; if the connection may write, only an access rule of the \
     daemon (polkit) can forbid the deletion";

impl Libvirt {
    /// Reads what deletions read, and asks to change a VM that does not exist.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let daemon = match self.client.lib_version().await {
            // The daemon answered.
            Err(error) if error.code() == Some(ErrorCode::AccessDenied) => {
                Err(self.explain("asking for libvirt's version", &error))
            }
            Err(error) => return Err(self.explain("connecting to libvirt", &error)),
            Ok(version) => self.hypervisor(version).await,
        };
        let (domains, pool) = join(self.domains(), self.pool()).await;
        let (disk, definition) = match &domains {
            Ok(listed) => self.read_one(listed).await,
            Err(_) => {
                (None, Finding::untried("read VMs", "check cannot read a VM because it cannot look VMs up"))
            }
        };
        let volume = match (disk, &pool) {
            (Some(disk), _) => Some(disk),
            (None, Ok(pool)) => {
                pool.folder.as_ref().map(|folder| format!("{folder}/{POD_VM}check-root.qcow2"))
            }
            (None, Err(_)) => None,
        };
        let domains = domains.map(|listed| {
            let pod_vms = listed.iter().filter(|domain| domain.name.starts_with(POD_VM)).count();
            let all = counted(listed.len(), "domain");
            format!("libvirt shows {all}, {pod_vms} of them named {POD_VM}…")
        });
        Ok(vec![
            Finding::tried("hypervisor", daemon),
            Finding::tried("pool", pool.map(|pool| pool.text)),
            Finding::tried("look up VMs", domains),
            definition,
            match volume {
                Some(path) => Finding::tried("look up volumes", self.found(&path).await),
                None => Finding::untried("look up volumes", "the pool has no folder of volumes"),
            },
            Finding::tried("write", self.write().await),
            Finding::untried("delete VMs and volumes", NO_DRY_RUN),
        ])
    }

    async fn hypervisor(&self, libvirt: u64) -> Result<String, Error> {
        let (driver, hypervisor) = join(self.client.hypervisor(), self.client.hypervisor_version()).await;
        let explain = |error| self.explain("asking for the hypervisor's version", &error);
        let (driver, hypervisor) = (driver.map_err(explain)?, hypervisor.map_err(explain)?);
        Ok(format!("{driver} {}, libvirt {}", version(hypervisor), version(libvirt)))
    }

    async fn domains(&self) -> Result<Vec<Domain>, Error> {
        self.client.domains().await.map_err(|error| self.explain("listing the domains", &error))
    }

    /// Reads the definition of one pod VM, as before its deletion. Returns one of its volumes, too.
    async fn read_one(&self, listed: &[Domain]) -> (Option<String>, Finding) {
        let subject = "read VMs";
        let Some(domain) = listed.iter().find(|domain| domain.name.starts_with(POD_VM)) else {
            return (
                None,
                Finding::untried(subject, "there is no pod VM yet, so check cannot read its definition"),
            );
        };
        let xml = match self.client.domain_xml(domain).await {
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => {
                return (
                    None,
                    Finding::untried(
                        subject,
                        "the pod VM was deleted before check could read its definition",
                    ),
                );
            }
            xml => xml.map_err(|error| self.explain("reading the domain's definition", &error)),
        };
        let definition = xml.and_then(|xml| parse(domain, &xml));
        let disk = definition.as_ref().ok().and_then(|read| read.own_disks().into_iter().next());
        let text = definition.map(|read| {
            let sign = if read.is_pod_vm() { "has" } else { "does not have" };
            format!("check read the definition of {}; it {sign} cloud-api-adaptor's sign", domain.name)
        });
        (disk, Finding::tried(subject, text))
    }

    async fn pool(&self) -> Result<FoundPool, Error> {
        let name = &self.pool;
        let doing = Message::new(
            "reading the pool (LIBVIRT_POOL)",
            format!("reading the pool {name:?} (LIBVIRT_POOL)"),
        );
        let explain = |error: libvirt_client::Error| {
            let explained = self.explain(doing.clone(), &error);
            match error.code() {
                Some(ErrorCode::NoStoragePool) => {
                    explained.advising("set LIBVIRT_POOL to a pool that virsh pool-list --all shows")
                }
                Some(ErrorCode::OperationInvalid) => {
                    explained.advising("start the pool there: virsh pool-start, virsh pool-autostart")
                }
                _ => explained,
            }
        };
        let pool = self.client.pool_lookup_by_name(name).await.map_err(explain)?;
        let (volumes, xml) = join(self.client.pool_volumes(&pool), self.client.pool_xml(&pool)).await;
        let volumes = counted(volumes.map_err(explain)?.len(), "volume");
        let folder = definition::pool_folder(&xml.map_err(explain)?);
        let place = folder.as_ref().map_or_else(|| "no folder".to_owned(), |it| format!("the folder {it}"));
        Ok(FoundPool { text: format!("{name} is active, with {volumes} and {place}"), folder })
    }

    /// Looks a volume up as before its deletion.
    async fn found(&self, path: &str) -> Result<String, Error> {
        Ok(match self.find_volume(path).await? {
            Found::There(_) => format!("libvirt found {path}"),
            Found::Absent => format!("libvirt looked for {path} and did not find it"),
            Found::EmptyPool(doing) => return Err(empty_pool(&doing, "upload the base volume again")),
        })
    }

    /// Whether the connection may write. libvirt checks that before it looks for the VM, so a VM that does not exist will do: a
    /// random UUID, of which libvirt has just said that there is no such VM.
    async fn write(&self) -> Result<String, Error> {
        let uuid = uuid::Builder::from_random_bytes(fastrand::u128(..).to_be_bytes()).into_uuid();
        let nobody = Domain { name: format!("{POD_VM}check"), uuid, id: -1 };
        let doing = "asking libvirt to destroy a VM that does not exist";
        match self.client.domain_lookup_by_uuid(nobody.uuid).await {
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => {}
            Err(error) => return Err(self.explain("looking up a VM that does not exist", &error)),
            Ok(domain) => {
                let full = format!(
                    "the domain {} has the UUID that check drew at random: run check again",
                    domain.name
                );
                let message = Message::new("a domain has the UUID that check drew at random", full);
                return Err(Error::new(ErrorClass::Transient, message));
            }
        }
        match self.client.domain_destroy(&nobody).await {
            Err(error) if error.code() == Some(ErrorCode::OperationDenied) => {
                let advice =
                    "name the socket that may write in LIBVIRT_URI (libvirt-sock, not libvirt-sock-ro)";
                Err(self.explain(doing, &error).advising(advice))
            }
            Err(error) if error.code() != Some(ErrorCode::NoDomain) => Err(self.explain(doing, &error)),
            _ => Ok("check asked libvirt to destroy a VM that does not exist, and libvirt looked for it"
                .to_owned()),
        }
    }
}

struct FoundPool {
    text: String,
    /// The folder of its volumes, if they are files.
    folder: Option<String>,
}

/// Decodes libvirt's number for a version.
fn version(number: u64) -> String {
    format!("{}.{}.{}", number / 1_000_000, number / 1_000 % 1_000, number % 1_000)
}
