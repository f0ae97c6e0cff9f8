//! Google Compute Engine: a pod VM is an instance, whose disks Compute Engine deletes with it.
//!
//! Requests of one deletion:
//!
//! ```text
//! describe  the instance: by its path, or in all zones of the project by its name
//! delete    the instance: Compute Engine begins an operation and answers
//! describe  as before: it is stopping, or there is none
//! ```
//!
//! cloud-api-adaptor records a name without a zone, and its zone may have changed since. So the operator looks a name up in the
//! whole project. The instance's status shows the progress of the deletion, so a restart of the operator loses nothing.

mod answer;
mod credentials;
mod examine;
mod id;
mod settings;

use std::{mem, time::Duration};

use async_trait::async_trait;
use hyper::Method;
use operator_kit::Message;

pub use self::settings::Settings;
use self::{
    answer::{Instance, Operation, Page, accepted},
    credentials::Source,
};
use super::{
    Accepted, Claim, Error, ErrorClass, Finding, InstanceId, Listed, OwnVm, POD_VM, Pages, PowerState,
    Provider, Vm,
    cloud::{Cloud, InstanceTypeKey, Opening},
    http::{Authorized, Call, MOST_PAGES, Parameters, encoded, identity::is_safe, too_many_pages},
};
use crate::settings::Values;

/// What differs from other clouds.
pub static CLOUD: Cloud = Cloud {
    instance_type: Some(InstanceTypeKey::new("GCP_MACHINE_TYPE")),
    place: Some(settings::place),
    ..Cloud::new("gcp", Settings::KEYS, settings::check, id::parse, open)
};

/// A custom role with the permissions that deletions need, and no others.
pub const ROLE: &str = include_str!("role.yaml");

/// What is being done, for errors.
const LOOKING_UP: &str = "looking up the VM";
const LISTING: &str = "listing the VMs";

/// How long Compute Engine usually needs to stop and delete a VM.
const DELETION: Duration = Duration::from_secs(45);

/// The size and the fields of a page of all VMs. Without the fields, 250 VMs may exceed the longest body: the metadata of each may
/// have 512 KiB, of which a tenant writes a part. The fields are those of [`Page`], which shows by some of them that it lacks VMs.
const IN_PART: Parameters<'static> = &[
    ("maxResults", "250"),
    (
        "fields",
        "kind,nextPageToken,unreachables,warning/code,items/*/warning/code,\
         items/*/instances(name,status,creationTimestamp,labels)",
    ),
];

/// The size of a page of the VMs of one name: the API's own limit. The page has all fields, as it proves absence.
const WHOLE: Parameters<'static> = &[("maxResults", "500")];

/// One project.
struct Gcp {
    api: Authorized<Source>,
    /// The API's base URL, without a slash at the end.
    base: String,
    project: String,
}

fn open(values: &Values, opening: &Opening<'_>) -> Result<Box<dyn Provider>, Error> {
    let (base, project) = opening.place(settings::check(values), "project", recorded)?;
    Ok(Box::new(Gcp {
        api: Authorized::new(Source::new(Settings::read(values).credentials))?,
        base,
        project,
    }))
}

/// The base URL and the project of an address.
fn recorded(address: &str) -> Option<(String, String)> {
    let (base, project) = address.rsplit_once("/projects/")?;
    (is_safe(base) && id::is_project(project)).then(|| (base.to_owned(), project.to_owned()))
}

impl Gcp {
    /// A request by this method for what is at this path.
    fn request(&self, doing: &'static str, method: Method, path: &str) -> Result<Call, Error> {
        let elsewhere = !path.starts_with(&format!("projects/{}/", self.project));
        let call = Call::to(doing, method, &format!("{}/{path}", self.base))?;
        Ok(Call { elsewhere, ..call })
    }

    /// All VMs that are named like pod VMs.
    async fn pod_vms(&self) -> Result<Vec<Instance>, Error> {
        let filter = format!("name eq \"{POD_VM}.*\"");
        self.instances(LISTING, &[IN_PART, &[("filter", &*filter)]].concat()).await
    }

