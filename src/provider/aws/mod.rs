//! Amazon EC2: a pod VM is an instance whose tag `Name` is the VM's name.
//!
//! Requests of one deletion, each line one of them:
//!
//! ```text
//! describe  DescribeInstances
//! delete    TerminateInstances
//! describe  DescribeInstances: the instance is terminated
//!           DescribeTags: nothing bears its identifier
//! ```
//!
//! A look while the instance is being terminated is one request more. The tag `Name` of an elastic address or interface of its
//! own contains the instance's identifier. They are deleted after the instance: they can still be found then, also after a
//! restart of the operator. Volumes are deleted with the instance if they have `DeleteOnTermination`; any other volume is a
//! user's.
//!
//! # Which answers mean absence
//!
//! | answer | what it means here |
//! |---|---|
//! | an instance in the state `terminated`, and nothing with its identifier in a tag `Name` | absence |
//! | `InvalidInstanceID.NotFound`, and nothing with its identifier in a tag `Name` | absence: the region is recorded with the places, and the credentials are known to be of the account in which the VMs are |
//! | an empty list, and nothing with its identifier in a tag `Name` | absence, for the same reasons: so EC2 answers for an instance that it terminated long ago |
//! | a list that lacks the instance and is not empty | nothing |
//! | an instance without any tag | nothing: EC2 may not show the tags of a young one yet |
//! | any other error | nothing |

mod answer;
mod api;
mod credentials;
mod examine;
mod settings;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;

pub use self::settings::Settings;
use self::{
    answer::{Instance, is_used_beside},
    api::Api,
};
use super::{
    Accepted, Bears, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, Listed, OwnVm, POD_VM, Pages,
    ParsedId, Provider, Resource, Stage, Vm, VmRef,
    cloud::{Cloud, InstanceTypeKey, Opening},
    http::{Failure, Query, Signed, xml::Node},
    region_place::RegionPlace,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    instance_type: Some(InstanceTypeKey::new("PODVM_INSTANCE_TYPE")),
    ..Cloud::new("aws", Settings::KEYS, settings::check, instance, open)
};

/// An IAM policy with the rights that deletions need.
pub const POLICY: &str = include_str!("policy.json");

/// EC2's word for an instance that it does not know.
const INSTANCE_NOT_FOUND: &str = "InvalidInstanceID.NotFound";

/// EC2's word for what it does not do in the present state of an instance, and why that is.
const NOT_PERMITTED: &str = "OperationNotPermitted";
const PROTECTED: &str = "the instance may have termination protection: take that away";

/// How long an instance needs until it is terminated, at least.
const TERMINATION: Duration = Duration::from_secs(10);

/// How the identifiers of elastic addresses begin.
const ADDRESS: &str = "eipalloc-";

/// How the identifiers of interfaces begin.
const INTERFACE: &str = "eni-";

/// The start of the names of addresses and interfaces that cloud-api-adaptor makes. The instance's identifier follows.
const NAMES: [&str; 2] = ["eip-", "nic-"];

/// How many instances or tags a page of a list may have.
const PAGE: &str = "100";

/// How to read interfaces or addresses by identifier: what is being done, the action, its filter, and the list in its answer.
type Lookup = [&'static str; 4];

const INTERFACES: Lookup =
    ["reading interfaces", "DescribeNetworkInterfaces", "network-interface-id", "networkInterfaceSet"];
const ADDRESSES: Lookup = ["reading elastic addresses", "DescribeAddresses", "allocation-id", "addressesSet"];

/// One region of one account.
pub struct Aws(Signed<Api>);

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let place = opening.place(settings::check(values), "region of EC2", RegionPlace::recorded)?;
    Ok(Box::new(Aws(Signed::new(Api::new(&Settings::read(values), place)?, opening))))
}

fn instance(raw: &str) -> Result<ParsedId, IdProblem> {
    let number = raw.strip_prefix("i-").unwrap_or_default();
    let is_number = matches!(number.len(), 8 | 17) && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let malformed = IdProblem::Malformed { expected: "an instance's identifier (i-…)", hint: None };
    if is_number { Ok(ParsedId::unscoped(raw.to_ascii_lowercase())) } else { Err(malformed) }
}

