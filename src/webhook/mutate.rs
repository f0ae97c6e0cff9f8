//! From a Pod to the changes that make it a peer pod: a pure function.

mod patch;
mod read;

use std::collections::BTreeMap;

use operator_kit::quantity::InvalidQuantity;

use super::{
    marker::{COUNTED, Counted},
    sizing::{
        ANNOTATIONS, Demand, FIELDS, INSTANCE_TYPE, MOVED, MOVED_OF_POD, MOVED_PREFIX, Role, is_extended,
        is_ignored, size,
    },
};
use crate::api::v1alpha1::Sizing;
pub use patch::Patch;
use patch::Value;
pub(super) use read::Text;
use read::{Container, Containers, Metadata, Resources};
pub use read::{MOST_RESOURCES, Pod};

/// The fields in which containers state their needs.
const LISTS: [&str; 2] = ["requests", "limits"];

/// How Pods are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The runtime class of peer pods; others stay as they are.
    pub runtime_class: String,
    /// The extended resource of which a peer pod asks for one.
    pub extended_resource: String,
    /// How the containers' resources determine the size of the VM.
    pub sizing: Sizing,
}

/// The changes to a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutation<'a> {
    /// The changes; none for a Pod that is no peer pod, that has no containers, or that was changed before.
    pub patch: Patch<'a>,
    /// Warnings for the user who creates the Pod; each is one line.
    pub warnings: Vec<String>,
}

/// Why a Pod cannot be changed: the API server would refuse it as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} {problem}: correct the Pod")]
pub struct InvalidPod {
    /// Where, as in `spec.containers[0].resources.limits.cpu`.
    pub path: String,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with the resources of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// They have an invalid quantity.
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
    /// They are too many.
    #[error("has more than {MOST_RESOURCES} resources besides the VM")]
    TooMany,
}

/// The changes that make a Pod a peer pod: annotations contain the size of its VM, its containers no longer request what the VM
/// provides (cpu, memory, GPUs, ephemeral storage, hugepages), and the first container requests one of the extended resource.
///
/// - Ephemeral storage and hugepages are removed and not counted, as no annotation contains them.
/// - A Pod of another runtime class, or without containers, is not changed.
/// - An annotation that the webhook did not write is the user's, and stays.
/// - If the webhook changed the Pod in an earlier review, that stays. What was added in between is counted, too: the annotation
///   [`COUNTED`] names the containers that were counted before. What these request again (the API server fills in a
///   `LimitRange`'s defaults) is removed and not counted.
/// - In the end the Pod requests one of the extended resource, whatever it requested before.
/// - By [`Sizing::Sum`] the resources of the Pod as a whole are neither counted nor moved.
pub fn mutate<'p>(pod: &'p Pod<'p>, options: &'p Options) -> Result<Mutation<'p>, InvalidPod> {
    let containers = list_of(pod.spec.containers.as_ref());
    if !pod.is_of_class(&options.runtime_class) || containers.is_empty() {
        return Ok(Mutation::default());
    }
    let mut changes = Mutation::default();
    let annotations = pod.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    let before = annotations.and_then(|annotations| annotations.get(COUNTED)).map(Counted::parse);
    if before == Some(None) {
        let warning = format!("the webhook ignores the annotation {COUNTED}: another program changed it");
        changes.warnings.push(warning);
    }
    let before = before.flatten().unwrap_or_default();

    let mut after = Counted::default();
    let mut demands = Vec::with_capacity(containers.len());
    let mut refilled = false;
    let init_containers = list_of(pod.spec.init_containers.as_ref());
    for (list, group) in [("initContainers", init_containers), ("containers", containers)] {
        for (index, container) in group.iter().enumerate() {
            let vm_resource = options.extended_resource.as_str();
            let found = changes.move_container(list, index, container.resources.as_ref(), vm_resource)?;
            let known = before.demand(&container.name);
            refilled |= known.is_some() && asks_for_moved(container.resources.as_ref(), vm_resource);
            let demand = known.unwrap_or(found);
            demands.push((container.role(list), demand));
            after.containers.push((&container.name, demand));
        }
    }
    if refilled {
        changes.warnings.push(REFILLED.to_owned());
    }

    let whole = pod.spec.resources.as_ref();
    let found = demand(whole, &|| "spec.resources".to_owned())?;
    if options.sizing == Sizing::Kubernetes {
        let meant = found.without_derived_requests(&demands);
        after.pod = before.pod.or((meant != Demand::default()).then_some(meant));
        changes.move_resources("/spec/resources", whole, |resource| is_moved(&MOVED_OF_POD, resource), None);
    } else if found != Demand::default() {
        changes.warnings.push(POD_LEVEL_STAYS.to_owned());
    }

    let size = size(options.sizing, &demands, after.pod.unwrap_or_default());
    changes.annotate(pod.metadata.as_ref(), &before, after, size.parts());
    Ok(changes)
}