    /// Reads a list of all zones, with these parameters, to its last page.
    async fn instances(
        &self,
        doing: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Instance>, Error> {
        let mut all = Vec::new();
        let mut token = String::new();
        for _ in 0..MOST_PAGES {
            let mut page = self.page(doing, parameters, &token).await?;
            token = mem::take(&mut page.next_page_token);
            all.extend(page.into_instances(&self.project));
            if token.is_empty() {
                return Ok(all);
            }
        }
        Err(too_many_pages(doing))
    }

    /// Reads a page of a list of all zones. Fails if it may lack VMs, for instance because a zone is unreachable.
    async fn page(
        &self,
        doing: &'static str,
        parameters: Parameters<'_>,
        token: &str,
    ) -> Result<Page, Error> {
        let next = (!token.is_empty()).then_some(("pageToken", token));
        let query = encoded(parameters.iter().copied().chain(next));
        let path = format!("projects/{}/aggregated/instances?{query}", self.project);
        let reply = accepted(self.api.send(self.request(doing, Method::GET, &path)?).await?, None)?;
        let page: Page = reply.json()?;
        page.gap().map_or(Ok(page), |gap| Err(reply.unreadable("list of all zones", &gap)))
    }

    /// The VM. Fails with [`ErrorClass::NotFound`] if there is none.
    async fn find(&self, id: &InstanceId) -> Result<Instance, Error> {
        if id.scope().is_some() {
            return self.at(id.as_str()).await;
        }
        let filter = format!("name = \"{id}\"");
        let mut found = self.instances(LOOKING_UP, &[WHOLE, &[("filter", &*filter)]].concat()).await?;
        found.retain(|instance| instance.name == id.as_str());
        let Some(instance) = found.pop() else {
            let message = "the project has no VM of the recorded name in any zone";
            return Err(Error::new(ErrorClass::NotFound, message));
        };
        // A list that changes meanwhile may show a VM on two pages.
        if let Some(other) = found.into_iter().find(|it| it.path != instance.path) {
            let public =
                "several zones have a VM of the recorded name: delete by hand those that no Pod uses";
            let full = format!("{public}: {} and {}", instance.path, other.path);
            return Err(Error::new(ErrorClass::Refused, Message::new(public, full)));
        }
        Ok(instance)
    }

    /// The VM at this path. Fails with [`ErrorClass::NotFound`] if there is none.
    async fn at(&self, path: &str) -> Result<Instance, Error> {
        let call = self.request(LOOKING_UP, Method::GET, path)?;
        let instance: Instance = accepted(self.api.send(call).await?, Some(path))?.json()?;
        Ok(Instance { path: path.to_owned(), ..instance })
    }
}

/// What is known of these VMs. A VM's name is its identifier, as cloud-api-adaptor records nothing else. A deletion by a name in
/// several zones could delete a VM in any of them, so such a VM is listed by its path. It is deleted in its own zone or not at
/// all.
fn listed(mut vms: Vec<Instance>) -> Vec<Listed> {
    vms.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let of_one_name = |vms: &[Instance]| {
        let is_one = vms.iter().all(|vm| vm.path == vms[0].path);
        vms.iter().map(|vm| vm.listed(if is_one { &vm.name } else { &vm.path })).collect::<Vec<_>>()
    };
    vms.chunk_by(|a, b| a.name == b.name).flat_map(of_one_name).collect()
}

/// What a refused deletion of a VM in this state means. Compute Engine refuses a second deletion while the first one is under way.
/// Until the VM is stopped, its state does not say whether it is deleted then.
fn refused_in(state: PowerState, refused: Error) -> Result<Accepted, Error> {
    if state != PowerState::Leaving {
        return Err(refused);
    }
    Ok(Accepted { may_only_stop: true, ..Accepted::after(DELETION) })
}

#[async_trait]
impl Provider for Gcp {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let instance = self.find(id).await?;
        let described = instance.listed(id.as_str()).described(id);
        Ok(Vm { belongings: vec![instance.path], ..described })
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        // The VM that was described. By now another zone may have one of its name.
        let Some(path) = vm.vm().belongings.first() else {
            return Err(Error::new(ErrorClass::Transient, "the VM was described without its path"));
        };
        let call = self.request("deleting the VM", Method::DELETE, path)?;
        let reply = match accepted(self.api.send(call).await?, Some(path)) {
            Err(refused) if refused.class == ErrorClass::Refused => {
                return refused_in(self.at(path).await?.power(), refused);
            }
            reply => reply?,
        };
        match reply.json::<Operation>()?.error {
            None => Ok(Accepted::after(DELETION)),
            Some(error) => Err(reply.error("operation", &error.to_string(), Some(ErrorClass::Refused))),
        }
    }

    /// One page of all VMs, as only the last page of Compute Engine shows which names are in several zones.
    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        pages(listed(self.pod_vms().await?));
        Ok(())
    }

    fn most_at_once(&self) -> Option<usize> {
        self.api.most_at_once()
    }

    /// The place names the project, and each path has it.
    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.examination().await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_name_on_two_pages_of_one_zone_is_one_vm() {
        let found =
            [("zones/a", "x"), ("zones/a", "y"), ("zones/a", "x"), ("zones/b", "y"), ("zones/b", "z")];
        let instance = |(zone, name): (&str, &str)| Instance {
            path: format!("{zone}/{name}"),
            name: name.to_owned(),
            ..Instance::default()
        };
        let listed = listed(found.map(instance).into());
        let ids: HashSet<_> = listed.iter().map(|vm| (&*vm.name, &*vm.id)).collect();
        assert_eq!(ids, HashSet::from([("x", "x"), ("y", "zones/a/y"), ("y", "zones/b/y"), ("z", "z")]));
    }

    #[test]
    fn only_the_project_of_the_settings_may_pause_the_calls_to_the_cloud() {
        let api = Authorized::new(Source::new(None)).unwrap();
        let gcp = Gcp { api, base: "https://a".to_owned(), project: "peer-pods".to_owned() };
        for (path, elsewhere) in [
            ("projects/peer-pods/zones/z/instances/a", false),
            ("projects/peer-pods-2/zones/z/instances/a", true),
            ("projects/another/zones/z/instances/a", true),
        ] {
            assert_eq!(gcp.request(LOOKING_UP, Method::GET, path).unwrap().elsewhere, elsewhere, "{path}");
        }
    }

    #[test]
    fn a_deletion_that_is_refused_while_the_vm_stops_may_be_none() {
        let refused = || Error::new(ErrorClass::Refused, "not ready");
        let waits = refused_in(PowerState::Leaving, refused()).unwrap();
        assert!(waits.may_only_stop && waits.check_again_after == DELETION, "{waits:?}");
        assert_eq!(refused_in(PowerState::Stopped, refused()), Err(refused()));
    }
}
