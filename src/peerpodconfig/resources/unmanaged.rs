//! cloud-api-adaptors that a configuration does not manage: those of other configurations, and those that this operator did not
//! install. Two on one node would share its socket and port.

use std::fmt;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec},
};
use kube::ResourceExt as _;

use super::{CONFIG_LABEL, Names};
use crate::{
    api::v1alpha1::PeerPodConfig,
    peerpodconfig::selection::{Selection, holds},
};

/// The names in cloud-api-adaptor's own installations and in those of the controller that this operator replaces.
const NAMES: [&str; 2] = ["cloud-api-adaptor-daemonset", "peerpodconfig-ctrl-caa-daemon"];

/// The last part of every image's name, and the label `app` of the usual DaemonSet.
const ADAPTOR: &str = "cloud-api-adaptor";

/// A DaemonSet that conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The selected nodes that it runs on, in order.
    pub nodes: Vec<String>,
    /// The name of the other configuration that this operator created it for.
    pub of_config: Option<String>,
    /// Whether the controller that this operator replaces created it for this configuration.
    pub for_this: bool,
}

impl fmt::Display for Unmanaged {
    /// Names the conflict, and how to take over.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, nodes, of_config, for_this } = self;
        write!(f, "the DaemonSet {namespace}/{name}")?;
        match of_config {
            Some(config) => write!(f, " of PeerPodConfig {config}")?,
            None => f.write_str(", which this operator did not create,")?,
        }
        f.write_str(" runs cloud-api-adaptor on ")?;
        match &nodes[..] {
            [node] => write!(f, "the selected node {node}")?,
            nodes => {
                let first = nodes.first().map(String::as_str).unwrap_or_default();
                write!(f, "{} selected nodes, {first} among them", nodes.len())?;
            }
        }
        if let Some(config) = of_config {
            return write!(
                f,
                "; change the selectors so that no node is selected twice. If {config} is being deleted, \
                 the DaemonSet is deleted when its Pods have ended. If {config} no longer exists, run: \
                 kubectl --namespace {namespace} delete daemonset {name}"
            );
        }
        if *for_this {
            f.write_str(
                "; the controller that created it for this PeerPodConfig applies limit to each node since \
                 its v0.8.0; this operator applies limit to all nodes together, unless distribution is \
                 PerNode. To take over, stop that controller, otherwise it creates the DaemonSet again; end",
            )?;
        } else {
            f.write_str(". To take over, end")?;
        }
        write!(
            f,
            " the peer pods there, because their VMs lose their cloud-api-adaptor; then run: kubectl \
             --namespace {namespace} delete daemonset {name}"
        )
    }
}

/// The DaemonSets, except a configuration's own, that run cloud-api-adaptor on nodes that the configuration selects. One that is being
/// deleted counts until its Pods have ended. Taints do not count, because a taint may be removed later. `nodes`: the name of each, and
/// the value of each of its labels.
///
/// The operator adopts none, not even one that was created for this configuration: its selector cannot be changed, and replacing it
/// costs the VMs that it serves, so a person must decide when.
pub fn unmanaged_adaptors<'a, 'n, L: Fn(&str) -> Option<&'n str>>(
    daemon_sets: impl IntoIterator<Item = &'a DaemonSet>,
    config: &PeerPodConfig,
    nodes: impl IntoIterator<Item = (&'n str, L)>,
) -> Vec<Unmanaged> {
    // Selectors that Kubernetes does not accept select nothing.
    let selection = Selection::of(&config.spec);
    let is_selected =
        |(_, label): &(&'n str, L)| selection.as_ref().is_ok_and(|selection| selection.matches(label));
    let mut selected: Vec<_> = nodes.into_iter().filter(is_selected).collect();
    selected.sort_by_key(|(node, _)| *node);
    let nodes_of = |daemon_set: &DaemonSet| {
        let nodes = selected.iter().filter(|(node, label)| runs_on(daemon_set, node, label));
        nodes.map(|(node, _)| (*node).to_owned()).collect::<Vec<_>>()
    };
    let mut unmanaged: Vec<_> = daemon_sets
        .into_iter()
        .filter(|it| runs_anothers_adaptor(it, config))
        .map(|it| Unmanaged {
            namespace: it.namespace().unwrap_or_default(),
            name: it.name_any(),
            nodes: nodes_of(it),
            of_config: it.labels().get(CONFIG_LABEL).cloned(),
            for_this: it
                .owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == config.metadata.uid.as_ref()),
        })
        .filter(|it| !it.nodes.is_empty())
        .collect();
    unmanaged.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    unmanaged
}

