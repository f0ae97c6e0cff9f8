//! libvirt: a pod VM is a domain with two volumes of its own.
//!
//! Round trips of one deletion, each line one of them:
//!
//! ```text
//! describe  read the definition
//! delete    read it again, and the one that libvirt keeps; ask whether it is persistent; look up both volumes
//!           destroy
//!           delete both volumes
//!           undefine
//! describe  read the definition: there is none
//! ```
//!
//! The domain is undefined last, when its volumes are gone. So a retry still finds what is left, also after a restart of the
//! operator.
//!
//! A domain that a user undefined while it runs is not persistent. When it is off, libvirt no longer knows it or its volumes. So
//! the operator defines it again before it destroys it. If it cannot, it leaves the domain running.
//!
//! A domain that another program deleted, and each list, cost a connection more: see `host_proof.rs`. Many share it.

mod definition;
mod delete;
mod examine;
mod failure;
mod host_proof;
mod list;
mod settings;
mod volumes;

use std::sync::{Arc, atomic::AtomicUsize};

use async_trait::async_trait;
use libvirt_client::{CALLS_PER_CONNECTION, Client, ConnectUri, Domain, Options};
use operator_kit::Message;
use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

pub use self::settings::Settings;
use self::{definition::Definition, host_proof::HostProof, volumes::Remains};
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, OwnVm, Pages, ParsedId, Provider, Vm,
    cloud::{Cloud, Opening, RecordedPlace, SSH_KEY},
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    caveat: Some(
        "It needs a development image of cloud-api-adaptor, `latest` or a tag with `dev` in it: released images do not support \
         libvirt.",
    ),
    settles_late: false,
    volumes: &[SSH_KEY],
    ..Cloud::new("libvirt", Settings::KEYS, settings::check, domain_uuid, open)
};

/// The libvirt daemon that one set of settings names.
pub struct Libvirt {
    client: Client,
    /// For the log: the URI without its parameters.
    uri: String,
    pool: String,
    /// How domains are undefined here, once the operator knows.
    undefining: AtomicUsize,
    remains: Arc<Remains>,
    host_proof: HostProof,
    /// Notified if another host than the expected one answers.
    host_changed: Option<Arc<Notify>>,
}

/// The host that must answer.
#[derive(Default)]
struct Expected {
    /// Its UUID. Without one, any host may answer.
    host: Option<Uuid>,
    /// Notified if another host answers.
    host_changed: Option<Arc<Notify>>,
}

impl Libvirt {
    /// A provider for the daemon at `uri` (`LIBVIRT_URI`) whose pod VMs have their volumes in `pool` (`LIBVIRT_POOL`).
    /// Connects at the first call. There is room for `calls` calls at once, beside as many that hang.
    pub fn new(uri: &str, pool: &str, calls: usize) -> Result<Self, Error> {
        Ok(Self::at(parse_uri("LIBVIRT_URI", uri)?, pool, calls, Expected::default()))
    }

    /// The same for the daemon at this `address`, if the `expected` host answers there: by `uri` itself, or, if that leads elsewhere,
    /// with its user and its credentials.
    fn at_place(
        uri: &str,
        address: &str,
        pool: &str,
        calls: usize,
        expected: Expected,
    ) -> Result<Self, Error> {
        let uri = parse_uri("LIBVIRT_URI", uri)?;
        let is_there = uri.address() == address;
        let uri = if is_there { uri } else { parse_uri("the address of a place", address)?.reached_as(&uri) };
        Ok(Self::at(uri, pool, calls, expected))
    }

    fn at(parsed: ConnectUri, pool: &str, calls: usize, expected: Expected) -> Self {
        let uri = parsed.to_string().split('?').next().unwrap_or_default().to_owned();
        let connections = calls.div_ceil(CALLS_PER_CONNECTION);
        // Connections that hang, and those that may hang next.
        let options = Options { connections, stalled: 2 * calls, host: expected.host, ..Options::default() };
        Self {
            client: Client::new(parsed, options),
            uri,
            pool: pool.to_owned(),
            undefining: AtomicUsize::new(0),
            remains: Arc::default(),
            host_proof: HostProof::default(),
            host_changed: expected.host_changed,
        }
    }

    /// The domain's definition as it is now.
    async fn definition(&self, domain: &Domain) -> Result<Definition, Error> {
        let xml = self.client.domain_xml(domain).await;
        let xml = xml.map_err(|error| self.explain("reading the domain's definition", &error))?;
        parse(domain, &xml)
    }

