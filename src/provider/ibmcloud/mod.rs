//! IBM Cloud, virtual servers for VPC: a pod VM is an instance, whose boot volume and interfaces VPC deletes with it.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  the instance
//! delete    the instance
//! describe  the instance: it is being deleted, or there is none
//! ```
//!
//! cloud-api-adaptor gives an instance no address and no volume but its boot volume. Volumes that a user attached stay, unless the user
//! told VPC to delete them with the instance. The instance's status shows that it is being deleted, so a restart of the operator
//! forgets nothing.
//!
//! A list takes the tags from Global Search first, then the instances from VPC.
//!
//! # Which answers mean absence
//!
//! | answer | what it means here |
//! |---|---|
//! | 404 `not_found` in the recorded region, to a token of the recorded account that can read pod VMs | absence |
//! | the same while the settings name no region, and the nodes are no longer all in that one | nothing |
//! | the same to credentials that have read no pod VM of late in the resource group of the settings | nothing: VPC may hide what they may not see |
//! | any other error | nothing |

mod answer;
mod examine;
mod region;
mod search;
mod settings;
mod sight;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use operator_kit::Message;

pub use self::settings::Settings;
use self::{
    answer::{Instance, Page, accepted},
    region::Vpc,
    search::Search,
    sight::Sight,
};
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, IdProblem, InstanceId, OwnVm, POD_VM, Pages, ParsedId,
    Provider, Vm,
    cloud::{Cloud, InstanceTypeKey, Opening, RecordedPlace},
    error::release_advice,
    http::{Authorized, Call, MOST_PAGES, Reply, encoded, too_many_pages},
    ibm_iam::{self, Iam},
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    own_tag: Some(("IBMCLOUD_CLUSTER_ID", "coco-pod-vm")),
    instance_type: Some(InstanceTypeKey::new("IBMCLOUD_PODVM_INSTANCE_PROFILE_NAME")),
    volumes: &[ibm_iam::TOKEN],
    // Where the settings name no endpoint.
    cluster_permissions: region::PERMISSIONS,
    ..Cloud::new("ibmcloud", Settings::KEYS, settings::check, instance, open)
};

/// The actions of IAM that the operator needs, and no others. Lists alone need the last one, for tags.
pub const ACTIONS: [&str; 4] = [
    "is.instance.instance.read",
    "is.instance.instance.list",
    "is.instance.instance.delete",
    "global-search-tagging.resource.read",
];

/// The version of the API, by its date.
const VERSION: &str = "2025-01-07";

/// How long VPC needs at least to delete an instance.
const DELETION: Duration = Duration::from_secs(10);

/// How many instances a page of a list may have: as many as the API allows.
const PAGE: &str = "100";

/// How many of the listed pod VMs are read to prove the right to read. One of them may just have gone.
const MOST_READ: usize = 3;

/// One region of one account.
struct IbmCloud {
    api: Authorized<Iam>,
    search: Search,
    vpc: Vpc,
    sight: Sight,
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let address = opening.address(settings::check(values))?;
    let (vpc, recorded) = Vpc::new(&address, opening)?;
    let opening = Opening { recorded, ..opening.clone() };
    let Settings { api_key, profile, iam_endpoint, search_endpoint, resource_group, .. } =
        Settings::read(values);
    // It is not recorded which resource group the settings named with an earlier endpoint.
    let is_former = opening.recorded.as_ref().is_some_and(RecordedPlace::is_former);
    let group = resource_group.filter(|_| !is_former);
    Ok(Box::new(IbmCloud {
        api: Authorized::new(Iam::new(&iam_endpoint, api_key, profile, &opening)?)?,
        search: Search::new(&search_endpoint)?,
        vpc,
        sight: Sight::new(group),
    }))
}

fn instance(raw: &str) -> Result<ParsedId, IdProblem> {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if (1..=64).contains(&raw.len()) && raw.bytes().all(is_part) {
        return Ok(ParsedId::unscoped(raw));
    }
    Err(IdProblem::Malformed { expected: "an instance's identifier, such as 0717_1e09281b-…", hint: None })
}

impl IbmCloud {
    async fn call(
        &self,
        doing: &'static str,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<Reply, Error> {
        let query = [&[("generation", "2")], query, &[("version", VERSION)]].concat();
        let url = format!("{}/{path}?{}", self.vpc.base().await?, encoded(query));
        let call = Call::to(doing, method, &url)?.header("accept", "application/json")?;
        self.api.send(call).await
    }

