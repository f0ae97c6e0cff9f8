//! From a Pod to the changes that make it a peer pod: a pure function.

use std::collections::BTreeMap;

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    marker::{COUNTED, Counted},
    quantity::{Amount, InvalidQuantity},
    sizing::{Demand, FIELDS, GPU, Role, size},
};
use crate::api::v1alpha1::Sizing;

/// The annotations by which cloud-api-adaptor chooses a VM: CPUs, memory in MiB, GPUs.
pub const ANNOTATIONS: [&str; 3] = [
    "io.katacontainers.config.hypervisor.default_vcpus",
    "io.katacontainers.config.hypervisor.default_memory",
    "io.katacontainers.config.hypervisor.default_gpus",
];

/// What the VM gives, and the node of the Pod need not.
pub(crate) const MOVED: [&str; 3] = ["cpu", "memory", GPU];

/// What the Pod as a whole can ask for that the VM gives.
pub(crate) const MOVED_OF_POD: [&str; 2] = ["cpu", "memory"];

/// Where containers say what they need.
const LISTS: [&str; 2] = ["requests", "limits"];

/// How Pods are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The runtime class of peer pods; others stay as they are.
    pub runtime_class: String,
    /// The extended resource of which a peer pod asks for one.
    pub extended_resource: String,
    /// How the size of the VM follows from the containers'.
    pub sizing: Sizing,
}

/// What of a Pod is looked at. Everything else in it is left as it is, known or not.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod {
    metadata: Option<Metadata>,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Metadata {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    runtime_class_name: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    resources: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    name: String,
    restart_policy: Option<String>,
    resources: Option<Value>,
}

/// What is to be done to a Pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mutation {
    /// The changes; none for a Pod that is no peer pod, that has no containers, or that was changed before.
    pub patch: Patch,
    /// What whoever makes the Pod should know; each is one line.
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
    /// They are not a map, or one of theirs is none.
    #[error("is not a map")]
    NoMap,
    /// They hold what is no quantity to ask for.
    #[error(transparent)]
    Quantity(#[from] InvalidQuantity),
}

/// The changes that make a Pod a peer pod: annotations tell the size of its VM, cpu, memory and GPUs go from its
/// containers, and the first container asks for one of the extended resource.
///
/// - A Pod of another runtime class, or without containers, is left as it is.
/// - An annotation that is there and was not written here is the user's, and stays.
/// - What was changed here before and is shown again stays as it is. What was added to it in between is counted, too:
///   the annotation [`COUNTED`] tells the containers that were counted before. What these ask for again (the API server
///   fills in a `LimitRange`'s defaults) is taken away and not counted.
/// - Of the extended resource there is one in the end, whatever the Pod asked for.
/// - By [`Sizing::Sum`] the resources of the Pod as a whole are neither counted nor moved.
pub fn mutate(pod: &Pod, options: &Options) -> Result<Mutation, InvalidPod> {
    let containers = pod.spec.containers.as_deref().unwrap_or_default();
    if pod.spec.runtime_class_name.as_ref() != Some(&options.runtime_class) || containers.is_empty() {
        return Ok(Mutation::default());
    }
    let mut changes = Changes::default();
    let annotations = pod.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    let before = annotations.and_then(|annotations| annotations.get(COUNTED)).and_then(|text| {
        let counted = Counted::parse(text);
        if counted.is_none() {
            changes
                .warnings
                .push(format!("the annotation {COUNTED} is not as it was written, and is ignored"));
        }
        counted
    });
    let before = before.unwrap_or_default();

    let mut after = Counted::default();
    let mut demands = Vec::with_capacity(containers.len());
    let mut refilled = false;
    let init_containers = pod.spec.init_containers.as_deref().unwrap_or_default();
    for (list, group) in [("initContainers", init_containers), ("containers", containers)] {
        for (index, container) in group.iter().enumerate() {
            let place = || format!("spec.{list}[{index}].resources");
            let found = demand(container.resources.as_ref(), &place)?.with_default_requests();
            let known = before.demand(&container.name);
            refilled |= known.is_some() && found != Demand::default();
            let demand = known.unwrap_or(found);
            demands.push((container.role(list), demand));
            after.containers.push((container.name.clone(), demand));
            let own = options.extended_resource.as_str();
            let moves = |resource: &str| MOVED.contains(&resource) || resource == own;
            let asks_for = (list == "containers" && index == 0).then_some(own);
            if let Some(resources) = rid_of(container.resources.as_ref(), moves, asks_for) {
                changes.set(&["spec", list, &index.to_string(), "resources"], resources);
            }
        }
    }
    if refilled {
        changes.warnings.push(REFILLED.to_owned());
    }

    let whole = pod.spec.resources.as_ref();
    let found = demand(whole, &|| "spec.resources".to_owned())?;
    let asked = found != Demand::default();
    if options.sizing == Sizing::Kubernetes {
        after.pod = before.pod.or(asked.then_some(found));
        if let Some(resources) = rid_of(whole, |resource| MOVED_OF_POD.contains(&resource), None) {
            changes.set(&["spec", "resources"], resources);
        }
    } else if asked {
        changes.warnings.push(POD_LEVEL_STAYS.to_owned());
    }

    let size = size(options.sizing, &demands, after.pod.unwrap_or_default());
    changes.annotate(pod.metadata.as_ref(), &before, after, [size.vcpus, size.memory, size.gpus]);
    Ok(Mutation { patch: Patch(changes.operations), warnings: changes.warnings })
}

