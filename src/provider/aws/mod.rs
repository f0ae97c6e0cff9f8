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
//! | an answer without the instance and without an error | nothing: the next look tells more |
//! | any other error | nothing |

mod answer;
mod api;
mod credentials;
mod errors;
mod examine;
mod list;
mod metadata;
mod settings;
mod sign;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use operator_kit::Message;
use serde::de::DeserializeOwned;

pub use self::settings::Settings;
use self::{
    answer::{Addresses, Instances, Interfaces, Tag, Tags},
    api::Api,
};
use super::{
    Accepted, Bears, CLUSTER_UID_TAG, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, OwnVm, Pages,
    ParsedId, Provider, Stage, Vm,
    cloud::{Cloud, InstanceTypeKey, Opening},
    http::{Failure, Query},
    region_place::RegionPlace,
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    instance_type: Some(InstanceTypeKey::new("PODVM_INSTANCE_TYPE")),
    ..Cloud::new("aws", Settings::KEYS, Some(settings::check), instance, open)
};

/// An IAM policy with the rights that deletions need.
pub const POLICY: &str = include_str!("policy.json");

/// EC2's word for an instance that it does not know.
const INSTANCE_NOT_FOUND: &str = "InvalidInstanceID.NotFound";

/// How long an instance needs until it is terminated, at least.
const TERMINATION: Duration = Duration::from_secs(10);

/// How the identifiers of elastic addresses begin.
const ADDRESS: &str = "eipalloc-";

/// How the identifiers of interfaces begin.
const INTERFACE: &str = "eni-";

/// How many instances or tags a page of a list may have.
const PAGE: &str = "100";

/// One region of one account.
pub struct Aws(Api);

#[allow(clippy::needless_pass_by_value, reason = "every cloud is opened so")]
fn open(values: &Values, opening: Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let place = opening.place(settings::check(values), "region of EC2", RegionPlace::recorded)?;
    Ok(Box::new(Aws(Api::new(&Settings::read(values), place, &opening)?)))
}

fn instance(raw: &str) -> Result<ParsedId, IdProblem> {
    let number = raw.strip_prefix("i-").unwrap_or_default();
    let is_number = (8..=17).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_hexdigit());
    let malformed = IdProblem::Malformed { expected: "an instance's identifier (i-…)", hint: None };
    if is_number { Ok(ParsedId::unscoped(raw.to_ascii_lowercase())) } else { Err(malformed) }
}

