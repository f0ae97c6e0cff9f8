//! Plans the writes to nodes. Pure *(no client)*.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::{
    headroom::Headroom,
    node::{Level, Node},
    node_request::NodeRequest,
    spread::{NodeCapacity, spread},
    summary::Summary,
};
use crate::api::v1alpha1::Distribution;

/// One write to one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeWrite {
    /// The node's name.
    pub node: Arc<str>,
    /// The node's uid, so that the write does not reach a node that was recreated meanwhile.
    pub uid: Box<str>,
    /// Extended resources, each with the number to advertise; `None` removes the key.
    pub resources: BTreeMap<String, Option<u32>>,
    /// The [mark](super::MARK) to leave; `None` removes it.
    pub mark: Option<String>,
}

/// The planned writes, and the state of each configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One write for each node that differs, in no meaningful order.
    pub writes: Vec<NodeWrite>,
    /// Which of these writes must wait for others, as the limit is for all nodes together.
    pub(super) headroom: Headroom,
    /// The state of each configuration, in the order of the requests.
    pub summaries: Vec<Summary>,
    /// Nodes whose peer pods must be counted before any write.
    pub uncounted: Vec<Arc<str>>,
    /// Nodes that get a smaller share. The scheduler may still assign peer pods to them.
    pub lowered: Vec<Arc<str>>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_settled(&self) -> bool {
        self.writes.is_empty() && self.uncounted.is_empty()
    }
}

/// How many peer pods run on nodes, by the extended resource that they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    counted: HashMap<Arc<str>, BTreeMap<String, u32>>,
    /// Whether nodes without an entry have none.
    complete: bool,
    /// What was counted a while ago.
    remembered: HashMap<Arc<str>, BTreeMap<String, u32>>,
}

impl InUse {
    /// Of every node.
    pub fn of_all(counted: HashMap<Arc<str>, BTreeMap<String, u32>>) -> Self {
        Self { counted, complete: true, remembered: HashMap::new() }
    }

    /// An older count: it can keep a share as it is, and never lowers one.
    pub fn remembered(remembered: HashMap<Arc<str>, BTreeMap<String, u32>>) -> Self {
        Self { remembered, ..Self::default() }
    }

    /// Of a further node.
    pub fn add(&mut self, node: Arc<str>, resources: BTreeMap<String, u32>) {
        self.counted.insert(node, resources);
    }

    /// What was counted, by node.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&Arc<str>, &BTreeMap<String, u32>)> {
        self.counted.iter()
    }

    /// Whether every node was counted.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn is_counted(&self, node: &str) -> bool {
        self.complete || self.counted.contains_key(node)
    }

    /// As far as is known.
    pub(super) fn of(&self, node: &str, resource: &str) -> u32 {
        let remembered = || self.remembered.get(node).filter(|_| !self.complete);
        let resources = self.counted.get(node).or_else(remembered);
        resources.and_then(|resources| resources.get(resource)).copied().unwrap_or(0)
    }
}

/// What a node should advertise of its request's resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DesiredCapacity {
    /// This number, or nothing, whatever the node advertises now.
    Share(Option<u32>),
    /// Nothing, whatever the node advertises now and whatever peer pods run there.
    Nothing,
    /// Nothing with our mark. What another program advertises stays.
    Withdraw,
    /// What it advertises now.
    Keep,
}

