//! Alibaba Cloud ECS: a pod VM is an instance, whose system disk and primary interface ECS deletes with it.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  DescribeInstances
//! delete    DeleteInstance
//! describe  DescribeInstances: the list is empty
//!           DescribeInstanceAttribute: there is no such instance
//!           DescribeNetworkInterfaces, DescribeEipAddresses: nothing bears its identifier
//! ```
//!
//! cloud-api-adaptor may add an interface, named by the instance's identifier, and an elastic address to that interface. The
//! address itself names no VM. So before the instance is deleted, its address gets a name with the identifier: it can still be
//! found when the instance is gone, also after a restart of the operator, and is released then. ECS deletes the interface with the
//! instance. One that it leaves is deleted afterwards.
//!
//! # Which answers mean absence
//!
//! | answer | what it means here |
//! |---|---|
//! | an empty list, `InvalidInstanceId.NotFound` with 404 to the question for the instance itself, and nothing with its identifier | absence: the region is recorded with the places, and the credentials are known to be of the account in which the VMs are |
//! | an empty list alone | nothing: ECS has answered so to credentials that lack the right |
//! | any other error | nothing |

mod answer;
mod api;
mod examine;
mod list;
mod settings;
mod sign;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;

pub use self::settings::Settings;
use self::{
    answer::{Address, Instance, Interface},
    api::Api,
};
use super::{
    Accepted, Bears, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, OwnVm, POD_VM, Pages,
    ParsedId, Provider, Stage, Vm,
    cloud::{AdaptorVolume, Cloud, InstanceTypeKey, Opening, VolumeSource},
    http::{Failure, Query, Signed},
    region_place::RegionPlace,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    instance_type: Some(InstanceTypeKey { name: "PODVM_INSTANCE_TYPE", overruled_by: Some("INSTANCE_TYPE") }),
    volumes: &[AdaptorVolume {
        name: "rrsa-oidc-token",
        path: "/var/run/secrets/ack.alibabacloud.com/rrsa-tokens",
        source: VolumeSource::Token { audience: "sts.aliyuncs.com", file: "token" },
    }],
    ..Cloud::new("alibabacloud", Settings::KEYS, settings::check, instance, open)
};

/// A RAM policy with the rights that deletions need.
pub const POLICY: &str = include_str!("policy.json");

/// How long ECS needs at least to delete an instance.
const DELETION: Duration = Duration::from_secs(10);

/// How long it takes at least until an address is free, or what remains is gone.
const REMAINS: Duration = Duration::from_secs(2);

/// The start of the name of an interface that cloud-api-adaptor adds to an instance. The instance's identifier follows.
const INTERFACE_NAME: &str = "peerpod-nic-";

/// The start of the name of an address that the operator has to release. The instance's identifier follows.
const ADDRESS_NAME: &str = "peerpod-eip-";

/// How the identifiers of elastic addresses begin.
const ADDRESS: &str = "eip-";

/// How many things a page of a list may have: as many as all services allow.
const PAGE: &str = "100";

/// One region of one account.
struct Alibaba(Signed<Api>);

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let place = opening.place(settings::check(values), "region of Alibaba Cloud", RegionPlace::recorded)?;
    Ok(Box::new(Alibaba(Signed::new(Api::new(&Settings::read(values), place)?, opening))))
}

fn instance(raw: &str) -> Result<ParsedId, IdProblem> {
    let number = raw.strip_prefix("i-").unwrap_or_default();
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (8..=40).contains(&number.len()) && number.bytes().all(is_part) {
        return Ok(ParsedId::unscoped(raw));
    }
    Err(IdProblem::Malformed { expected: "an instance's identifier (i-…)", hint: None })
}

impl Alibaba {
    fn region(&self) -> (&'static str, &str) {
        ("RegionId", &self.0.api.place.region)
    }