impl Aws {
    /// What bears this identifier in its name: interfaces and elastic addresses that cloud-api-adaptor made, in the order of their
    /// deletion, as an interface may hold an address.
    async fn remains(&self, id: &InstanceId) -> Result<Vec<String>, Error> {
        let (address, interface) = (format!("eip-{id}"), format!("nic-{id}"));
        let names = [("Filter.2.Value.1", &*address), ("Filter.2.Value.2", &*interface)];
        let mut ids = Vec::new();
        self.tagged(&names, |tags| ids.extend(tags.into_iter().map(|tag| tag.resource_id))).await?;
        let (interfaces, addresses): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| id.starts_with(INTERFACE));
        // The list may show the tag of a deleted resource for a while.
        let mut remains = Vec::new();
        if !interfaces.is_empty() {
            let (doing, action) = ("reading interfaces", "DescribeNetworkInterfaces");
            let found: Interfaces = self.filtered(doing, action, "network-interface-id", &interfaces).await?;
            let found = found.network_interface_set.item.into_iter();
            remains.extend(found.map(|interface| interface.network_interface_id));
        }
        if !addresses.is_empty() {
            let (doing, action) = ("reading elastic addresses", "DescribeAddresses");
            let found: Addresses = self.filtered(doing, action, "allocation-id", &addresses).await?;
            remains.extend(found.addresses_set.item.into_iter().map(|address| address.allocation_id));
        }
        Ok(remains)
    }

    /// Those of these that exist. With a filter, unlike an identifier, it is no error if one of them is gone.
    async fn filtered<T: DeserializeOwned>(
        &self,
        doing: &'static str,
        action: &'static str,
        filter: &str,
        ids: &[String],
    ) -> Result<T, Error> {
        let names: Vec<_> = (1..=ids.len()).map(|number| format!("Filter.1.Value.{number}")).collect();
        let values = names.iter().zip(ids).map(|(name, id)| (&**name, &**id));
        let parameters: Vec<_> = [("Filter.1.Name", filter)].into_iter().chain(values).collect();
        Ok(self.0.call(Query { doing, action, parameters: &parameters }).await?)
    }

    /// Calls `pages` with the addresses and interfaces whose tag `Name` is one of these.
    async fn tagged(
        &self,
        names: &[(&str, &str)],
        mut pages: impl FnMut(Vec<Tag>) + Send,
    ) -> Result<(), Error> {
        let mut parameters = vec![
            ("Filter.1.Name", "key"),
            ("Filter.1.Value.1", "Name"),
            ("Filter.2.Name", "value"),
            ("MaxResults", PAGE),
        ];
        parameters.extend(names);
        let is_either = |tag: &Tag| [ADDRESS, INTERFACE].iter().any(|kind| tag.resource_id.starts_with(kind));
        let take = |tags: Tags| {
            pages(tags.tag_set.item.into_iter().filter(is_either).collect());
            tags.next_token
        };
        let (doing, action) = ("looking for addresses and interfaces", "DescribeTags");
        self.0.pages(Query { doing, action, parameters: &parameters }, take).await
    }

    async fn change(
        &self,
        doing: &'static str,
        action: &'static str,
        parameter: (&str, &str),
    ) -> Result<(), Failure> {
        self.0.call::<api::Done>(Query { doing, action, parameters: &[parameter] }).await.map(drop)
    }

    async fn delete_remains(&self, vm: &Vm, remains: &str) -> Result<(), Failure> {
        let deleted = if remains.starts_with(INTERFACE) {
            let interface = ("NetworkInterfaceId", remains);
            self.change("deleting an interface", "DeleteNetworkInterface", interface).await
        } else {
            self.ensure_unused(vm, remains).await?;
            let address = ("AllocationId", remains);
            self.change("releasing an elastic address", "ReleaseAddress", address).await
        };
        match deleted {
            // A deletion aims at absence.
            Err(Failure { code, .. }) if code.ends_with(".NotFound") => Ok(()),
            deleted => deleted,
        }
    }

    /// Fails if something else uses this elastic address. EC2 takes it from the terminated instance itself, and in a default VPC a release
    /// would take it from whatever uses it.
    async fn ensure_unused(&self, vm: &Vm, address: &str) -> Result<(), Error> {
        let (doing, action) = ("reading an elastic address", "DescribeAddresses");
        let found: Addresses = self.filtered(doing, action, "allocation-id", &[address.to_owned()]).await?;
        if !found.addresses_set.item.iter().any(|it| it.is_used_beside(vm.id.as_str(), &vm.belongings)) {
            return Ok(());
        }
        let public = "something else uses an elastic address of the VM; take the address from it, or give the address another name";
        Err(Error::new(ErrorClass::Refused, Message::new(public, format!("{public}: {address}"))))
    }
}

#[async_trait]
impl Provider for Aws {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let doing = "reading the instance";
        let parameters = [("InstanceId.1", id.as_str())];
        let query = Query { doing, action: "DescribeInstances", parameters: &parameters };
        let instances = self.0.call::<Instances>(query).await;
        let gone = match instances {
            Err(Failure { code, error }) if code == INSTANCE_NOT_FOUND => error,
            Err(failure) => return Err(failure.into()),
            Ok(instances) => match instances.all().find(|instance| instance.id == id.as_str()) {
                None => {
                    let message = "EC2 answered without the instance, and did not say that there is none";
                    return Err(Error::new(ErrorClass::Transient, message));
                }
                Some(instance) if instance.state.name != "terminated" => {
                    let leaving = instance.state.name == "shutting-down";
                    let stage = if leaving { Stage::Leaving } else { Stage::Present };
                    return Ok(Vm {
                        created: instance.created(),
                        stage,
                        cluster_uid: instance.tag(CLUSTER_UID_TAG).map(str::to_owned),
                        ..Vm::named(id.clone(), instance.name())
                    });
                }
                Some(_) => Error::new(ErrorClass::NotFound, "the instance is terminated"),
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
        let (doing, action) = ("terminating the instance", "TerminateInstances");
        match self.change(doing, action, ("InstanceId.1", vm.id.as_str())).await {
            // This does not show that it is being deleted: a young VM may not be shown yet.
            Err(Failure { code, error }) if code == INSTANCE_NOT_FOUND => {
                Err(Error { class: ErrorClass::NotFound, ..error })
            }
            accepted => Ok(accepted.map(|()| Accepted { look_after: TERMINATION })?),
        }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.list_all(pages).await
    }

    async fn host(&self) -> Result<Option<String>, Error> {
        self.0.host().await.map(Some)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}