// Clients show 256 characters of a warning. A webhook sees limits and quotas only by the values that they fill in. A namespace
// whose Pods must request cpu usually has defaults, too: in all other namespaces a warning would only disturb.
const REFILLED: &str = "a LimitRange or another webhook added resources again that had moved to the VM; this webhook removed them, \
     and they do not count. A LimitRange with min, max or ratio of them, or a ResourceQuota of cpu or memory, rejects peer pods: \
     use another namespace";

const ONE_ALONE: &str = "this peer pod requests only one of cpu and memory: a cloud with instance types ignores it and uses \
     its default instance type; request both";

const POD_LEVEL_STAYS: &str = "with the sizing Sum, Pod-level resources (spec.resources) do not count for the VM's size, and stay \
     charged to the node";

fn is_moved(names: &[&str], resource: &str) -> bool {
    names.contains(&resource) || resource.starts_with(MOVED_PREFIX)
}

/// Whether these ask for a resource that the VM provides, besides the VM itself.
fn asks_for_moved(resources: Option<&Resources>, vm_resource: &str) -> bool {
    let moves = |resource: &str| is_moved(&MOVED, resource) && resource != vm_resource;
    LISTS.into_iter().any(|list| Resources::list(resources, list).iter().any(|(resource, _)| moves(resource)))
}

fn list_of<'p>(containers: Option<&'p Containers<'p>>) -> &'p [Container<'p>] {
    containers.map_or(&[], |Containers(list)| list)
}

impl Container<'_> {
    fn role(&self, list: &str) -> Role {
        match (list, self.restart_policy.as_deref()) {
            ("containers", _) => Role::Container,
            (_, Some("Always")) => Role::Sidecar,
            _ => Role::Init,
        }
    }
}

/// Refuses too many resources. A review must accept what an earlier one accepted and added the VM to.
fn few_resources(
    resources: Option<&Resources>,
    vm_resource: &str,
    place: &dyn Fn() -> String,
) -> Result<(), InvalidPod> {
    for list in LISTS {
        let entries = Resources::list(resources, list);
        if entries.len() > MOST_RESOURCES && !entries.iter().any(|(resource, _)| **resource == *vm_resource) {
            return Err(InvalidPod { path: format!("{}.{list}", place()), problem: Problem::TooMany });
        }
    }
    Ok(())
}

/// What these resources ask for that becomes the VM's.
fn demand(resources: Option<&Resources>, place: &dyn Fn() -> String) -> Result<Demand, InvalidPod> {
    let amount = |(list, resource): (&str, &str)| {
        let entries = Resources::list(resources, list);
        let found = entries.iter().find(|(name, _)| **name == *resource).map(|(_, amount)| amount.parse());
        found.transpose().map_err(|problem: InvalidQuantity| {
            let path = format!("{}.{list}.{resource}", place());
            InvalidPod { path, problem: problem.into() }
        })
    };
    let mut demand = Demand::default();
    for (amount_of, (list, resource)) in demand.0.iter_mut().zip(FIELDS) {
        *amount_of = amount((list, resource))?;
        if amount_of.is_none() && is_extended(resource) {
            *amount_of = amount(("limits", resource))?;
        }
    }
    Ok(demand)
}

