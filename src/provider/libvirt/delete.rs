//! The deletion of one domain with its volumes.

use std::sync::atomic::Ordering;

use futures::future::join4;
use libvirt_client::{Domain, DomainState, ErrorCode, UndefineFlags};
use operator_kit::Message;

use super::{
    Libvirt,
    definition::Definition,
    parse, uuid,
    volumes::{Found, ensure_absent},
};
use crate::provider::{Error, ErrorClass, InstanceId, Vm, error::release_advice};

/// What a domain is right before its deletion.
enum Now {
    /// It exists, and libvirt keeps its definition when it is off.
    Persistent(Definition),
    /// It exists, and libvirt forgets it when it is off.
    Transient(Definition),
    /// It disappeared since it was proven.
    Gone,
}

impl Libvirt {
    /// Deletes a domain that was proven to be a pod VM, its volumes before its definition.
    pub(super) async fn delete_vm(&self, vm: &Vm) -> Result<(), Error> {
        let domain = Domain { name: vm.name.clone(), uuid: uuid(&vm.id)?, id: -1 };
        // Another program may undefine the domain meanwhile, and the caller may drop this call at any await point: then only this note
        // leads to the volumes. It keeps those of earlier attempts, which `vm` may lack.
        let left = self.remains.of(&vm.id);
        let earlier = left.iter().flat_map(|left| left.belongings.clone());
        let known = Vm { belongings: joined(vm.belongings.clone(), earlier), ..vm.clone() };
        self.remains.note(&known, true);
        // The call may have waited since the proof, and a user may have changed the domain: read it again.
        let (definition, kept, persistent, found) = join4(
            self.definition(&domain),
            self.kept_disks(&domain),
            self.client.domain_is_persistent(&domain),
            self.find_volumes(&known.belongings),
        )
        .await;
        let definition = match self.now(definition, persistent)? {
            Now::Gone => return self.delete_remains(&known, found).await,
            Now::Persistent(definition) | Now::Transient(definition) if !is_still(&definition, vm) => {
                // Its volumes may no longer be a pod VM's.
                self.remains.note(left.as_ref().unwrap_or(&known), left.is_some());
                let message = format!(
                    "the domain {} changed: its name is no longer {}, or it lost cloud-api-adaptor's sign; the operator \
                     checks it again",
                    vm.id, vm.name
                );
                return Err(Error::new(ErrorClass::Transient, Message::public(message)));
            }
            Now::Persistent(definition) => definition,
            Now::Transient(definition) => {
                if !self.keep(&domain).await? {
                    return self.delete_remains(&known, found).await;
                }
                definition
            }
        };
        // A running domain may have lost a disk that it will have again, also by its guest's doing.
        // So may one that was off at an earlier attempt.
        let further = kept?.into_iter().chain(left.into_iter().flat_map(|left| left.belongings));
        let all = Vm { belongings: joined(definition.own_disks(), further), ..vm.clone() };
        self.remains.note(&all, true);
        let is_known = all.belongings == known.belongings;
        let found = if is_known { found } else { self.find_volumes(&all.belongings).await };
        self.turn_off(&domain).await?;
        let found = self.delete_volumes(found).await;
        // If the pool shows no volume, an administrator is to undefine the domain.
        let is_pool_empty = found.iter().any(|found| matches!(found, Ok(Found::EmptyPool(_))));
        let deleted = ensure_absent(found, "undefine the domain");
        self.remains.note(&all, deleted.is_err() && !is_pool_empty);
        deleted?;
        self.undefine(&domain).await?;
        self.host_proof.note_deleted(domain.uuid);
        Ok(())
    }

    fn now(
        &self,
        definition: Result<Definition, Error>,
        persistent: Result<bool, libvirt_client::Error>,
    ) -> Result<Now, Error> {
        let definition = match definition {
            Err(gone) if gone.class == ErrorClass::NotFound => return Ok(Now::Gone),
            definition => definition?,
        };
        Ok(match persistent {
            Ok(true) => Now::Persistent(definition),
            Ok(false) => Now::Transient(definition),
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => Now::Gone,
            // A driver without this call does not distinguish transient domains.
            Err(error) if error.code() == Some(ErrorCode::NoSupport) => Now::Persistent(definition),
            Err(error) => return Err(self.explain("asking whether the domain is persistent", &error)),
        })
    }

    /// The domain's own disks in the definition that it has once it is off.
    async fn kept_disks(&self, domain: &Domain) -> Result<Vec<String>, Error> {
        match self.client.domain_xml_inactive(domain).await {
            Ok(xml) => Ok(parse(domain, &xml)?.own_disks()),
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => Ok(Vec::new()),
            Err(error) => Err(self.explain("reading the domain's kept definition", &error)),
        }
    }

