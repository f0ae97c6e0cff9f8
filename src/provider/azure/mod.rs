//! Azure: a pod VM, whose disk, interface and public address Azure deletes with it.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  the VM
//! delete    the VM: Resource Manager begins an operation and answers
//! describe  the VM: it is being deleted, or there is none
//!           where there is none, its disk
//! ```
//!
//! Azure adds eight digits to the names that cloud-api-adaptor gives the interface and the address, so both can only be listed.
//! Resource Manager lists a group from a cache that lags by minutes: what it does not list may exist, and the other way round. So
//! the list is for the sweep and for `check` alone.
//!
//! The recorded identifier contains the subscription and the group of the VM, so the settings do not matter. The VM itself shows
//! that it is being deleted, so a restart of the operator loses nothing.

mod answer;
mod credentials;
mod examine;
mod id;
mod settings;

use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use operator_kit::Message;

pub use self::settings::Settings;
use self::{
    answer::{ArmResource, Page, accepted, accepted_of_settings, is_absent},
    credentials::Credentials,
    settings::AUTHORITY,
};
use super::{
    Accepted, Bears, Claim, Error, ErrorClass, Finding, InstanceId, Listed, OwnVm, POD_VM, Pages, Provider,
    Resource, Stage, Vm, VmRef,
    cloud::{Cloud, InstanceTypeKey, Opening},
    http::{
        Authorized, Call, MOST_PAGES, Reply, encoded,
        identity::{has_origin_of, variable},
        too_many_pages,
    },
};
use crate::settings::{Endpoint, Malformed, Values};

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    instance_type: Some(InstanceTypeKey::new("AZURE_INSTANCE_SIZE")),
    ..Cloud::new("azure", Settings::KEYS, check, id::parse, open)
};

/// Versions of Azure's interfaces.
const COMPUTE: &str = "2025-04-01";
const DISKS: &str = "2025-01-02";
const RESOURCES: &str = "2021-04-01";

const VM: &str = "microsoft.compute/virtualmachines";
const DISK: &str = "microsoft.compute/disks";
const INTERFACE: &str = "microsoft.network/networkinterfaces";
const ADDRESS: &str = "microsoft.network/publicipaddresses";

/// How the name of a VM's disk ends after the VM's.
const OF_DISK: &str = "-disk";

/// How the name of its interface and of its address ends, before what Azure adds.
const OF_NETWORK: &str = "-net";

/// Fields that a list of resources has only on request.
const EXPAND: &str = "createdTime,provisioningState";

/// When to look again after a deletion, if Azure does not say so.
const DELETION: Duration = Duration::from_secs(10);

/// One of Azure's clouds.
struct Azure {
    api: Authorized<Credentials>,
    /// Resource Manager's URL, without a slash at the end.
    manager: String,
    /// The subscription that the settings name, if they do.
    subscription: Option<String>,
    /// The resource group that the settings name, if they can.
    group: Option<String>,
}

/// Where these settings look for VMs. An identifier names its subscription and group, so this is all of one of Azure's clouds.
fn check(values: &Values) -> Result<Endpoint, Vec<Malformed>> {
    let settings = Settings::read(values);
    let (_, environment) = credentials::source(&settings, &variable).map_err(|malformed| vec![malformed])?;
    Ok(Endpoint { setting: AUTHORITY, address: environment.manager })
}

fn open(values: &Values, _: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let settings = Settings::read(values);
    // Identifiers contain their place, so no other place is ever opened.
    let (source, environment) =
        credentials::source(&settings, &variable).map_err(|malformed| Error::unusable(&[malformed]))?;
    Ok(Box::new(Azure {
        api: Authorized::new(Credentials { source, audience: environment.audience })?,
        manager: environment.manager,
        subscription: id::canonical(&settings.subscription),
        group: id::scope(&settings.subscription, &settings.group),
    }))
}

impl Azure {
    /// Asks for something about the resource or the group with this identifier, by this version of the API.
    async fn call(&self, doing: &'static str, method: Method, id: &str, api: &str) -> Result<Reply, Error> {
        let url = format!("{}{}?api-version={api}", self.manager, id::path(id));
        // Without a subscription in the settings, any may be another's.
        let elsewhere = self.subscription.as_deref() != id::subscription(id);
        self.api.send(Call { elsewhere, ..Call::to(doing, method, &url)? }).await
    }

    /// Asks for the resource with this identifier. `None`: it does not exist.
    async fn find(&self, doing: &'static str, id: &str, api: &str) -> Result<Option<Reply>, Error> {
        let reply = self.call(doing, Method::GET, id, api).await?;
        if is_absent(&reply) {
            return Ok(None);
        }
        accepted(reply).map(Some)
    }

