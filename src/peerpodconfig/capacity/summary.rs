//! The state of a configuration's nodes, for its status. Pure *(no client)*.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{
    assignment::{Assignment, Selected},
    limit::BadLimit,
    node::Node,
    node_request::{BadResource, NodeRequest},
    node_write::Written,
};
use crate::{
    api::v1alpha1::Distribution,
    peerpodconfig::{
        conditions::{Finding, Reason},
        selection::{BadSelector, Selection},
    },
};

/// Tolerations and selectors are part of the template of cloud-api-adaptor's Pods: a change replaces them on every node. The DaemonSet
/// controller ends those of nodes that are no longer selected, whatever the strategy.
const BEFORE_A_CHANGE: &str = "if peer pods run, first delete those of nodes that are then no longer selected, and set \
                               adaptor.updateStrategy.type to OnDelete in the same change";

/// The state of one configuration's nodes.
///
/// An *own node* of a configuration is one that it selects and that no older configuration selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The configuration's name.
    pub name: String,
    /// Its limit.
    pub limit: Result<Option<u32>, BadLimit>,
    /// What the limit counts.
    pub distribution: Distribution,
    /// Which nodes it selects, or why that is unknown.
    pub selection: Result<Selection, BadSelector>,
    /// Why no node can advertise its resource.
    pub resource: Option<BadResource>,
    /// Why it advertises nothing, if its cloud-api-adaptor is not deployed.
    pub withheld: Option<String>,
    /// How many nodes it selects.
    pub nodes: usize,
    /// How many of the selected nodes each older configuration has, by the name of the older configuration.
    pub taken_by_older: BTreeMap<String, usize>,
    /// How many own nodes have this operator's mark for the configuration's resource.
    pub marked_own: usize,
    /// The selected nodes with a taint that keeps cloud-api-adaptor off, each with that taint.
    pub tainted: Vec<(Arc<str>, Arc<str>)>,
    /// How many own nodes have such a taint.
    pub tainted_own: usize,
    /// The selected nodes that have no such taint and are not ready. The state of their Pods is unknown.
    pub not_ready: Vec<Arc<str>>,
    /// How many VMs all own nodes together advertise now.
    pub advertised: u64,
    /// How many own nodes without such a taint have no share. The cause is a limit that is lower than the number of nodes.
    pub without_share: usize,
    /// How many peer pods run over the limit. Their nodes advertise VMs for them until these peer pods have ended and the operator has
    /// counted again.
    pub pods_over_limit: u64,
    /// Whether running peer pods make the shares of own nodes uneven, or their sum higher than the limit.
    pub is_uneven: bool,
    /// The nodes with a pending write for the configuration's resource: own nodes, and nodes that lose the resource. If there are none,
    /// the operator may release a configuration that is being deleted.
    pub pending: Vec<Arc<str>>,
    /// The pending nodes to which a write failed, each with the error.
    pub failed: Vec<(Arc<str>, String)>,
    /// The pending nodes that another program resets again and again.
    pub contested: Vec<Arc<str>>,
    /// If the configuration is being deleted: how many nodes keep its resource, because they may belong to a configuration with an
    /// invalid selector, and the name of that configuration.
    pub retained: Option<(usize, String)>,
}

/// Which nodes each request selects, and which of them an older request has, in the order of the requests.
pub fn survey(requests: &[NodeRequest], nodes: &[Arc<Node>]) -> Vec<Summary> {
    Summary::of_all(&Assignment::of(requests, nodes)).collect()
}

impl Summary {
    /// The summary of each request, before anything is planned.
    pub(super) fn of_all(assignment: &Assignment<'_>) -> impl Iterator<Item = Self> {
        let Assignment { requests, selected, .. } = assignment;
        requests.iter().zip(selected).map(|(request, selected)| Self::of(request, selected))
    }