/// The Pod of a DaemonSet's template.
pub(in crate::peerpodconfig) fn pod(daemon_set: &DaemonSet) -> Option<&PodSpec> {
    let spec: Option<&DaemonSetSpec> = (&daemon_set.spec).into();
    spec?.template.spec.as_ref()
}

/// Whether a DaemonSet says that it runs cloud-api-adaptor, whatever created it.
pub fn runs_adaptor(daemon_set: &DaemonSet) -> bool {
    let labels = daemon_set.labels();
    let images =
        || pod(daemon_set).into_iter().flat_map(|pod| &pod.containers).filter_map(|it| it.image.as_deref());
    labels.contains_key(CONFIG_LABEL)
        || NAMES.contains(&daemon_set.name_any().as_str())
        || labels.get("app").is_some_and(|app| app == ADAPTOR)
        || images().any(is_adaptor_image)
}

/// Whether an image is one of cloud-api-adaptor's.
pub fn is_adaptor_image(image: &str) -> bool {
    image.contains(ADAPTOR)
}

/// Whether a DaemonSet may take the socket or the port of a cloud-api-adaptor in this namespace, which is the operator's own. In any
/// other namespace, tenants may create DaemonSets with such a name, label or image. One of these counts only if it has Pods that use
/// the node's network or files, as every cloud-api-adaptor does. Pod security refuses such Pods, but not their DaemonSet.
pub fn may_conflict(daemon_set: &DaemonSet, namespace: Option<&str>) -> bool {
    let uses_node = |pod: &PodSpec| {
        pod.host_network == Some(true) || pod.volumes.iter().flatten().any(|it| it.host_path.is_some())
    };
    let is_own_namespace = || daemon_set.metadata.namespace.as_deref() == namespace;
    let runs_elsewhere = || has_pods(daemon_set) && pod(daemon_set).is_some_and(uses_node);
    runs_adaptor(daemon_set) && (is_own_namespace() || runs_elsewhere())
}

/// Whether it has a Pod on any node, also on one that it no longer selects.
pub fn has_pods(daemon_set: &DaemonSet) -> bool {
    let nodes =
        |status: &DaemonSetStatus| status.current_number_scheduled.saturating_add(status.number_misscheduled);
    daemon_set.status.as_ref().is_some_and(|status| nodes(status) > 0)
}

/// Whether a DaemonSet runs cloud-api-adaptor, on any nodes, and is not the configuration's own.
pub fn runs_anothers_adaptor(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    may_conflict(daemon_set, config.metadata.namespace.as_deref()) && !has_adaptor_name_of(daemon_set, config)
}

/// Whether it has the namespace and the name of the configuration's own DaemonSet. Its label and its owner do not matter.
fn has_adaptor_name_of(daemon_set: &DaemonSet, config: &PeerPodConfig) -> bool {
    daemon_set.namespace() == config.namespace() && daemon_set.name_any() == Names::of(config).adaptor
}

/// Whether it selects the node of this name and with these labels.
fn runs_on<'n>(daemon_set: &DaemonSet, node: &str, label: impl Fn(&str) -> Option<&'n str>) -> bool {
    let Some(pod) = pod(daemon_set) else { return false };
    let required = pod
        .affinity
        .as_ref()
        .and_then(|it| it.node_affinity.as_ref())
        .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    pod.node_selector.iter().flatten().all(|(key, value)| label(key) == Some(value.as_str()))
        && required.is_none_or(|it| {
            let terms = &it.node_selector_terms;
            // The API server accepts no empty list: its terms were too large to be read.
            terms.is_empty() || terms.iter().any(|term| term_matches(term, node, &label))
        })
}

/// A term without any requirement matches no node.
fn term_matches<'n>(term: &NodeSelectorTerm, node: &str, label: impl Fn(&str) -> Option<&'n str>) -> bool {
    let is_met = |it: &NodeSelectorRequirement, value: Option<&str>| {
        holds(&it.operator, it.values.as_deref().unwrap_or_default(), value)
    };
    let (expressions, fields) = (term.match_expressions.as_deref(), term.match_fields.as_deref());
    let (expressions, fields) = (expressions.unwrap_or_default(), fields.unwrap_or_default());
    let field = |it: &NodeSelectorRequirement| (it.key == "metadata.name").then_some(node);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|it| is_met(it, label(&it.key)))
        && fields.iter().all(|it| is_met(it, field(it)))
}

#[cfg(test)]
mod tests;
