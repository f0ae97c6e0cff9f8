//! How a configuration stands with the nodes, for its status. Pure *(no client)*.

use std::collections::BTreeMap;

use super::{
    claim::{BadResource, Claim},
    limit::BadLimit,
    selection::BadSelector,
};
use crate::{api::v1alpha1::Distribution, peerpodconfig::verdict::Reason};

/// How one configuration stands with the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The configuration's name.
    pub name: String,
    /// Its limit.
    pub limit: Result<Option<u32>, BadLimit>,
    /// What the limit counts.
    pub distribution: Distribution,
    /// Why it is not known which nodes it selects.
    pub selector: Option<BadSelector>,
    /// Why no node can advertise its resource.
    pub resource: Option<BadResource>,
    /// How many nodes it selects.
    pub nodes: usize,
    /// How many of them an older configuration has, by that one's name.
    pub overlaps: BTreeMap<String, usize>,
    /// How many VMs its other nodes advertise now, together.
    pub advertised: u64,
    /// How many of these nodes have no share, as the limit is less than their number.
    pub without: usize,
    /// How many peer pods run beyond the limit. Their nodes advertise as many until the next look after they are gone.
    pub beyond: u64,
    /// Whether peer pods that run keep the shares from being as even, or as few, as they are to be.
    pub uneven: bool,
    /// How many nodes are to be written to on account of its extended resource. One that is being deleted may go when this
    /// is 0.
    pub pending: usize,
}

/// What the condition `CapacityAdvertised` of a configuration says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its reason.
    pub reason: Reason,
    /// Its message.
    pub message: String,
}

impl Summary {
    pub(super) fn of(claim: &Claim) -> Self {
        Self {
            name: claim.name.clone(),
            limit: claim.limit.clone(),
            distribution: claim.distribution,
            selector: claim.selection.as_ref().err().cloned(),
            resource: claim.bad_resource(),
            nodes: 0,
            overlaps: BTreeMap::new(),
            advertised: 0,
            without: 0,
            beyond: 0,
            uneven: false,
            pending: 0,
        }
    }

    /// What to tell people about the VMs that its nodes advertise.
    pub fn capacity(&self) -> Verdict {
        let told = |reason, message| Verdict { reason, message };
        let owned = self.nodes - self.overlaps.values().sum::<usize>();
        if let Some(problem) = &self.resource {
            return told(Reason::InvalidResource, problem.to_string());
        }
        let limit = match (&self.selector, &self.limit) {
            (Some(problem), _) => {
                return told(
                    Reason::InvalidSelector,
                    format!("{problem}; nodes stay as they are until then"),
                );
            }
            (_, Err(problem)) => return told(Reason::InvalidLimit, problem.to_string()),
            (None, Ok(None)) => {
                return told(
                    Reason::NoLimit,
                    "spec.limit is not set: no node advertises VMs, and no peer pod is scheduled".into(),
                );
            }
            (None, Ok(Some(limit))) => *limit,
        };
        if self.nodes == 0 {
            return told(Reason::NoneSelected, "no node has the labels that the selectors ask for".into());
        }
        if owned == 0 {
            return told(Reason::AllTaken, "every selected node belongs to an older PeerPodConfig".into());
        }
        if self.pending > 0 {
            let message = format!("{} nodes do not advertise yet what they should", self.pending);
            return told(Reason::Advertising, message);
        }
        if limit == 0 {
            return told(
                Reason::LimitIsZero,
                "spec.limit is 0: no node advertises VMs; peer pods that run go on".into(),
            );
        }
        let counted = match self.distribution {
            Distribution::Total => format!("{} VMs on {owned} nodes", self.advertised),
            Distribution::PerNode => format!("{limit} VMs on each of {owned} nodes"),
        };
        if self.beyond > 0 {
            let message = format!(
                "{counted}: {} peer pods more than the limit run, and their nodes advertise them while they do",
                self.beyond
            );
            return told(Reason::MoreInUse, message);
        }
        match self.without {
            0 => told(Reason::Advertised, counted),
            without => told(
                Reason::FewerThanNodes,
                format!("{counted}: {without} of them have none, as the limit is lower than their number"),
            ),
        }
    }

    /// What to tell people about nodes that an older configuration has; `None` where there are none.
    pub fn conflict(&self) -> Option<String> {
        let others: Vec<_> =
            self.overlaps.iter().map(|(name, nodes)| format!("{nodes} to PeerPodConfig {name}")).collect();
        (!others.is_empty()).then(|| {
            format!(
                "of {} selected nodes, {} belong to older ones: {}; change the selectors so that no node is selected twice",
                self.nodes,
                self.overlaps.values().sum::<usize>(),
                others.join(", ")
            )
        })
    }
}
