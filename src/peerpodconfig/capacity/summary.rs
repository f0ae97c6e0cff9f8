//! The state of a configuration's nodes, for its status. Pure *(no client)*.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{
    assignment::Selected,
    limit::BadLimit,
    node_request::{BadResource, NodeRequest},
    write::Written,
};
use crate::{
    api::v1alpha1::Distribution,
    peerpodconfig::{
        conditions::{Finding, Reason},
        selection::{BadSelector, Selection},
    },
};

/// The state of one configuration's nodes.
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
    /// How many of them an older configuration has, by that one's name.
    pub overlaps: BTreeMap<String, usize>,
    /// How many of its other nodes have this operator's mark for its resource.
    pub marked: usize,
    /// The selected nodes with a taint that keeps its cloud-api-adaptor off, each with that taint.
    pub tainted: Vec<(Arc<str>, Arc<str>)>,
    /// How many of its other nodes are among them.
    pub closed: usize,
    /// The other selected nodes that are not ready: the state of their Pods is unknown.
    pub lost: Vec<Arc<str>>,
    /// How many VMs its other nodes advertise now, together.
    pub advertised: u64,
    /// How many of these nodes have no share, as the limit is less than their number.
    pub without: usize,
    /// How many peer pods run beyond the limit. Their nodes advertise as many until the next count after these have ended.
    pub beyond: u64,
    /// Whether running peer pods make the shares uneven, or higher than the limit allows.
    pub uneven: bool,
    /// The nodes with a pending write for its extended resource. A configuration that is being deleted may be released when there
    /// are none.
    pub pending: Vec<Arc<str>>,
    /// Those of them that could not be written to, each with the reason.
    pub failed: Vec<(Arc<str>, String)>,
    /// Those of them that others reset again and again.
    pub contested: Vec<Arc<str>>,
    /// How many further nodes stay as they are although it is being deleted, and the name of the configuration whose invalid selector
    /// is the cause.
    pub kept: Option<(usize, String)>,
}

impl Summary {
    /// The summary of a request that selects these nodes, before anything is planned.
    pub(in super::super) fn of(request: &NodeRequest, selected: &[Selected<'_>]) -> Self {
        let mut overlaps = BTreeMap::<_, usize>::new();
        let (mut tainted, mut lost) = (Vec::new(), Vec::new());
        let (mut marked, mut closed) = (0, 0);
        for Selected { node, taken_by } in selected {
            let taint = request.kept_off(node);
            if let Some(older) = taken_by {
                *overlaps.entry((*older).to_owned()).or_default() += 1;
            } else {
                marked += usize::from(node.mark() == Some(request.resource.as_str()));
                closed += usize::from(taint.is_some());
            }
            if let Some(taint) = taint {
                tainted.push((node.name().clone(), taint.clone()));
            } else if !node.is_ready() {
                lost.push(node.name().clone());
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
            overlaps,
            marked,
            tainted,
            closed,
            lost,
            advertised: 0,
            without: 0,
            beyond: 0,
            uneven: false,
            pending: Vec::new(),
            failed: Vec::new(),
            contested: Vec::new(),
            kept: None,
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
        (self.owned() == 0).then(|| Finding::new(Reason::AllTaken, message))
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
        (self.closed == self.owned()).then(|| {
            let message = self.kept_off().unwrap_or_default();
            Finding::new(Reason::AllTainted, format!("no node may start peer pods: {message}"))
        })
    }

    /// Its nodes advertise VMs.
    fn with_vms(&self, limit: u32) -> Finding {
        let mut counted = match self.distribution {
            Distribution::Total => format!("{} VMs on {} nodes", self.advertised, self.owned()),
            Distribution::PerNode => format!("{limit} VMs on each of {} nodes", self.owned() - self.closed),
        };
        if let Some(message) = self.kept_off() {
            counted =
                format!("{counted} (nodes with such a taint advertise as many as run there: {message})");
        }
        if self.beyond > 0 {
            let message = format!(
                "{counted}: {} more peer pods run than the limit allows; their nodes advertise as many VMs \
                 until these peer pods have ended",
                self.beyond
            );
            return Finding::new(Reason::MoreInUse, message);
        }
        if self.without == 0 {
            return Finding::new(Reason::Advertised, counted);
        }
        let message = format!(
            "{counted}: {} of these nodes advertise none, because the limit is lower than the number of nodes",
            self.without
        );
        Finding::new(Reason::FewerThanNodes, message)
    }

    /// How many nodes it has: it selects them, and no older configuration does.
    fn owned(&self) -> usize {
        self.nodes - self.overlaps.values().sum::<usize>()
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
             selectors",
            self.tainted.len(),
            self.nodes
        ))
    }

    /// The message about nodes that an older configuration has; `None` without such nodes.
    pub fn conflict(&self) -> Option<String> {
        let others: Vec<_> =
            self.overlaps.iter().map(|(name, nodes)| format!("{nodes} to PeerPodConfig {name}")).collect();
        (!others.is_empty()).then(|| {
            format!(
                "of {} selected nodes, {} belong to older PeerPodConfigs: {}; change the selectors so that \
                 no node is selected twice",
                self.nodes,
                self.overlaps.values().sum::<usize>(),
                others.join(", ")
            )
        })
    }
}