/// Plans from all requests and all nodes. While there are [uncounted](Plan::uncounted) nodes, write nothing: count their peer pods
/// and plan again. Only nodes whose number would change need a count; where there is nothing to do, none does.
pub fn plan(requests: &[NodeRequest], nodes: &[Arc<Node>], in_use: &InUse) -> Plan {
    let mut summaries: Vec<_> = requests.iter().map(Summary::of).collect();
    let owners = owners(requests, nodes, &mut summaries);
    let mut all_desired = vec![DesiredCapacity::Withdraw; nodes.len()];
    let mut uncounted = BTreeSet::new();
    for (index, request) in requests.iter().enumerate() {
        let owned: Vec<_> = (0..nodes.len()).filter(|&node| owners[node] == Some(index)).collect();
        let summary = &mut summaries[index];
        for (&node, desired) in owned.iter().zip(desired_of(request, &owned, nodes, in_use, summary)) {
            all_desired[node] = desired;
            let level = nodes[node].level(&request.resource);
            if desired != DesiredCapacity::Withdraw {
                summary.advertised += u64::from(level.allocatable.unwrap_or(0));
            }
            let is_ours = nodes[node].mark() == Some(&request.resource);
            if needs_count(desired, level, is_ours) && !in_use.is_counted(nodes[node].name()) {
                uncounted.insert(nodes[node].name().clone());
            }
        }
    }
    // An invalid selector may have selected, before its edit, any node that cloud-api-adaptor runs on. If its cloud-api-adaptor is
    // not deployed, it never selected one.
    let unclear: BTreeSet<_> = requests
        .iter()
        .filter(|request| !request.deleted && request.withheld.is_none() && request.selection.is_err())
        .map(|request| request.resource.as_str())
        .collect();
    let (mut writes, mut headroom) = (Vec::new(), Headroom::default());
    let mut lowered = Vec::new();
    for ((node, &owner), desired) in nodes.iter().zip(&owners).zip(all_desired) {
        let request = owner.map(|index| &requests[index]);
        let is_unclear = match request {
            Some(request) => request.bad_resource().is_some(),
            None => node.mark().is_some_and(|mark| unclear.contains(mark)),
        };
        if is_unclear {
            continue;
        }
        if let Some(write) = write(node, request.map(|request| request.resource.as_str()), desired) {
            headroom.add(&write, node, owner, requests, in_use);
            for (index, (summary, request)) in summaries.iter_mut().zip(requests).enumerate() {
                let is_removed = write.resources.get(&request.resource) == Some(&None);
                if owner == Some(index) || is_removed {
                    summary.pending.push(node.name().clone());
                }
            }
            if write.resources.iter().any(|(name, vms)| vms.is_some() && *vms < node.level(name).capacity) {
                lowered.push(node.name().clone());
            }
            writes.push(write);
        }
    }
    // Nodes whose writes fail often have adjacent names. The order by hash keeps the nodes between them from waiting for all of them.
    writes.sort_by_cached_key(|write| {
        let mut hasher = DefaultHasher::new();
        write.node.hash(&mut hasher);
        hasher.finish()
    });
    Plan { writes, headroom, summaries, uncounted: uncounted.into_iter().collect(), lowered }
}

/// Which nodes each request selects, and which of them an older request has, in the order of the requests.
pub fn survey(requests: &[NodeRequest], nodes: &[Arc<Node>]) -> Vec<Summary> {
    let mut summaries: Vec<_> = requests.iter().map(Summary::of).collect();
    owners(requests, nodes, &mut summaries);
    summaries
}

/// The nodes that each request gets, in the order of the requests.
pub(super) fn shares<'a>(requests: &[NodeRequest], nodes: &'a [Arc<Node>]) -> Vec<Vec<&'a Node>> {
    let mut summaries: Vec<_> = requests.iter().map(Summary::of).collect();
    let owners = owners(requests, nodes, &mut summaries);
    let of = |index| nodes.iter().zip(&owners).filter(move |(_, owner)| **owner == Some(index));
    (0..requests.len()).map(|index| of(index).map(|(node, _)| &**node).collect()).collect()
}

/// The request that gets each node: the oldest of those that select it.
fn owners(requests: &[NodeRequest], nodes: &[Arc<Node>], summaries: &mut [Summary]) -> Vec<Option<usize>> {
    let mut order: Vec<_> = (0..requests.len()).filter(|&index| !requests[index].deleted).collect();
    order.sort_by_key(|&index| requests[index].precedence());
    let selections: Vec<_> =
        order.iter().filter_map(|&index| Some((index, requests[index].selection.as_ref().ok()?))).collect();
    let owner = |node: &Arc<Node>| {
        let mut selecting =
            selections.iter().filter(|(_, selection)| selection.matches(|key| node.label(key)));
        let (owner, _) = *selecting.next()?;
        summaries[owner].selects(node, &requests[owner]);
        summaries[owner].marked += usize::from(node.mark() == Some(requests[owner].resource.as_str()));
        for (younger, _) in selecting {
            summaries[*younger].selects(node, &requests[*younger]);
            *summaries[*younger].overlaps.entry(requests[owner].name.clone()).or_default() += 1;
        }
        Some(owner)
    };
    nodes.iter().map(owner).collect()
}