    /// The disk that is left of a VM that does not exist.
    async fn remains(&self, id: &InstanceId) -> Result<Vm, Error> {
        let disk = disk(id);
        if self.find("looking for the disk of the VM", &disk, DISKS).await?.is_none() {
            return Err(Error::new(ErrorClass::NotFound, "Azure has no such VM, and no disk of it"));
        }
        let name = id::name(id.as_str());
        Ok(Vm { stage: Stage::Remains(Bears::Name), belongings: vec![disk], ..Vm::named(id.clone(), name) })
    }

    /// The group that the settings name.
    fn group(&self) -> Result<&str, Error> {
        self.group.as_deref().ok_or_else(|| {
            let message = "AZURE_SUBSCRIPTION_ID and AZURE_RESOURCE_GROUP must name a subscription by its ID, and a group";
            Error::new(ErrorClass::Invalid, Message::public(message))
        })
    }
}

#[async_trait]
impl Provider for Azure {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let Some(reply) = self.find("looking up the VM", id.as_str(), COMPUTE).await? else {
            return self.remains(id).await;
        };
        let vm: ArmResource = reply.json()?;
        if vm.id.to_lowercase() != id.as_str() {
            return Err(reply.unreadable("VM", "it has another identifier"));
        }
        Ok(vm.listed(Resource::Vm).described(id))
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let vm = vm.vm();
        let (doing, id, api) = match vm.stage {
            Stage::Remains(_) => ("deleting the disk of the VM", disk(&vm.id), DISKS),
            Stage::Present | Stage::Leaving => ("deleting the VM", vm.id.to_string(), COMPUTE),
        };
        let reply = self.call(doing, Method::DELETE, &id, api).await?;
        if is_absent(&reply) || reply.status == 204 {
            return Err(Error::new(ErrorClass::NotFound, "Azure has nothing of that name to delete"));
        }
        let reply = accepted(reply)?;
        // By 202 Resource Manager says that it has begun.
        let is_begun = reply.status == 202;
        let check_again_after =
            if is_begun { reply.retry_after().unwrap_or(DELETION) } else { Duration::ZERO };
        Ok(Accepted::after(check_again_after))
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let doing = "listing the VMs";
        let filter = format!("substringof('{POD_VM}',name)");
        let query = encoded([("api-version", RESOURCES), ("$filter", &filter), ("$expand", EXPAND)]);
        let mut url = format!("{}{}/resources?{query}", self.manager, id::path(self.group()?));
        for _ in 0..MOST_PAGES {
            let reply = accepted_of_settings(self.api.send(Call::to(doing, Method::GET, &url)?).await?)?;
            let page: Page<ArmResource> = reply.json()?;
            pages(page.value.into_iter().filter_map(listed).collect());
            let Some(next) = page.next_link.filter(|link| !link.is_empty()) else { return Ok(()) };
            // The token is for no other host.
            if !has_origin_of(&next, &self.manager) {
                return Err(reply.unreadable("list", "its next page is at another host"));
            }
            url = next;
        }
        Err(too_many_pages(doing))
    }

    fn most_at_once(&self) -> Option<usize> {
        self.api.most_at_once()
    }

    /// Each identifier names its subscription.
    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}

/// The identifier of the disk that comes with this VM.
fn disk(vm: &InstanceId) -> String {
    let (group, name) = (vm.scope().unwrap_or_default(), id::name(vm.as_str()));
    format!("{group}/providers/{DISK}/{name}{OF_DISK}")
}

/// The name of the VM that the interface or the address of this name came with.
fn user_of_network(name: &str) -> Option<&str> {
    name.strip_suffix(OF_NETWORK).or_else(|| {
        let (vm, added) = name.rsplit_once('-')?;
        let is_azures = added.len() == 8 && added.bytes().all(|digit| digit.is_ascii_hexdigit());
        vm.strip_suffix(OF_NETWORK).filter(|_| is_azures)
    })
}

/// A pod VM, or what may have come with one: a disk that nothing uses, an interface or an address.
fn listed(resource: ArmResource) -> Option<Listed> {
    let name = &*resource.name;
    let (kind, vm) = match &*resource.kind.to_lowercase() {
        VM => (Resource::Vm, None),
        DISK if resource.managed_by.is_none() => (Resource::Disk, Some(name.strip_suffix(OF_DISK)?)),
        INTERFACE => (Resource::Interface, Some(user_of_network(name)?)),
        ADDRESS => (Resource::Address, Some(user_of_network(name)?)),
        _ => return None,
    };
    let vm = vm.map(|vm| VmRef::Name(vm.to_owned()));
    name.starts_with(POD_VM).then(|| Listed { vm, ..resource.listed(kind) })
}

#[cfg(test)]
mod tests;
