//! The stored part of a node: a few hundred bytes of tens of thousands *(no client)*.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::Node as FullNode,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::Resource;
use operator_kit::{
    metadata,
    projection::{Part, Projection},
    quantity::Amount,
};
use serde::Deserialize;

use super::{
    super::{
        condition_view::{CONDITION, ConditionView, is_true},
        qualified::{self, is_domain, is_name},
    },
    taints::{self, TAINT, TaintView},
};

/// The annotation of a node on which this operator advertises an extended resource; its value is the resource. It survives when a
/// kubelet or a cloud-api-adaptor resets the resource. By it the operator finds nodes of former configurations, and leaves resources
/// alone that another program advertises.
pub const MARK: &str = "peerpods.confidentialcontainers.org/advertises";

/// The longest domain of an extended resource, in bytes.
const LONGEST_DOMAIN: usize = qualified::LONGEST_DOMAIN - "requests.".len();

/// The fields of a Node that the operator reads. Some nodes have hundreds of labels.
pub(super) static NODE: Projection = Projection {
    metadata: &[("annotations", Part::Only(&[(MARK, Part::All)])), ("labels", Part::All)],
    rest: &[
        ("spec", Part::Only(&[("taints", TAINT)])),
        (
            "status",
            Part::Only(&[("allocatable", Part::All), ("capacity", Part::All), ("conditions", CONDITION)]),
        ),
    ],
    most: 128 << 10,
};

/// The part of a Node that is decoded.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = FullNode)]
pub(super) struct NodeView {
    // Each node's kubelet may write it.
    #[serde(with = "metadata::Stored")]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: SpecView,
    #[serde(default)]
    pub(super) status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SpecView {
    pub(super) taints: Vec<TaintView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusView {
    pub(super) capacity: BTreeMap<String, Quantity>,
    pub(super) allocatable: BTreeMap<String, Quantity>,
    pub(super) conditions: Vec<ConditionView>,
}

/// The stored part of a node.
#[derive(Clone, Debug)]
pub struct Node {
    name: Arc<str>,
    uid: Box<str>,
    version: Option<u64>,
    /// Each as `key=value`: a key has no `=`.
    labels: Box<[Arc<str>]>,
    resources: Box<[(Arc<str>, Level)]>,
    mark: Option<Arc<str>>,
    /// Those that keep Pods off.
    taints: Box<[Arc<str>]>,
    is_ready: bool,
}

/// How much of an extended resource a node has. Numbers that this operator never writes, such as those beyond 32 bits, are
/// [`u32::MAX`], which is no share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// In `status.capacity`.
    pub capacity: Option<u32>,
    /// In `status.allocatable`, which is what the scheduler reads. A kubelet makes it from the capacity.
    pub allocatable: Option<u32>,
}

impl Level {
    /// The level of a node that advertises this many VMs, or none.
    pub fn of(vms: Option<u32>) -> Self {
        Self { capacity: vms, allocatable: vms }
    }

    /// How much the node advertises now, or as soon as its kubelet has followed.
    pub(super) fn largest(self) -> u32 {
        self.capacity.max(self.allocatable).unwrap_or(0)
    }
}

impl Node {
    pub(super) fn new(view: &NodeView, texts: &mut Texts) -> Self {
        let metadata = &view.metadata;
        let labels = metadata.labels.iter().flatten();
        let mark = metadata.annotations.as_ref().and_then(|all| all.get(MARK));
        let StatusView { capacity, allocatable, conditions } = &view.status;
        let mut resources = BTreeMap::<_, Level>::new();
        for (name, quantity) in capacity.iter().filter(|(name, _)| is_extended(name)) {
            resources.entry(name).or_default().capacity = Some(whole(quantity));
        }
        for (name, quantity) in allocatable.iter().filter(|(name, _)| is_extended(name)) {
            resources.entry(name).or_default().allocatable = Some(whole(quantity));
        }
        Self {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.as_deref().and_then(|version| version.parse().ok()),
            labels: labels.map(|(key, value)| texts.share(&format!("{key}={value}"))).collect(),
            resources: resources.into_iter().map(|(name, level)| (texts.share(name), level)).collect(),
            mark: mark.map(|mark| texts.share(mark)),
            taints: view.spec.taints.iter().filter_map(taints::text).map(|it| texts.share(&it)).collect(),
            is_ready: is_true(conditions, "Ready"),
        }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its uid, which a recreated node does not share.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find_map(|label| label.strip_prefix(key)?.strip_prefix('='))
    }

    /// How much of an extended resource it has.
    pub fn level(&self, resource: &str) -> Level {
        let found = self.resources.iter().find(|(name, _)| &**name == resource);
        found.map(|(_, level)| *level).unwrap_or_default()
    }

    /// The extended resource that this operator made it advertise. An annotation that names a resource of the node itself,
    /// such as its memory, is not this operator's.
    pub fn mark(&self) -> Option<&str> {
        self.mark.as_deref().filter(|mark| is_extended(mark))
    }

    /// Its lasting taints, each as `key=value:effect`.
    pub(super) fn taints(&self) -> &[Arc<str>] {
        &self.taints
    }

    /// Whether its kubelet reports that it is ready. Without that, the state of its Pods is unknown.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether a stored field differs, except for the version.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let Self { name, uid, version: _, labels, resources, mark, taints, is_ready } = self;
        (name, uid, labels, resources) != (&other.name, &other.uid, &other.labels, &other.resources)
            || (mark, taints, is_ready) != (&other.mark, &other.taints, &other.is_ready)
    }

    /// Whether this is a newer state of the same node than the other one. True where that is unknown.
    pub(super) fn supersedes(&self, other: &Self) -> bool {
        self.uid != other.uid || !matches!((self.version, other.version), (Some(a), Some(b)) if a < b)
    }
}

/// Texts that many nodes share, each stored once.
#[derive(Debug, Default)]
pub(super) struct Texts {
    all: HashSet<Arc<str>>,
    swept: usize,
}

impl Texts {
    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.all.get(text) {
            return known.clone();
        }
        // Unused texts are removed now and then, so their number stays below twice that of those in use.
        if self.all.len() >= 2 * self.swept.max(64) {
            self.all.retain(|text| Arc::strong_count(text) > 1);
            self.swept = self.all.len();
        }
        let text = Arc::<str>::from(text);
        self.all.insert(text.clone());
        text
    }
}

/// Whether a node can advertise such an extended resource, by Kubernetes' own rule: it has a domain, which is not
/// Kubernetes' own, and both are short enough for a quota of it, which is named `requests.` and its name.
pub(super) fn is_extended(resource: &str) -> bool {
    let Some((domain, name)) = resource.split_once('/') else { return false };
    !resource.contains("kubernetes.io/")
        && !domain.starts_with("requests.")
        && domain.len() <= LONGEST_DOMAIN
        && is_domain(domain)
        && is_name(name)
}

/// Reads the quantity of an extended resource, which is a whole number: the API server refuses others, and writes 1000 as 1k.
pub(super) fn whole(Quantity(text): &Quantity) -> u32 {
    let amount = text.parse::<Amount>().ok();
    amount.and_then(|it| u32::try_from(it.in_units_of(1)).ok()).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(super) mod tests;