impl<'p> Mutation<'p> {
    /// Moves these resources of a container to the VM. The Pod's first container requests the VM. Returns what they demand.
    fn move_container(
        &mut self,
        list: &str,
        index: usize,
        resources: Option<&'p Resources<'p>>,
        vm_resource: &'p str,
    ) -> Result<Demand, InvalidPod> {
        let path = || format!("spec.{list}[{index}].resources");
        few_resources(resources, vm_resource, &path)?;
        let found = demand(resources, &path)?.with_default_requests();
        let moves = |resource: &str| is_moved(&MOVED, resource) || resource == vm_resource;
        let asks_for = (list == "containers" && index == 0).then_some(vm_resource);
        self.move_resources(&format!("/spec/{list}/{index}/resources"), resources, moves, asks_for);
        Ok(found)
    }

    /// Removes the resources that move to the VM from those at `pointer`, and adds a request for one of `asks_for`. Each list is
    /// written only if it changes.
    fn move_resources(
        &mut self,
        pointer: &str,
        resources: Option<&'p Resources<'p>>,
        moves: impl Fn(&str) -> bool,
        asks_for: Option<&'p str>,
    ) {
        if resources.is_none() && asks_for.is_some() {
            self.patch.set(&[pointer], Value::Object(Vec::new()));
        }
        for list in LISTS {
            let entries = Resources::list(resources, list);
            let entries = || entries.iter().map(|(resource, amount)| (&**resource, &**amount));
            let one = asks_for.map(|resource| (resource, "1"));
            if entries().filter(|(resource, _)| moves(resource)).eq(one) {
                continue;
            }
            let after: Vec<_> = entries().filter(|(resource, _)| !moves(resource)).chain(one).collect();
            let path = [pointer, "/", list];
            if after.is_empty() {
                self.patch.remove(&path);
            } else {
                self.patch.set(&path, Value::Object(after));
            }
        }
    }

    /// Writes the size and the marker, where they are not there already.
    fn annotate(
        &mut self,
        metadata: Option<&Metadata>,
        before: &Counted,
        mut after: Counted,
        size: [Option<u64>; ANNOTATIONS.len()],
    ) {
        let there = metadata.and_then(|metadata| metadata.annotations.as_ref());
        let current = |key: &str| there.and_then(|annotations| annotations.get(key));
        let mut changed: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for (place, key) in ANNOTATIONS.into_iter().enumerate() {
            let written = before.written[place].map(|number| number.to_string());
            if current(key).is_some() && current(key) != written.as_deref() {
                // The user's.
                continue;
            }
            after.written[place] = size[place];
            changed.insert(key, size[place].map(|number| number.to_string()));
        }
        let will_be = |key: &str| changed.get(key).map_or(current(key).is_some(), Option::is_some);
        if is_ignored(ANNOTATIONS.map(will_be)) && current(INSTANCE_TYPE).is_none_or(str::is_empty) {
            self.warnings.push(ONE_ALONE.to_owned());
        }
        changed.insert(COUNTED, Some(after.to_string()));
        changed.retain(|key, value| current(key) != value.as_deref());

        if metadata.is_none() && !changed.is_empty() {
            self.patch.set(&["/metadata"], Value::Object(Vec::new()));
        }
        if there.is_none() && !changed.is_empty() {
            self.patch.set(&["/metadata/annotations"], Value::Object(Vec::new()));
        }
        for (key, value) in changed {
            let path = ["/metadata/annotations/", &key.replace('/', "~1")];
            match value {
                Some(value) => self.patch.set(&path, Value::Text(value.into())),
                None => self.patch.remove(&path),
            }
        }
    }
}

#[cfg(test)]
mod tests;