// Clients show 256 characters of a warning. Of limits and quotas a webhook sees nothing else than what is filled in, and a
// namespace whose Pods must ask for cpu has mostly defaults, too: a warning in all others would only be in the way.
const REFILLED: &str = "a LimitRange gave containers of this peer pod cpu or memory again after these became the size of its VM: \
    taken away, not counted. A LimitRange with a min, or a ResourceQuota of cpu or memory, refuses peer pods: use another namespace";

const POD_LEVEL_STAYS: &str = "the resources of the Pod as a whole (spec.resources) are not counted where sizes are plain sums, \
    and are still charged to the node";

impl Container {
    fn role(&self, list: &str) -> Role {
        match (list, self.restart_policy.as_deref()) {
            ("containers", _) => Role::Container,
            (_, Some("Always")) => Role::Sidecar,
            _ => Role::Init,
        }
    }
}

/// What these resources ask for that becomes the VM's.
fn demand(resources: Option<&Value>, place: &dyn Fn() -> String) -> Result<Demand, InvalidPod> {
    let amount = |(list, resource): (&str, &str)| {
        let quantity = quantity(resources, list, resource);
        quantity.map_err(|(below, problem)| InvalidPod { path: place() + &below, problem })
    };
    let mut demand = Demand::default();
    for (amount_of, field) in demand.0.iter_mut().zip(FIELDS) {
        *amount_of = amount(field)?;
    }
    let [.., gpus] = &mut demand.0;
    *gpus = gpus.or(amount(("limits", GPU))?);
    Ok(demand)
}

/// One quantity, if it is there; else what is wrong where below these resources.
fn quantity(
    resources: Option<&Value>,
    list: &str,
    resource: &str,
) -> Result<Option<Amount>, (String, Problem)> {
    let fields = member(resources, list).map_err(|problem| (String::new(), problem))?;
    let text = match member(fields, resource).map_err(|problem| (format!(".{list}"), problem))? {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.parse(),
        // The API server reads numbers as well, and writes text.
        Some(Value::Number(number)) => number.to_string().parse(),
        Some(_) => Err(InvalidQuantity::Malformed),
    };
    text.map(Some).map_err(|problem| (format!(".{list}.{resource}"), problem.into()))
}

fn member<'a>(object: Option<&'a Value>, name: &str) -> Result<Option<&'a Value>, Problem> {
    match object {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(fields.get(name)),
        Some(_) => Err(Problem::NoMap),
    }
}

/// These resources without those that move to the VM, asking for one of `asks_for`; none if they are so already.
fn rid_of(resources: Option<&Value>, moves: impl Fn(&str) -> bool, asks_for: Option<&str>) -> Option<Value> {
    let before = resources.and_then(Value::as_object);
    let mut after = before.cloned().unwrap_or_default();
    for list in LISTS {
        if let Some(Value::Object(entries)) = after.get_mut(list) {
            let count = entries.len();
            entries.retain(|resource, _| !moves(resource));
            if entries.is_empty() && count > 0 {
                after.remove(list);
            }
        }
        if let Some(resource) = asks_for {
            let entries = after.entry(list).or_insert_with(|| Value::Object(Map::new()));
            if entries.is_null() {
                *entries = Value::Object(Map::new());
            }
            entries[resource] = "1".into();
        }
    }
    (before.unwrap_or(&Map::new()) != &after).then_some(Value::Object(after))
}

/// What is collected while a Pod is looked at.
#[derive(Default)]
struct Changes {
    operations: Vec<PatchOperation>,
    warnings: Vec<String>,
}

impl Changes {
    /// Adds a member to an object, or replaces the one of that name.
    fn set(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.operations.push(PatchOperation::Add(AddOperation { path, value }));
    }

    /// Writes the size and the marker, where they are not there already.
    fn annotate(
        &mut self,
        metadata: Option<&Metadata>,
        before: &Counted,
        mut after: Counted,
        size: [Option<u64>; 3],
    ) {
        let there = metadata.and_then(|metadata| metadata.annotations.as_ref());
        let current = |key: &str| there.and_then(|annotations| annotations.get(key));
        let mut changed: BTreeMap<&str, Option<String>> = BTreeMap::new();
        for (place, key) in ANNOTATIONS.into_iter().enumerate() {
            let written = before.written[place].map(|number| number.to_string());
            if current(key).is_some() && current(key) != written.as_ref() {
                // The user's.
                continue;
            }
            after.written[place] = size[place];
            changed.insert(key, size[place].map(|number| number.to_string()));
        }
        changed.insert(COUNTED, Some(after.to_string()));
        changed.retain(|key, value| current(key) != value.as_ref());

        if metadata.is_none() && !changed.is_empty() {
            self.set(&["metadata"], Value::Object(Map::new()));
        }
        if there.is_none() && !changed.is_empty() {
            self.set(&["metadata", "annotations"], Value::Object(Map::new()));
        }
        for (key, value) in changed {
            let path = ["metadata", "annotations", key];
            match value {
                Some(value) => self.set(&path, value.into()),
                None => self
                    .operations
                    .push(PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) })),
            }
        }
    }
}

#[cfg(test)]
mod tests;
