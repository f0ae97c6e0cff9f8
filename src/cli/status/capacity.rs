//! How many VMs nodes may run, and how many of them are taken *(no client)*.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use operator_kit::EventType;
use serde::Serialize;
use uuid::Uuid;

use super::problem::{Problem, Severity};
use crate::{
    api::v1alpha1::{Distribution, EXTENDED_RESOURCE, PeerPodConfig},
    peerpodconfig::{
        FINALIZER,
        capacity::{Node, NodeRequest, PodView, owners},
        conditions::{ConditionType, Reason},
    },
};

/// What Pods take of nodes.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// The node of each Pod, by the Pod's uid.
    pub(super) nodes: HashMap<Uuid, Arc<str>>,
    /// How much of each resource is taken on each node; `None`: the caller may not read all Pods.
    pub(super) taken: Option<HashMap<Arc<str>, HashMap<String, u32>>>,
    names: BTreeSet<Arc<str>>,
}

impl Usage {
    /// No Pod yet, for a part of the cluster or for all of it.
    pub(super) fn new(of_all: bool) -> Self {
        Self { taken: of_all.then(HashMap::new), ..Self::default() }
    }

    /// One more Pod.
    pub(super) fn add(&mut self, pod: &PodView, resources: &BTreeSet<String>) {
        let Some(node) = pod.node() else { return };
        let node = self.names.get(node).cloned().unwrap_or_else(|| node.into());
        self.names.insert(node.clone());
        if let Some(taken) = &mut self.taken {
            for resource in resources {
                let requested = pod.requested(resource);
                if requested > 0 {
                    let sum = taken.entry(node.clone()).or_default().entry(resource.clone()).or_default();
                    *sum = sum.saturating_add(requested);
                }
            }
        }
        if let Some(uid) = pod.uid().and_then(|uid| uid.parse().ok()) {
            self.nodes.insert(uid, node);
        }
    }

    fn of(&self, node: &str, resource: &str) -> Option<u32> {
        let taken = self.taken.as_ref()?;
        Some(taken.get(node).and_then(|it| it.get(resource)).copied().unwrap_or_default())
    }
}

/// The resources that stand for VMs.
pub(super) fn resources(configs: &[PeerPodConfig]) -> BTreeSet<String> {
    let named = configs.iter().map(|config| config.spec.admission.extended_resource.clone());
    named.chain([EXTENDED_RESOURCE.to_owned()]).collect()
}

/// One PeerPodConfig.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigRow {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The status of its condition `Ready`.
    pub(super) ready: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// The resource of which one unit is one VM.
    pub(super) resource: String,
    /// How many nodes are its own.
    pub(super) nodes: usize,
    pub(super) limit: Option<u32>,
    /// What the limit counts: `Total` or `PerNode`.
    pub(super) distribution: Distribution,
    /// How many VMs its nodes advertise.
    pub(super) advertised: u64,
    /// How many of them Pods take; null if the caller may not read all Pods.
    pub(super) used: Option<u64>,
    pub(super) free: Option<u64>,
    pub(super) created: Option<Timestamp>,
}

/// One node that advertises VMs, or that a PeerPodConfig selects.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) ready: bool,
    /// The PeerPodConfig that it belongs to.
    pub(super) config: Option<String>,
    pub(super) resource: String,
    /// How many VMs the scheduler may place there; null if the node advertises none.
    pub(super) advertised: Option<u32>,
    pub(super) used: Option<u32>,
    pub(super) free: Option<u32>,
    /// The most that its PeerPodConfig allows on one node, if it says so.
    pub(super) limit: Option<u32>,
}

/// The nodes, the fullest first. Each belongs to the configuration that the operator itself gives it.
pub(super) fn nodes(
    nodes: &[Arc<Node>],
    configs: &[PeerPodConfig],
    namespace: &str,
    usage: &Usage,
) -> Vec<NodeRow> {
    let honoured = configs.iter().filter(|it| it.namespace().as_deref() == Some(namespace));
    let requests: Vec<_> = honoured.map(NodeRequest::of).collect();
    let owners = owners(&requests, nodes);
    let row = |node: &Arc<Node>| self::node(node, owners.get(&**node.name()).copied(), usage);
    let mut rows: Vec<_> = nodes.iter().filter_map(row).collect();
    rows.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
    rows
}

/// First those that are not ready, then those that run more than they may, then the others by their free VMs.
fn key(row: &NodeRow) -> (bool, bool, u32) {
    (row.ready, !is_overfull(row), row.free.unwrap_or(u32::MAX))
}

/// Whether more runs there than the node advertises.
pub(super) fn is_overfull(row: &NodeRow) -> bool {
    row.used.is_some_and(|used| used > row.advertised.unwrap_or_default())
}

