//! Keeps what nodes advertise together within the limit, also while some of them cannot be written to. Pure *(no client)*.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{in_use::InUse, node::Node, node_request::NodeRequest, node_write::NodeWrite};
use crate::api::v1alpha1::Distribution;

/// How many more VMs the nodes of each request may advertise now.
///
/// When all writes of a plan are done, the nodes of a request advertise what its limit allows. Until then, its nodes may get the VMs that
/// the planned writes add, less the VMs that its nodes still have to lose. Requests with a limit for each node are not counted here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Headroom {
    /// By the index of the request. Below 0 while nodes have more to lose than others are to get.
    free: BTreeMap<usize, i64>,
    /// By node.
    effects: HashMap<Arc<str>, LimitEffect>,
    /// The requests whose nodes did not get all that was planned.
    short: BTreeSet<usize>,
}

/// How the write to a node changes what limits count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LimitEffect {
    /// The request whose limit counts the VMs that the node gets, and their number. Peer pods that run there have theirs already.
    more: Option<(usize, u32)>,
    /// The requests whose limit counts the VMs that the node loses, and their number.
    fewer: Vec<(usize, u32)>,
    /// Whether the write does anything else than to add these VMs.
    has_other_effects: bool,
}

impl Headroom {
    /// Adds the write to a node that the request `owner` has.
    pub(super) fn add(
        &mut self,
        write: &NodeWrite,
        node: &Node,
        owner: Option<usize>,
        requests: &[NodeRequest],
        in_use: &InUse,
    ) {
        let counts = |index: usize, resource: &str| match owner {
            Some(owner) if requests[owner].resource == resource => owner == index,
            // It is unknown which of the requests with this resource had the node before.
            _ => requests[index].resource == resource,
        };
        let mut effect =
            LimitEffect { has_other_effects: write.resources.len() > 1, ..LimitEffect::default() };
        for (resource, vms) in &write.resources {
            let (vms, advertised) = (vms.unwrap_or(0), node.level(resource).largest());
            let runs = in_use.of(node.name(), resource);
            let present = advertised.max(runs);
            let counting = (0..requests.len()).filter(|&index| counts(index, resource));
            for index in counting.filter(|&index| requests[index].distribution == Distribution::Total) {
                if vms < advertised {
                    effect.fewer.push((index, advertised - vms));
                    *self.free.entry(index).or_default() -= i64::from(advertised - vms);
                } else if vms > present {
                    effect.more = Some((index, vms - present));
                    effect.has_other_effects |= runs > advertised;
                    *self.free.entry(index).or_default() += i64::from(vms - present);
                }
            }
        }
        if effect.more.is_some() || !effect.fewer.is_empty() {
            self.effects.insert(write.node.clone(), effect);
        }
    }

    /// The writes that add nothing, and those that add VMs. The latter must wait for the end of the former.
    pub(super) fn groups(&self, writes: Vec<NodeWrite>) -> [Vec<NodeWrite>; 2] {
        let adds = |write: &NodeWrite| self.effects.get(&write.node).is_some_and(|it| it.more.is_some());
        let (adding, others) = writes.into_iter().partition(adds);
        [others, adding]
    }

    /// The part of a write that the limit allows now; `None` if it would have no effect. What it adds is no longer free.
    pub(super) fn fit(&mut self, mut write: NodeWrite) -> Option<NodeWrite> {
        let effect = self.effects.get(&write.node);
        let Some(LimitEffect { more: Some((request, more)), has_other_effects, .. }) = effect else {
            return Some(write);
        };
        let free = self.free.entry(*request).or_default();
        let granted = u32::try_from((*free).clamp(0, i64::from(*more))).unwrap_or(0);
        *free -= i64::from(granted);
        let missing = more - granted;
        if missing == 0 {
            return Some(write);
        }
        self.short.insert(*request);
        if granted == 0 && !has_other_effects {
            return None;
        }
        for vms in write.resources.values_mut() {
            *vms = vms.map(|vms| vms - missing).filter(|vms| *vms > 0);
        }
        if write.resources.values().all(Option::is_none) {
            write.mark = None;
        }
        Some(write)
    }

    /// The write to this node succeeded: what the node lost is free.
    pub(super) fn done(&mut self, node: &str) {
        let fewer = self.effects.remove(node).map(|effect| effect.fewer).unwrap_or_default();
        for (request, vms) in fewer {
            *self.free.entry(request).or_default() += i64::from(vms);
        }
    }

    /// Whether nodes that did not get all that was planned may get more by now.
    pub(super) fn can_give_more(&self) -> bool {
        self.short.iter().any(|request| self.free.get(request).is_some_and(|free| *free > 0))
    }
}