impl Aws {
    /// Pages of the instances that are named like pod VMs and are not terminated.
    async fn instances(&self, pages: Pages<'_>) -> Result<(), Error> {
        let pod_vms = format!("{POD_VM}*");
        let parameters = [
            ("Filter.1.Name", "tag:Name"),
            ("Filter.1.Value.1", &*pod_vms),
            ("Filter.2.Name", "instance-state-name"),
            ("Filter.2.Value.1", "pending"),
            ("Filter.2.Value.2", "running"),
            ("Filter.2.Value.3", "stopping"),
            ("Filter.2.Value.4", "stopped"),
            ("Filter.2.Value.5", "shutting-down"),
            ("MaxResults", PAGE),
        ];
        let query = Query::new("listing the instances", "DescribeInstances", &parameters);
        let listed = self.0.pages(query, |page| {
            let made = page.list("reservationSet", Instance::of)?;
            pages(made.into_iter().flatten().map(|instance| instance.vm).collect());
            Ok(())
        });
        Ok(listed.await?)
    }

    /// What bears this identifier in its name: interfaces and elastic addresses that cloud-api-adaptor made, in the order of their
    /// deletion, as an interface may hold an address.
    async fn remains(&self, id: &InstanceId) -> Result<Vec<String>, Error> {
        let ids = self.tagged(id.as_str()).await?.into_iter().map(|tagged| tagged.id);
        let (interfaces, addresses): (Vec<_>, Vec<_>) = ids.partition(|id| id.starts_with(INTERFACE));
        // The list may show the tag of a deleted resource for a while.
        let interface = |item: &Node| item.non_empty("networkInterfaceId");
        let mut remains = self.filtered(INTERFACES, &interfaces, interface).await?;
        let address = |item: &Node| item.non_empty("allocationId");
        remains.extend(self.filtered(ADDRESSES, &addresses, address).await?);
        Ok(remains)
    }

    /// Those of these that exist, as `read` reads them. By a filter, it is no error if one of them is gone.
    async fn filtered<T>(
        &self,
        [doing, action, filter, list]: Lookup,
        ids: &[String],
        read: impl Fn(&Node) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> = (1..=ids.len()).map(|number| format!("Filter.1.Value.{number}")).collect();
        let values = names.iter().zip(ids).map(|(name, id)| (&**name, &**id));
        let parameters: Vec<_> = [("Filter.1.Name", filter)].into_iter().chain(values).collect();
        Ok(self.0.all(Query::new(doing, action, &parameters), |page| page.list(list, &read)).await?)
    }

    /// The addresses and interfaces whose tags `Name` name this instance, or one that matches this pattern.
    async fn tagged(&self, instance: &str) -> Result<Vec<Listed>, Error> {
        let [address, interface] = NAMES.map(|begin| format!("{begin}{instance}"));
        let parameters = [
            ("Filter.1.Name", "key"),
            ("Filter.1.Value.1", "Name"),
            ("Filter.2.Name", "value"),
            ("Filter.2.Value.1", &*address),
            ("Filter.2.Value.2", &*interface),
            ("MaxResults", PAGE),
        ];
        let query = Query::new("looking for addresses and interfaces", "DescribeTags", &parameters);
        let mut tagged = self.0.all(query, |page| page.list("tagSet", side_resource)).await?;
        tagged.retain(|it| [ADDRESS, INTERFACE].iter().any(|kind| it.id.starts_with(kind)));
        Ok(tagged)
    }

    async fn delete_remains(&self, vm: &Vm, remains: &str) -> Result<(), Error> {
        let (doing, action, parameter) = if remains.starts_with(INTERFACE) {
            ("deleting an interface", "DeleteNetworkInterface", "NetworkInterfaceId")
        } else {
            self.ensure_unused(vm, remains).await?;
            ("releasing an elastic address", "ReleaseAddress", "AllocationId")
        };
        match self.0.call(Query::new(doing, action, &[(parameter, remains)])).await {
            // A deletion aims at absence.
            Err(Failure { code, error }) if !code.ends_with(".NotFound") => Err(error),
            _ => Ok(()),
        }
    }