    /// Reads the list of all instances page by page, until one is `enough`.
    async fn pages(
        &self,
        doing: &'static str,
        mut enough: impl FnMut(Vec<Instance>) -> Result<bool, Error> + Send,
    ) -> Result<(), Error> {
        let mut start: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let mut query = vec![("limit", PAGE)];
            query.extend(start.as_deref().map(|start| ("start", start)));
            let reply = accepted(self.call(doing, Method::GET, "instances", &query).await?)?;
            let page: Page = reply.json()?;
            start = page.next().map_err(|problem| reply.unreadable("list", problem))?;
            if enough(page.instances)? || start.is_none() {
                return Ok(());
            }
        }
        Err(too_many_pages(doing))
    }

    async fn find(&self, id: &str) -> Result<Instance, Error> {
        let path = format!("instances/{id}");
        let reply = accepted(self.call("reading the instance", Method::GET, &path, &[]).await?)?;
        let instance: Instance = reply.json()?;
        if instance.id != id {
            return Err(reply.unreadable("instance", "it has another identifier"));
        }
        self.sight.note(&instance);
        Ok(instance)
    }

    /// Fails unless the credentials can see pod VMs here. To other credentials VPC may answer as if there were none.
    async fn ensure_sight(&self) -> Result<(), Error> {
        // Boxed, as a future this large would be held twice.
        if self.sight.sees(Box::pin(self.shows_a_pod_vm())).await? {
            return Ok(());
        }
        let message = format!(
            "VPC shows neither the VM nor any other pod VM{}: either the VM is gone, or the credentials may not see it; give them {}, or, \
             if the VM is gone, {}",
            self.sight.place(),
            ACTIONS[..3].join(", "),
            release_advice()
        );
        Err(Error::new(ErrorClass::Unauthorized, Message::public(message)))
    }

    async fn shows_a_pod_vm(&self) -> Result<bool, Error> {
        let mut ids = Vec::new();
        let look = |instances: Vec<Instance>| {
            let pod_vms = instances.into_iter().filter(|instance| self.sight.counts(instance));
            ids.extend(pod_vms.map(|instance| instance.id).take(MOST_READ));
            Ok(!ids.is_empty())
        };
        self.pages("looking for pod VMs", look).await?;
        self.reads_one_of(&ids).await
    }

    /// Whether VPC shows one of these listed instances by itself. The right to list is not the right to read, without which VPC may
    /// answer as if there were no instance.
    async fn reads_one_of(&self, ids: &[String]) -> Result<bool, Error> {
        for id in ids {
            match self.find(id).await {
                Err(gone) if gone.class == ErrorClass::NotFound => {}
                found => return found.map(|_| true),
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl Provider for IbmCloud {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let instance = match self.find(id.as_str()).await {
            Err(gone) if gone.class == ErrorClass::NotFound => {
                self.vpc.ensure_only().await?;
                self.ensure_sight().await?;
                return Err(gone);
            }
            instance => instance?,
        };
        // VPC shows no tags.
        Ok(instance.listed(Vec::new()).described(id))
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        let id = &vm.vm().id;
        let reply =
            self.call("deleting the instance", Method::DELETE, &format!("instances/{id}"), &[]).await?;
        let refused = match accepted(reply) {
            Err(refused) if refused.class == ErrorClass::Refused => refused,
            reply => return reply.map(|_| Accepted::after(DELETION)),
        };
        // VPC may refuse a second deletion while the first one is under way.
        let is_leaving = self.find(id.as_str()).await?.is_leaving();
        if is_leaving { Ok(Accepted::after(DELETION)) } else { Err(refused) }
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        // A caller may take a list without the VMs of another region for a proof that they do not exist.
        self.vpc.ensure_only().await?;
        let tags = self.search.tags(&self.api).await?;
        let take = |instances: Vec<Instance>| {
            let pod_vms = instances.into_iter().filter(|instance| instance.name.starts_with(POD_VM));
            let listed = pod_vms.map(|instance| {
                let tags = tags.of(&instance)?;
                Ok(instance.listed(tags))
            });
            pages(listed.collect::<Result<_, Error>>()?);
            Ok(false)
        };
        self.pages("listing the instances", take).await
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.vpc.identity(self.api.account().await?).await.map(Some)
    }

    fn most_at_once(&self) -> Option<usize> {
        self.api.most_at_once()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}