/// The desired capacity of each node that a request has.
fn desired_of(
    request: &NodeRequest,
    owned: &[usize],
    nodes: &[Arc<Node>],
    in_use: &InUse,
    summary: &mut Summary,
) -> Vec<DesiredCapacity> {
    let limit = match request.limit {
        _ if request.bad_resource().is_some() => return vec![DesiredCapacity::Keep; owned.len()],
        _ if request.withheld.is_some() => return vec![DesiredCapacity::Withdraw; owned.len()],
        Err(_) => return vec![DesiredCapacity::Keep; owned.len()],
        Ok(None) => return vec![DesiredCapacity::Withdraw; owned.len()],
        // The scheduler assigns no further peer pod. A missing resource does not affect those that run.
        Ok(Some(0)) => return vec![DesiredCapacity::Nothing; owned.len()],
        Ok(Some(limit)) => limit,
    };
    let capacity_of = |&node: &usize| NodeCapacity {
        name: nodes[node].name(),
        current: nodes[node].level(&request.resource).capacity.unwrap_or(0),
        in_use: in_use.of(nodes[node].name(), &request.resource),
    };
    let is_closed = |node: &&usize| request.kept_off(&nodes[**node]).is_some();
    let capacities: Vec<_> = owned.iter().filter(|node| !is_closed(node)).map(capacity_of).collect();
    // On nodes that cloud-api-adaptor does not tolerate, running peer pods keep their share.
    let closed: Vec<_> = owned.iter().filter(is_closed).map(|node| capacity_of(node).in_use).collect();
    let closed_in_use: u64 = closed.iter().copied().map(u64::from).sum();
    let shares: Vec<_> = match request.distribution {
        Distribution::Total => {
            let left = u64::from(limit).saturating_sub(closed_in_use);
            let spread = spread(u32::try_from(left).unwrap_or(limit), &capacities);
            summary.beyond = spread.beyond + closed_in_use.saturating_sub(limit.into());
            spread.shares
        }
        Distribution::PerNode => {
            let in_use = capacities.iter().map(|it| it.in_use).chain(closed.iter().copied());
            summary.beyond = in_use.map(|in_use| u64::from(in_use.saturating_sub(limit))).sum();
            capacities.iter().map(|it| it.in_use.max(limit)).collect()
        }
    };
    let (least, most) = (shares.iter().min(), shares.iter().max());
    summary.uneven = summary.beyond > 0
        || closed_in_use > 0
        || most.zip(least).is_some_and(|(most, least)| most - least > 1);
    summary.without = shares.iter().filter(|share| **share == 0).count();
    summary.closed = closed.len();
    let (mut shares, mut closed) = (shares.into_iter(), closed.into_iter());
    let mut share = |node| if is_closed(&node) { closed.next() } else { shares.next() };
    // If the resource exists and is too small, a kubelet that restarts refuses running Pods. If it does not exist, the kubelet
    // does not check it. So there is no share of 0.
    owned.iter().map(|node| DesiredCapacity::Share(share(node).filter(|share| *share > 0))).collect()
}

/// Whether more peer pods may run on a node than it is going to advertise. That is impossible if the number does not become
/// lower, as the scheduler assigned no more. A reset of the node is an exception: it ignores what runs there, also on a node that is
/// going to have no share. `is_ours`: the node has the [mark](super::MARK) of the request.
fn needs_count(desired: DesiredCapacity, level: Level, is_ours: bool) -> bool {
    match desired {
        DesiredCapacity::Share(share) => match level.capacity {
            None => share.is_some() || is_ours,
            Some(0) => true,
            Some(_) => share < level.capacity,
        },
        DesiredCapacity::Nothing | DesiredCapacity::Withdraw | DesiredCapacity::Keep => false,
    }
}

/// The write that makes a node as desired, if it differs. `resource` is that of its request.
fn write(node: &Node, resource: Option<&str>, desired: DesiredCapacity) -> Option<NodeWrite> {
    let marked = node.mark();
    let mut resources = BTreeMap::new();
    if let Some(former) = marked.filter(|mark| Some(*mark) != resource) {
        resources.insert(former.to_owned(), None);
    }
    let mut mark = None;
    if let Some(resource) = resource {
        let is_ours = marked == Some(resource);
        let level = node.level(resource);
        let share = match desired {
            DesiredCapacity::Share(share) => Some(share),
            DesiredCapacity::Nothing => Some(None),
            DesiredCapacity::Withdraw => is_ours.then_some(None),
            // No resource is better than one that is too small.
            DesiredCapacity::Keep => (is_ours && level.capacity == Some(0)).then_some(None),
        };
        mark = match share {
            Some(share) => share.map(|_| resource.to_owned()),
            None => is_ours.then(|| resource.to_owned()),
        };
        if let Some(share) = share {
            resources.insert(resource.to_owned(), share);
        }
    }
    let differs = resources.iter().any(|(name, vms)| node.level(name) != Level::of(*vms));
    (differs || marked != mark.as_deref()).then(|| NodeWrite {
        node: node.name().clone(),
        uid: node.uid().into(),
        resources,
        mark,
    })
}

#[cfg(test)]
mod tests;
