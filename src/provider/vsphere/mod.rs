//! vSphere: a pod VM is a VM of vCenter, whose disks vCenter deletes with it.
//!
//! Requests of one deletion, each line one of them:
//!
//! ```text
//! describe  FindAllByUuid, RetrievePropertiesEx
//! delete    the same, PowerOffVM_Task
//! describe  FindAllByUuid, RetrievePropertiesEx
//! delete    the same, Destroy_Task
//! describe  FindAllByUuid: there is no such VM
//!           FindByInventoryPath by a new connection: the address leads to this vCenter
//!           HasPrivilegeOnEntities, RetrieveEntityPermissions: it would be shown in the folder of pod VMs
//!           RetrievePropertiesEx: it is not in that folder
//! ```
//!
//! A login takes three requests. A VM that is off needs five requests fewer. The four requests after the last search are made once for
//! all VMs whose search has ended before. Both steps are tasks of vCenter, which the VM itself shows, so a restart of the operator loses nothing. cloud-api-adaptor
//! records the BIOS UUID of a VM.
//!
//! # Which answers mean absence
//!
//! | answer | what it means here |
//! |---|---|
//! | the recorded vCenter finds no such VM, the address still leads to that vCenter, the user may read every VM of the folder of pod VMs, and all VMs there have other UUIDs | absence |
//! | it finds none, and any of the rest does not hold | nothing: vCenter hides what the user may not read |
//! | any other error | nothing |
//!
//! `session.rs` says how the operator knows which vCenter answers.

mod answer;
mod identity;
mod machine;
mod reference;
mod session;
mod settings;
mod shared_list;
mod sight;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

pub use self::settings::Settings;
use self::{
    machine::{Machine, Step},
    reference::{Ref, element},
    session::{Method, VCenter},
    settings::Place,
    shared_list::SharedList,
};
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, OwnVm, POD_VM, Pages, ParsedId,
    Provider, Stage, Vm,
    cloud::{Cloud, Opening},
    http::Failure,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    caveat: Some("cloud-api-adaptor supports vsphere in its releases up to v0.17.0: name such a tag."),
    settles_late: false,
    // A list has the VMs of one folder that the user may see. A VM may be in another folder, and vCenter may show the path of its
    // file as its name.
    may_hide_vms: true,
    ..Cloud::new("vsphere", Settings::KEYS, settings::check, uuid, open)
};

/// The privileges that deletions need in the folder of pod VMs, and no others.
pub const PRIVILEGES: [&str; 3] =
    ["System.Read", "VirtualMachine.Interact.PowerOff", "VirtualMachine.Inventory.Delete"];

/// How long a step of a deletion takes at least.
const STEP: Duration = Duration::from_secs(2);

/// One vCenter, and the folder in which pod VMs are made.
struct Vsphere {
    vcenter: VCenter,
    folder: String,
    shared: SharedList,
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let place = opening.place(settings::check(values), "folder of a vCenter", Place::recorded)?;
    let vcenter = VCenter::new(&place, &Settings::read(values), opening)?;
    Ok(Box::new(Vsphere { vcenter, folder: place.folder, shared: SharedList::default() }))
}

fn uuid(raw: &str) -> Result<ParsedId, IdProblem> {
    ParsedId::uuid(raw).ok_or(IdProblem::Malformed { expected: "a VM's BIOS UUID", hint: None })
}

impl Vsphere {
    /// The VM with its tasks. [`ErrorClass::NotFound`] if it is proven to be absent. `pod`: the name of the Pod that it is for, if that is
    /// known.
    async fn find(&self, id: &InstanceId, pod: Option<&str>) -> Result<Machine, Error> {
        let arguments =
            [element("uuid", id.as_str()), element("vmSearch", "true"), element("instanceUuid", "false")];
        let arguments = arguments.concat();
        let find = self.vcenter.call(Method::reading("looking up the VM", "FindAllByUuid"), |session| {
            session.search_index.element("_this") + &arguments
        });
        let found = find.await?;
        let searched = Instant::now();
        let mut found = found.all("returnval").filter_map(Ref::of);
        let vm = match (found.next(), found.next()) {
            (None, _) => return Err(self.missing(id, pod, searched).await),
            (Some(vm), None) => vm,
            (Some(_), Some(_)) => {
                let message = "several VMs have this BIOS UUID; give all but the pod VM another one";
                return Err(Error::new(ErrorClass::Refused, message));
            }
        };
        let question = machine::question(&vm) + "<options/>";
        let read = self.vcenter.call(Method::reading("reading the VM", "RetrievePropertiesEx"), |session| {
            session.property_collector.element("_this") + &question
        });
        let answer = read.await?;
        let machine =
            answer.child("returnval").map(|answer| Machine::read(vm, answer)).transpose()?.flatten();
        machine.ok_or_else(|| Error::new(ErrorClass::Transient, "vCenter finds the VM, but does not show it"))
    }
}

#[async_trait]
impl Provider for Vsphere {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        let machine = self.find(id, claim.pod.as_deref()).await?;
        let stage = if machine.is_at(Step::Destroy) { Stage::Leaving } else { Stage::Present };
        Ok(Vm { created: machine.created, stage, ..Vm::named(id.clone(), machine.name) })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let machine = self.find(&vm.vm().id, None).await?;
        if machine.name != vm.vm().name {
            return Err(Error::new(ErrorClass::Transient, "the VM has got another name meanwhile"));
        }
        let accepted = Accepted::after(STEP);
        if machine.is_at(Step::Destroy) || machine.is_at(Step::PowerOff) {
            return Ok(accepted);
        }
        let step = machine.next()?;
        let this = machine.reference.element("_this");
        match self.vcenter.call(step.method(), |_| this.clone()).await {
            // Another client is changing it.
            Err(Failure { code, .. }) if ["TaskInProgress", "InvalidPowerState"].contains(&&*code) => {
                Ok(accepted)
            }
            Err(failure) => Err(failure.into()),
            // Only a later look at the tasks shows how this attempt ends. Until then, say how the one before it failed.
            Ok(_) => machine.failure(step).map_or(Ok(accepted), Err),
        }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let folder = self.folder().await?;
        let list = self.machines("listing the VMs", &folder, |mut entries| {
            entries.retain(|entry| entry.name.starts_with(POD_VM));
            pages(entries);
        });
        list.await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        let (session, _) = self.search_folder().await?;
        Ok(Some(session.vcenter.clone()))
    }

    fn most_at_once(&self) -> Option<usize> {
        self.vcenter.most_at_once()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}