/// `owner`: the request of the configuration that it belongs to.
fn node(node: &Node, owner: Option<&NodeRequest>, usage: &Usage) -> Option<NodeRow> {
    let resource = owner.map(|it| &*it.resource).or(node.mark()).unwrap_or(EXTENDED_RESOURCE);
    let advertised = node.level(resource).allocatable;
    let used = usage.of(node.name(), resource);
    if owner.is_none() && advertised.is_none() && used.unwrap_or_default() == 0 {
        return None;
    }
    let per_node = owner.filter(|it| it.distribution == Distribution::PerNode);
    Some(NodeRow {
        name: node.name().as_ref().to_owned(),
        ready: node.is_ready(),
        config: owner.map(|it| it.name.clone()),
        resource: resource.to_owned(),
        advertised,
        used,
        free: used.map(|used| advertised.unwrap_or_default().saturating_sub(used)),
        limit: per_node.and_then(|it| it.limit.clone().ok().flatten()),
    })
}

/// The configurations, first those that are not ready.
pub(super) fn configs(configs: &[PeerPodConfig], nodes: &[NodeRow], namespace: &str) -> Vec<ConfigRow> {
    let mut rows: Vec<_> = configs.iter().map(|it| config(it, nodes, namespace)).collect();
    rows.sort_by(|a, b| {
        let key = |row: &ConfigRow| (row.ready == "True", row.created);
        key(a).cmp(&key(b)).then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
    });
    rows
}

fn config(config: &PeerPodConfig, nodes: &[NodeRow], namespace: &str) -> ConfigRow {
    let request = NodeRequest::of(config);
    let is_honoured = config.namespace().as_deref() == Some(namespace);
    let own = |row: &&NodeRow| is_honoured && row.config.as_ref() == Some(&request.name);
    let own: Vec<_> = nodes.iter().filter(own).collect();
    let sum =
        |of: fn(&NodeRow) -> Option<u32>| own.iter().map(|row| of(row).map(u64::from)).sum::<Option<u64>>();
    let ready = conditions(config).find(|it| it.type_ == ConditionType::Ready.as_str());
    ConfigRow {
        namespace: config.namespace().unwrap_or_default(),
        name: config.name_any(),
        ready: ready
            .filter(|_| unhandled(config).is_none())
            .map_or_else(|| "Unknown".to_owned(), |it| it.status.clone()),
        reason: ready.map(|it| it.reason.clone()).unwrap_or_default(),
        message: ready.map(|it| it.message.clone()).unwrap_or_default(),
        resource: request.resource,
        nodes: own.len(),
        limit: request.limit.ok().flatten(),
        distribution: request.distribution,
        advertised: own.iter().filter_map(|row| row.advertised).map(u64::from).sum(),
        used: sum(|row| row.used),
        free: sum(|row| row.free),
        created: request.created,
    }
}

/// What of a PeerPodConfig its conditions do not know yet.
fn unhandled(config: &PeerPodConfig) -> Option<&'static str> {
    let ready = conditions(config).find(|it| it.type_ == ConditionType::Ready.as_str())?;
    let is_deleting = config.metadata.deletion_timestamp.is_some();
    // Without its finalizer the operator has finished, and what holds the object is another program's.
    let holds = config.finalizers().iter().any(|it| it == FINALIZER);
    if is_deleting && holds && ready.reason != Reason::Deleting.as_str() {
        return Some("deletion");
    }
    (!is_deleting && ready.observed_generation < config.metadata.generation).then_some("last change")
}

/// The problems that a PeerPodConfig reports about itself, and that its conditions are outdated.
pub(super) fn problems(config: &PeerPodConfig) -> Vec<Problem> {
    let is_ready = |it: &Condition| it.type_ == ConditionType::Ready.as_str();
    // `Ready` repeats the reason of one of its parts, unless no part has it.
    let is_said = |ready: &Condition| conditions(config).any(|it| !is_ready(it) && it.reason == ready.reason);
    let reported = conditions(config).filter(|it| !(is_ready(it) && is_said(it))).filter_map(severity);
    let subject = format!("PeerPodConfig {}/{}", config.namespace().unwrap_or_default(), config.name_any());
    let problem = |(severity, condition): (Severity, &Condition)| {
        let Condition { type_, reason, message, .. } = condition;
        Problem { severity, subject: subject.clone(), text: format!("{type_}, {reason}: {message}") }
    };
    let outdated = unhandled(config).map(|what| Problem {
        severity: Severity::Warning,
        subject: subject.clone(),
        text: format!(
            "no operator has handled its {what} yet; if this lasts, none runs with the controller peerpodconfig"
        ),
    });
    reported.map(problem).chain(outdated).collect()
}

/// The severity of the problem that a condition reports, if it reports one.
fn severity(condition: &Condition) -> Option<(Severity, &Condition)> {
    // A type of a later version is taken for one that is present only while True.
    let known_type = ConditionType::ALL.into_iter().find(|it| it.as_str() == condition.type_);
    let expected = known_type.is_some_and(ConditionType::expected);
    let is_as_expected = (condition.status == "True") == expected;
    let known = Reason::named(&condition.reason);
    let is_warning = known.is_none_or(|reason| reason.event() == EventType::Warning);
    match (is_as_expected, is_warning) {
        (true, true) if known.is_some() => Some((Severity::Warning, condition)),
        (true, _) => None,
        (false, true) => Some((Severity::Error, condition)),
        (false, false) => Some((Severity::Warning, condition)),
    }
}

fn conditions(config: &PeerPodConfig) -> impl Iterator<Item = &Condition> {
    config.status.iter().flat_map(|status| &status.conditions)
}

#[cfg(test)]
mod tests;