    /// Fails if something else uses this elastic address. EC2 takes it from the terminated instance itself, and in a default VPC a release
    /// would take it from whatever uses it.
    async fn ensure_unused(&self, vm: &Vm, address: &str) -> Result<(), Error> {
        let is_used = |item: &Node| Some(is_used_beside(vm, item));
        let found = self.filtered(ADDRESSES, &[address.to_owned()], is_used).await?;
        if found.contains(&true) { Err(Error::address_in_use(address)) } else { Ok(()) }
    }
}

/// The instance, if EC2 shows a tag of it. cloud-api-adaptor gives the tags in the request that makes the instance, but EC2 may show
/// a young one without them. Without a name it would count as a VM of another, and nothing would ask for it again. If it never has
/// a tag, a person must act.
fn ensure_tagged(instance: Listed) -> Result<Listed, Error> {
    if instance.tags.is_empty() {
        let message = "EC2 shows the instance without any tag; the operator asks again, as EC2 may not show the tags of a young one yet";
        return Err(Error::new(ErrorClass::Refused, message));
    }
    Ok(instance)
}

/// What a tag `Name` is on that names an instance by its identifier.
fn side_resource(tag: &Node) -> Option<Listed> {
    let (id, key, name) =
        (tag.non_empty("resourceId")?, tag.non_empty("key")?, tag.exact_of("value").unwrap_or_default());
    let kind = if id.starts_with(INTERFACE) { Resource::Interface } else { Resource::Address };
    let of = NAMES.iter().find_map(|begin| name.strip_prefix(begin));
    let vm = of.and_then(|id| instance(id).ok()).map(|id| VmRef::Id(id.canonical));
    Some(Listed { vm, tags: vec![(key, name.to_owned())], ..Listed::new(kind, id, name) })
}

#[async_trait]
impl Provider for Aws {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let parameters = [("InstanceId.1", id.as_str())];
        let query = Query::new("reading the instance", "DescribeInstances", &parameters);
        let gone = match self.0.all(query, |page| page.list("reservationSet", Instance::of)).await {
            Err(Failure { code, error }) if code == INSTANCE_NOT_FOUND => error,
            Ok(made) if made.is_empty() => {
                Error::new(ErrorClass::NotFound, "EC2 shows no instance with this identifier")
            }
            made => match made?.into_iter().flatten().find(|it| it.vm.id == id.as_str()) {
                Some(instance) if instance.is_terminated => {
                    Error::new(ErrorClass::NotFound, "the instance is terminated")
                }
                Some(instance) => return Ok(ensure_tagged(instance.vm)?.described(id)),
                None => {
                    let message = "EC2 answered with a list that lacks the instance, and is not empty";
                    return Err(Error::new(ErrorClass::Transient, message));
                }
            },
        };
        let belongings = self.remains(id).await?;
        if belongings.is_empty() {
            return Err(Error { class: ErrorClass::NotFound, ..gone });
        }
        Ok(Vm { belongings, stage: Stage::Remains(Bears::Id), ..Vm::named(id.clone(), "") })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let vm = vm.vm();
        if let Stage::Remains(_) = vm.stage {
            for remains in &vm.belongings {
                self.delete_remains(vm, remains).await?;
            }
            return Ok(Accepted::default());
        }
        let parameters = [("InstanceId.1", vm.id.as_str())];
        let query = Query::new("terminating the instance", "TerminateInstances", &parameters);
        match self.0.call(query).await {
            // This does not show that it is being deleted: a young VM may not be shown yet.
            Err(Failure { code, error }) if code == INSTANCE_NOT_FOUND => {
                Err(Error { class: ErrorClass::NotFound, ..error })
            }
            Err(Failure { code, error }) if code == NOT_PERMITTED => Err(error.advising(PROTECTED)),
            accepted => Ok(accepted.map(|_| Accepted::after(TERMINATION))?),
        }
    }

    /// Pages of instances, then a page of addresses and interfaces, whether or not their instances exist. EC2 still shows a
    /// terminated instance for an hour; the list leaves it out.
    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.instances(&mut *pages).await?;
        pages(self.tagged("i-*").await?);
        Ok(())
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