    /// Defines a running domain as it is, as libvirt would forget it otherwise. `false`: it has disappeared.
    async fn keep(&self, domain: &Domain) -> Result<bool, Error> {
        let defined = match self.client.domain_xml_inactive(domain).await {
            Ok(xml) => self.client.domain_define(&xml).await.map(|_| true),
            Err(error) if error.code() == Some(ErrorCode::NoDomain) => Ok(false),
            Err(error) => Err(error),
        };
        defined.map_err(|error| {
            let error = self.explain("defining the domain again", &error);
            let message = error.message.map(|error| {
                format!(
                    "{error}; the operator leaves the domain running until then: the domain is not persistent, and once it is \
                     off, libvirt no longer knows its volumes"
                )
            });
            Error::new(error.class, message)
        })
    }

    /// Deletes the volumes of a domain that is gone. Volumes that are left are remembered, as nothing else leads to them.
    async fn delete_remains(&self, vm: &Vm, found: Vec<Result<Found, Error>>) -> Result<(), Error> {
        let deleted = ensure_absent(self.delete_volumes(found).await, &release_advice());
        self.remains.note(vm, deleted.is_err());
        deleted
    }

    /// What is left of a domain that is gone, as far as this process knows. An administrator may have deleted it by hand.
    pub(super) async fn remains(&self, id: &InstanceId) -> Option<Vm> {
        let left = self.remains.of(id)?;
        let found = self.find_volumes(&left.belongings).await;
        if found.iter().all(|found| matches!(found, Ok(Found::Absent))) {
            self.remains.note(&left, false);
            return None;
        }
        Some(left)
    }

    /// Turns the domain off. A domain that is off already is a success; only its state shows that.
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

    /// Undefines the domain with everything that its driver can delete with the definition. The operator remembers what the
    /// driver knows. A driver that can do more after an upgrade refuses the old way, and the operator tries all ways again.
    async fn undefine(&self, domain: &Domain) -> Result<(), Error> {
        let known = self.undefining.load(Ordering::Relaxed);
        let mut answer = self.undefine_from(known, domain).await;
        if known > 0 && code(&answer) == Some(ErrorCode::OperationInvalid) {
            answer = self.undefine_from(0, domain).await;
        }
        match answer {
            Err(error) if error.code() != Some(ErrorCode::NoDomain) => {
                Err(self.explain("undefining the domain", &error))
            }
            _ => Ok(()),
        }
    }

    /// Tries the [`ways`] to undefine, from this one on, until the driver knows one.
    async fn undefine_from(&self, first: usize, domain: &Domain) -> Result<(), libvirt_client::Error> {
        for (index, flags) in ways().into_iter().enumerate().skip(first) {
            let answer = self.client.domain_undefine(domain, flags).await;
            if !is_unknown(&answer) {
                self.undefining.store(index, Ordering::Relaxed);
                return answer;
            }
        }
        // Every driver has this call.
        self.undefining.store(ways().len(), Ordering::Relaxed);
        self.client.domain_undefine_plain(domain).await
    }
}

/// What is deleted with a definition, from most to least. libvirt before 5.6 does not know the flag for checkpoints; the test
/// driver knows none for firmware variables; other drivers know only one of them.
fn ways() -> [UndefineFlags; 5] {
    let (saved, snapshots, nvram) =
        (UndefineFlags::MANAGED_SAVE, UndefineFlags::SNAPSHOTS_METADATA, UndefineFlags::NVRAM);
    let old = saved | snapshots | nvram;
    [old | UndefineFlags::CHECKPOINTS_METADATA, old, saved | snapshots, nvram, saved]
}

/// These disks, and the further ones that are not among them.
fn joined(mut disks: Vec<String>, further: impl Iterator<Item = String>) -> Vec<String> {
    for disk in further {
        if !disks.contains(&disk) {
            disks.push(disk);
        }
    }
    disks
}

fn is_still(definition: &Definition, vm: &Vm) -> bool {
    definition.name == vm.name && definition.is_pod_vm()
}

/// Whether the driver does not know the flags, or the call.
fn is_unknown(answer: &Result<(), libvirt_client::Error>) -> bool {
    matches!(
        code(answer),
        Some(ErrorCode::NoSupport | ErrorCode::InvalidArg | ErrorCode::ArgumentUnsupported)
    )
}

fn code(answer: &Result<(), libvirt_client::Error>) -> Option<ErrorCode> {
    answer.as_ref().err().and_then(libvirt_client::Error::code)
}