    async fn instances(
        &self,
        doing: &'static str,
        filter: (&'static str, &str),
    ) -> Result<Vec<Instance>, Error> {
        let parameters = [self.region(), ("MaxResults", PAGE), filter];
        let query = Query::new(doing, "DescribeInstances", &parameters);
        Ok(self.0.all(query, |page| page.list("/Instances/Instance")).await?)
    }

    async fn pod_vms(&self) -> Result<Vec<Instance>, Error> {
        let pod_vms = format!("{POD_VM}*");
        let mut instances = self.instances("listing the instances", ("InstanceName", &pod_vms)).await?;
        instances.retain(|instance| instance.name.starts_with(POD_VM));
        Ok(instances)
    }

    async fn interfaces(&self, filter: (&str, &str)) -> Result<Vec<Interface>, Error> {
        let parameters = [self.region(), ("MaxResults", PAGE), filter];
        let query = Query::new("looking for interfaces", "DescribeNetworkInterfaces", &parameters);
        Ok(self.0.all(query, |page| page.list("/NetworkInterfaceSets/NetworkInterfaceSet")).await?)
    }

    /// The addresses that cloud-api-adaptor made.
    async fn addresses(&self, filter: &[(&str, &str)]) -> Result<Vec<Address>, Error> {
        let parameters = [&[self.region(), ("PageSize", PAGE)], filter].concat();
        let query = Query::new("looking for addresses", "DescribeEipAddresses", &parameters);
        let mut addresses: Vec<Address> =
            self.0.all(query, |page| page.list("/EipAddresses/EipAddress")).await?;
        addresses.retain(Address::is_adaptors);
        Ok(addresses)
    }

    /// The instance with this identifier, if the list of instances has it.
    async fn find(&self, id: &InstanceId) -> Result<Option<Instance>, Error> {
        let ids = format!("[\"{id}\"]");
        let found = self.instances("reading the instance", ("InstanceIds", &ids)).await?.into_iter().next();
        if found.as_ref().is_none_or(|instance| instance.id == id.as_str()) {
            return Ok(found);
        }
        Err(Error::new(ErrorClass::Transient, "ECS answered with another instance"))
    }

    /// Asks for the instance itself, which the list does not have. Returns ECS' statement that there is none.
    async fn missing(&self, id: &InstanceId) -> Result<Error, Error> {
        // Alibaba Cloud's own library has no parameter for the region here and for DeleteInstance.
        let (doing, action) = ("asking whether the instance exists", "DescribeInstanceAttribute");
        match self.0.call(Query::new(doing, action, &[("InstanceId", id.as_str())])).await {
            Err(Failure { error, .. }) if error.class == ErrorClass::NotFound => Ok(error),
            Err(failure) => Err(failure.error),
            Ok(_) => {
                let message = "ECS has the VM, but its list of instances does not show it: the credentials may lack \
                               ecs:DescribeInstances for it";
                Err(Error::new(ErrorClass::Transient, message))
            }
        }
    }

    /// Interfaces and addresses whose name has the identifier of an instance, and the addresses of these interfaces. Addresses come
    /// first.
    async fn belongings(&self, id: &InstanceId) -> Result<Vec<String>, Error> {
        let name = format!("{INTERFACE_NAME}{id}");
        let mut interfaces = self.interfaces(("NetworkInterfaceName", &name)).await?;
        interfaces.retain(|interface| interface.name == name);
        let name = format!("{ADDRESS_NAME}{id}");
        let mut addresses = self.addresses(&[("EipName", &name)]).await?;
        addresses.retain(|address| address.name == name);
        for Interface { id, .. } in &interfaces {
            let on_it = [("AssociatedInstanceId", &**id), ("AssociatedInstanceType", "NetworkInterface")];
            addresses.extend(self.addresses(&on_it).await?.into_iter().filter(|it| it.user == *id));
        }
        let mut belongings: Vec<_> = addresses.into_iter().map(|address| address.id).collect();
        belongings.sort_unstable();
        belongings.dedup();
        belongings.extend(interfaces.into_iter().map(|interface| interface.id));
        Ok(belongings)
    }

    /// Changes something that belongs to a VM. If it does not exist, there is nothing to change.
    async fn change(
        &self,
        doing: &'static str,
        action: &'static str,
        parameters: &[(&str, &str)],
    ) -> Result<(), Error> {
        let parameters = [&[self.region()], parameters].concat();
        match self.0.call(Query::new(doing, action, &parameters)).await {
            Err(Failure { error, .. }) if error.class != ErrorClass::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives an address a name by which the operator finds it when it no longer has an interface.
    async fn name_address(&self, address: &str, id: &InstanceId) -> Result<(), Error> {
        let name = format!("{ADDRESS_NAME}{id}");
        let parameters = [("AllocationId", address), ("Name", &name)];
        self.change("naming an elastic address", "ModifyEipAddressAttribute", &parameters).await
    }

    /// Releases an address of a deleted VM, or takes one step towards that. Returns whether to look at it again.
    async fn release(&self, id: &str, vm: &Vm) -> Result<bool, Error> {
        let of_it = ("AllocationId", id);
        let addresses = self.addresses(&[of_it]).await?;
        let Some(address) = addresses.iter().find(|it| it.id == id) else { return Ok(false) };
        match address.status.as_str() {
            // Nothing else shows its owner.
            "Available" if address.name != format!("{ADDRESS_NAME}{}", vm.id) => Ok(false),
            "Available" => self
                .change("releasing an elastic address", "ReleaseEipAddress", &[of_it])
                .await
                .map(|()| false),
            "InUse" if vm.belongings.contains(&address.user) => {
                self.name_address(id, &vm.id).await?;
                let from = [of_it, ("InstanceId", &*address.user), ("InstanceType", "NetworkInterface")];
                let doing = "taking an elastic address from its interface";
                self.change(doing, "UnassociateEipAddress", &from).await.map(|()| true)
            }
            "InUse" => Err(Error::address_in_use(&format!("{id}, used by {}", address.user))),
            _ => Ok(true),
        }
    }

    async fn delete_remains(&self, vm: &Vm) -> Result<Accepted, Error> {
        let (addresses, interfaces): (Vec<_>, Vec<_>) =
            vm.belongings.iter().partition(|id| id.starts_with(ADDRESS));
        let mut is_under_way = false;
        for address in addresses {
            is_under_way |= self.release(address, vm).await?;
        }
        for interface in interfaces.into_iter().filter(|_| !is_under_way) {
            let parameters = [("NetworkInterfaceId", interface.as_str())];
            self.change("deleting an interface", "DeleteNetworkInterface", &parameters).await?;
        }
        Ok(Accepted::after(REMAINS))
    }
}

#[async_trait]
impl Provider for Alibaba {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let Some(instance) = self.find(id).await? else {
            let gone = self.missing(id).await?;
            let belongings = self.belongings(id).await?;
            if belongings.is_empty() {
                return Err(gone);
            }
            return Ok(Vm { belongings, stage: Stage::Remains(Bears::Id), ..Vm::named(id.clone(), "") });
        };
        if instance.is_locked_for_security() {
            let message = "ECS has locked the VM for security reasons; its deletion would delete all disks, also those \
                           that are to stay: delete it by hand";
            return Err(Error::new(ErrorClass::Refused, message));
        }
        let may_have = instance.stage() == Stage::Present && instance.has_further_interfaces();
        let belongings = if may_have { self.belongings(id).await? } else { Vec::new() };
        Ok(Vm { belongings, ..list::vm(instance).described(id) })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let vm = vm.vm();
        if let Stage::Remains(_) = vm.stage {
            return self.delete_remains(vm).await;
        }
        for address in vm.belongings.iter().filter(|id| id.starts_with(ADDRESS)) {
            self.name_address(address, &vm.id).await?;
        }
        let parameters = [("Force", "true"), ("InstanceId", vm.id.as_str())];
        let (doing, action, accepted) =
            ("deleting the instance", "DeleteInstance", Accepted::after(DELETION));
        match self.0.call(Query::new(doing, action, &parameters)).await {
            // ECS may refuse a second deletion while the first one is under way.
            Err(Failure { error, .. }) if error.class == ErrorClass::Transient => {
                let found = self.find(&vm.id).await?;
                let is_leaving = found.is_some_and(|instance| instance.stage() == Stage::Leaving);
                if is_leaving { Ok(Accepted { may_only_stop: true, ..accepted }) } else { Err(error) }
            }
            answer => Ok(answer.map(|_| accepted)?),
        }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.list_all(pages).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(Some(self.0.key().await?.identity.clone()))
    }

    fn most_at_once(&self) -> Option<usize> {
        self.0.api.client.most_at_once()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}