    /// The summary of a request that selects these nodes.
    pub(in super::super) fn of(request: &NodeRequest, selected: &[Selected<'_>]) -> Self {
        let mut taken_by_older = BTreeMap::<_, usize>::new();
        let (mut tainted, mut not_ready) = (Vec::new(), Vec::new());
        let (mut marked_own, mut tainted_own) = (0, 0);
        for Selected { node, taken_by } in selected {
            let taint = request.kept_off(node);
            if let Some(older) = taken_by {
                *taken_by_older.entry((*older).to_owned()).or_default() += 1;
            } else {
                marked_own += usize::from(node.mark() == Some(request.resource.as_str()));
                tainted_own += usize::from(taint.is_some());
            }
            if let Some(taint) = taint {
                tainted.push((node.name().clone(), taint.clone()));
            } else if !node.is_ready() {
                not_ready.push(node.name().clone());
            }
        }
        Self {
            name: request.name.clone(),
            limit: request.limit.clone(),
            distribution: request.distribution,
            selection: request.selection.clone(),
            resource: request.bad_resource(),
            withheld: request.withheld.clone(),
            nodes: selected.len(),
            taken_by_older,
            marked_own,
            tainted,
            tainted_own,
            not_ready,
            advertised: 0,
            without_share: 0,
            pods_over_limit: 0,
            is_uneven: false,
            pending: Vec::new(),
            failed: Vec::new(),
            contested: Vec::new(),
            retained: None,
        }
    }

    /// Adds what prevented writes to its nodes.
    pub(super) fn hindered(&mut self, written: &Written) {
        let pending: HashSet<_> = self.pending.iter().collect();
        self.failed = written.failed.iter().filter(|(node, _)| pending.contains(node)).cloned().collect();
        self.contested = written.contested.iter().filter(|node| pending.contains(node)).cloned().collect();
    }

    /// The condition about the VMs that its nodes advertise: the first finding of these that there is.
    pub fn capacity(&self) -> Finding {
        let (selection, limit) = match self.valid_request() {
            Ok(valid) => valid,
            Err(finding) => return finding,
        };
        self.without_nodes(selection)
            .or_else(|| self.unwritten())
            .or_else(|| self.without_vms(limit))
            .unwrap_or_else(|| self.with_vms(limit))
    }

    /// The selection and the limit, or what is invalid or not set.
    fn valid_request(&self) -> Result<(&Selection, u32), Finding> {
        if let Some(problem) = &self.resource {
            return Err(Finding::new(Reason::InvalidResource, problem.to_string()));
        }
        match (&self.selection, &self.limit) {
            (Err(problem), _) => {
                let message = format!("{problem}; until then the operator does not change nodes");
                Err(Finding::new(Reason::InvalidSelector, message))
            }
            (_, Err(problem)) => Err(Finding::new(Reason::InvalidLimit, problem.to_string())),
            (Ok(_), Ok(None)) => {
                let message = "spec.limit is not set: no node advertises VMs, and no peer pod is scheduled";
                Err(Finding::new(Reason::NoLimit, message))
            }
            (Ok(selection), Ok(Some(limit))) => Ok((selection, *limit)),
        }
    }

    /// It has no nodes.
    fn without_nodes(&self, selection: &Selection) -> Option<Finding> {
        if self.nodes == 0 {
            return Some(Finding::new(Reason::NoneSelected, selection.unmatched()));
        }
        let message = "every selected node belongs to an older PeerPodConfig";
        (self.own_nodes() == 0).then(|| Finding::new(Reason::AllTaken, message))
    }

    /// What its nodes should advertise is not written to them.
    fn unwritten(&self) -> Option<Finding> {
        if let Some(why) = &self.withheld {
            let message = format!("no node advertises VMs, because no cloud-api-adaptor is deployed: {why}");
            return Some(Finding::new(Reason::NoAdaptor, message));
        }
        if self.pending.is_empty() {
            return None;
        }
        let (reason, why) = self.hindrance();
        let message = format!("the operator has not yet written to {} nodes{why}", self.pending.len());
        Some(Finding::new(reason, message))
    }

    /// Its nodes advertise no VMs for further peer pods.
    fn without_vms(&self, limit: u32) -> Option<Finding> {
        if limit == 0 {
            let message = "spec.limit is 0: no node advertises VMs; running peer pods keep running";
            return Some(Finding::new(Reason::LimitIsZero, message));
        }
        (self.tainted_own == self.own_nodes()).then(|| {
            let message = self.kept_off().unwrap_or_default();
            Finding::new(Reason::AllTainted, format!("no node may start peer pods: {message}"))
        })
    }

    /// Its nodes advertise VMs.
    fn with_vms(&self, limit: u32) -> Finding {
        let mut counted = match self.distribution {
            Distribution::Total => format!("{} VMs on {} nodes", self.advertised, self.own_nodes()),
            Distribution::PerNode => {
                format!("{limit} VMs on each of {} nodes", self.own_nodes() - self.tainted_own)
            }
        };
        if let Some(message) = self.kept_off() {
            counted = format!(
                "{counted} ({message}; these nodes advertise only as many VMs as peer pods run there)"
            );
        }
        if self.pods_over_limit > 0 {
            let message = format!(
                "{counted}: {} more peer pods run than the limit allows; a node with more of them than its share \
                 advertises as many VMs as run on it, until they have ended",
                self.pods_over_limit
            );
            return Finding::new(Reason::MoreInUse, message);
        }
        if self.without_share == 0 {
            return Finding::new(Reason::Advertised, counted);
        }
        let message = format!(
            "{counted}: {} of these nodes advertise none, because the limit is lower than the number of nodes",
            self.without_share
        );
        Finding::new(Reason::FewerThanNodes, message)
    }

    /// How many own nodes it has.
    fn own_nodes(&self) -> usize {
        self.nodes - self.taken_by_older.values().sum::<usize>()
    }

    /// The appendix of a message about nodes with pending writes.
    pub fn hindrance(&self) -> (Reason, String) {
        if let Some((node, error)) = self.failed.first() {
            return (Reason::NodeWritesFail, format!("; writing to {node} fails: {error}"));
        }
        let Some(node) = self.contested.first() else { return (Reason::Advertising, String::new()) };
        let why = format!(
            "; another program resets {} of them again and again, for example {node}: find the program \
             that writes the extended resource there, such as another cloud-api-adaptor, and stop it",
            self.contested.len()
        );
        (Reason::Contested, why)
    }

    /// The message about nodes with taints that cloud-api-adaptor does not tolerate; `None` without such nodes.
    pub fn kept_off(&self) -> Option<String> {
        let (node, taint) = self.tainted.first()?;
        Some(format!(
            "{} of {} selected nodes have taints that cloud-api-adaptor's Pods do not tolerate, for \
             example {node} with {taint}; tolerate the taints in adaptor.tolerations, or change the \
             selectors ({BEFORE_A_CHANGE})",
            self.tainted.len(),
            self.nodes
        ))
    }

    /// The message about nodes that an older configuration has; `None` without such nodes.
    pub fn conflict(&self) -> Option<String> {
        let others: Vec<_> = self
            .taken_by_older
            .iter()
            .map(|(name, nodes)| format!("{nodes} to PeerPodConfig {name}"))
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "of {} selected nodes, {} belong to older PeerPodConfigs: {}; change the selectors so that \
                 no node is selected twice ({BEFORE_A_CHANGE})",
                self.nodes,
                self.taken_by_older.values().sum::<usize>(),
                others.join(", ")
            )
        })
    }
}