    fn explain(&self, doing: impl Into<Message>, error: &libvirt_client::Error) -> Error {
        if let (libvirt_client::Error::OtherHost { .. }, Some(host_changed)) = (error, &self.host_changed) {
            host_changed.notify_one();
        }
        failure::explain(&doing.into(), &self.uri, error)
    }
}

fn open(
    values: &Values,
    Opening { calls, recorded, shared, .. }: &Opening<'_>,
) -> Result<Box<dyn Provider>, Error> {
    let Settings { uri, pool, .. } = Settings::read(values);
    let Some(recorded) = recorded else {
        return Ok(Box::new(Libvirt::new(&uri, &pool, *calls)?));
    };
    let host_changed = recorded.identity_changed();
    let &RecordedPlace { address, identity, .. } = recorded;
    let host =
        identity.map(Uuid::try_parse).transpose().map_err(|_| Error::unreadable_place("UUID of a host"))?;
    let libvirt = Libvirt::at_place(&uri, address, &pool, *calls, Expected { host, host_changed })?;
    // What is left of VMs outlives a change of the settings.
    let remains = shared.get(&[CLOUD.name(), address], || Ok(Remains::default()))?;
    Ok(Box::new(Libvirt { remains, ..libvirt }))
}

/// Only a UUID identifies a domain for good. Older versions of cloud-api-adaptor recorded the runtime number, which libvirt gives
/// to another domain later.
fn domain_uuid(raw: &str) -> Result<ParsedId, IdProblem> {
    let number = raw.bytes().all(|byte| byte.is_ascii_digit()) && raw.len() < 32;
    ParsedId::uuid(raw).ok_or(IdProblem::Malformed {
        expected: "a domain's UUID",
        hint: number.then_some(
            "it is a domain's runtime number, as older cloud-api-adaptors wrote; libvirt reuses those numbers, \
             so they do not identify a VM",
        ),
    })
}

fn parse_uri(what: &str, uri: &str) -> Result<ConnectUri, Error> {
    uri.parse().map_err(|problem| {
        let public = format!("{what} cannot be used");
        let full = format!("{public}: {problem}");
        Error::new(ErrorClass::Invalid, Message::new(public, full))
    })
}

fn parse(domain: &Domain, xml: &str) -> Result<Definition, Error> {
    Definition::parse(xml).map_err(|problem| {
        let full = format!("the definition of the domain {} cannot be read: {problem}", domain.uuid);
        Error::new(ErrorClass::Transient, Message::new("the VM's definition cannot be read", full))
    })
}

#[async_trait]
impl Provider for Libvirt {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let asked = Instant::now();
        // libvirt finds it by its UUID alone.
        let domain = Domain { name: String::new(), uuid: uuid(id)?, id: -1 };
        let definition = match self.definition(&domain).await {
            Err(gone) if gone.class == ErrorClass::NotFound => {
                if let Some(left) = self.remains(id).await {
                    return Ok(left);
                }
                self.ensure_absent(domain.uuid, asked).await?;
                return Err(gone);
            }
            definition => definition?,
        };
        Ok(Vm {
            marked: definition.is_pod_vm(),
            belongings: definition.own_disks(),
            start: definition.start,
            ..Vm::named(id.clone(), definition.name)
        })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        // libvirt answers when it is done.
        self.delete_vm(vm.vm()).await.map(|()| Accepted::default())
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.list_all(pages).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        let uuid = self.client.host_uuid().await;
        let uuid = uuid.map_err(|error| self.explain("asking which host it is", &error))?;
        Ok(uuid.map(|uuid| uuid.to_string()))
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}

fn uuid(id: &InstanceId) -> Result<Uuid, Error> {
    Uuid::try_parse(id.as_str())
        .map_err(|_| Error::new(ErrorClass::Invalid, Message::public(format!("{id} is not a domain's UUID"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uri_of_the_settings_is_used_where_it_leads_to_the_recorded_place() {
        for uri in [
            "qemu+ssh://root@kvm/system?proxy=native&keyfile=/k",
            "qemu+ssh://root@kvm/system?mode=legacy",
            "qemu+unix:///system?mode=direct",
        ] {
            let at = |address: &str| {
                let libvirt = Libvirt::at_place(uri, address, "default", 1, Expected::default()).unwrap();
                libvirt.client.uri().to_string()
            };
            assert_eq!(at(&uri.parse::<ConnectUri>().unwrap().address()), uri);
            for former in ["qemu+ssh://kvm:22/session", "qemu+ssh://old:22/system?mode=direct"] {
                assert_eq!(at(former), former);
            }
        }
    }
}
