//! Plans the writes to nodes. Pure *(no client)*.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::{
    assignment::Assignment,
    headroom::Headroom,
    in_use::InUse,
    node::{Level, Node},
    node_request::NodeRequest,
    node_write::NodeWrite,
    spread::{NodeCapacity, Spread, spread},
    summary::Summary,
};
use crate::api::v1alpha1::Distribution;

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

/// Plans from all requests and all nodes. While there are [uncounted](Plan::uncounted) nodes, write nothing: count their peer pods
/// and plan again. Only nodes whose number would change need a count; where there is nothing to do, none does.
pub fn plan(requests: &[NodeRequest], nodes: &[Arc<Node>], in_use: &InUse) -> Plan {
    let assignment = Assignment::of(requests, nodes);
    let parts = requests.iter().zip(assignment.shares());
    let parts: Vec<_> = parts.map(|(request, nodes)| RequestPlan::of(request, &nodes, in_use)).collect();
    let planned = planned_writes(requests, &assignment, &parts);
    let mut headroom = Headroom::default();
    for PlannedWrite { write, node, owner } in &planned {
        headroom.add(write, node, *owner, requests, in_use);
    }
    let summaries = Summary::of_all(&assignment).zip(&parts).enumerate().map(|(index, (summary, part))| {
        let of_request = planned.iter().filter(|planned| planned.is_of(index, requests));
        let pending = of_request.map(|planned| planned.write.node.clone()).collect();
        let ShareFacts { advertised, without_share, pods_over_limit, is_uneven } = part.facts;
        let retained = retained(&requests[index], requests, &assignment);
        Summary { advertised, without_share, pods_over_limit, is_uneven, pending, retained, ..summary }
    });
    let summaries = summaries.collect();
    let lowered = planned.iter().filter(|planned| planned.lowers(requests));
    let lowered = lowered.map(|planned| planned.write.node.clone()).collect();
    let mut uncounted: Vec<_> = parts.iter().flat_map(|part| &part.uncounted).cloned().collect();
    uncounted.sort_unstable();
    let mut writes: Vec<_> = planned.into_iter().map(|planned| planned.write).collect();
    // Nodes whose writes fail often have adjacent names. The order by hash keeps the nodes between them from waiting for all of them.
    writes.sort_by_cached_key(|write| {
        let mut hasher = DefaultHasher::new();
        write.node.hash(&mut hasher);
        hasher.finish()
    });
    Plan { writes, headroom, summaries, uncounted, lowered }
}

/// If a request is being deleted: how many nodes keep its resource, because they may belong to a request with an invalid selector, and
/// the name of that request.
fn retained(
    request: &NodeRequest,
    requests: &[NodeRequest],
    assignment: &Assignment<'_>,
) -> Option<(usize, String)> {
    let (true, Ok(selection)) = (request.deleted, &request.selection) else { return None };
    let other = requests.iter().find(|it| it.may_have_any_node() && it.resource == request.resource)?;
    let marked = assignment.unselected.iter().filter(|node| node.mark() == Some(request.resource.as_str()));
    let nodes = marked.filter(|node| selection.matches(|key| node.label(key))).count();
    (nodes > 0).then(|| (nodes, other.name.clone()))
}

/// What becomes of the extended resource of a request on a node that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResourceChange {
    /// The node advertises this number, whatever it advertises now.
    Set(u32),
    /// The node advertises nothing, whatever it advertises now.
    Remove,
    /// The node advertises what it does now, for this operator or for another program.
    Keep,
}

/// What one request changes on the nodes that it has.
#[derive(Debug, Default)]
struct RequestPlan<'a> {
    changes: Vec<(&'a Arc<Node>, ResourceChange)>,
    /// Nodes whose peer pods must be counted before any write.
    uncounted: Vec<Arc<str>>,
    facts: ShareFacts,
}

/// What a [`Summary`] says of the shares.
#[derive(Clone, Copy, Debug, Default)]
struct ShareFacts {
    advertised: u64,
    without_share: usize,
    pods_over_limit: u64,
    is_uneven: bool,
}

impl ShareFacts {
    /// How many VMs these nodes advertise now, together.
    fn of(request: &NodeRequest, nodes: &[&Arc<Node>]) -> Self {
        let advertised = nodes.iter().filter_map(|node| node.level(&request.resource).allocatable);
        Self { advertised: advertised.map(u64::from).sum(), ..Self::default() }
    }
}

impl<'a> RequestPlan<'a> {
    fn of(request: &NodeRequest, nodes: &[&'a Arc<Node>], in_use: &InUse) -> Self {
        let change_each = |facts: ShareFacts, change: &dyn Fn(&Node) -> ResourceChange| {
            let changes = nodes.iter().map(|node| (*node, change(node))).collect();
            Self { changes, facts, ..Self::default() }
        };
        // What another program advertises stays.
        let withdraw = |node: &Node| {
            let is_ours = node.mark() == Some(request.resource.as_str());
            if is_ours { ResourceChange::Remove } else { ResourceChange::Keep }
        };
        match request.limit {
            // Its nodes stay as they are until the name is correct.
            _ if request.bad_resource().is_some() => Self::default(),
            _ if request.withheld.is_some() => change_each(ShareFacts::default(), &withdraw),
            Ok(None) => change_each(ShareFacts::default(), &withdraw),
            // No resource is better than one that is too small.
            Err(_) => change_each(ShareFacts::of(request, nodes), &|node: &Node| {
                let is_reset = node.level(&request.resource).capacity == Some(0);
                if is_reset { withdraw(node) } else { ResourceChange::Keep }
            }),
            // The scheduler assigns no further peer pod. A missing resource does not affect those that run.
            Ok(Some(0)) => change_each(ShareFacts::of(request, nodes), &|_: &Node| ResourceChange::Remove),
            Ok(Some(limit)) => Self::share(request, limit, nodes, in_use),
        }
    }

    /// Distributes the limit over the nodes.
    fn share(request: &NodeRequest, limit: u32, nodes: &[&'a Arc<Node>], in_use: &InUse) -> Self {
        let runs = |node: &Node| in_use.of(node.name(), &request.resource);
        let (tainted, open): (Vec<_>, Vec<_>) =
            nodes.iter().copied().partition(|node| request.kept_off(node).is_some());
        // On nodes that cloud-api-adaptor does not tolerate, running peer pods keep their share.
        let tainted: Vec<_> = tainted.into_iter().map(|node| (node, runs(node))).collect();
        let in_use_on_tainted: u64 = tainted.iter().map(|(_, runs)| u64::from(*runs)).sum();
        let capacities = open.iter().map(|&node| NodeCapacity {
            name: node.name(),
            current: node.level(&request.resource).capacity.unwrap_or(0),
            in_use: runs(node),
        });
        let capacities: Vec<_> = capacities.collect();
        let spread = match request.distribution {
            Distribution::Total => {
                let left = u64::from(limit).saturating_sub(in_use_on_tainted);
                let mut spread = spread(u32::try_from(left).unwrap_or(limit), &capacities);
                spread.pods_over_limit += in_use_on_tainted.saturating_sub(limit.into());
                spread
            }
            Distribution::PerNode => Spread {
                shares: capacities.iter().map(|it| it.in_use.max(limit)).collect(),
                pods_over_limit: nodes.iter().map(|node| u64::from(runs(node).saturating_sub(limit))).sum(),
            },
        };
        let facts = ShareFacts {
            without_share: spread.shares.iter().filter(|share| **share == 0).count(),
            pods_over_limit: spread.pods_over_limit,
            is_uneven: spread.pods_over_limit > 0 || in_use_on_tainted > 0 || !spread.is_even(),
            ..ShareFacts::of(request, nodes)
        };
        let (mut changes, mut uncounted) = (Vec::with_capacity(nodes.len()), Vec::new());
        for (node, share) in open.into_iter().zip(spread.shares).chain(tainted) {
            // If the resource exists and is too small, a kubelet that restarts refuses running Pods. If it does not exist, the kubelet
            // does not check it. So there is no share of 0.
            let share = Some(share).filter(|share| *share > 0);
            if needs_count(request, node, share) && !in_use.is_counted(node.name()) {
                uncounted.push(node.name().clone());
            }
            changes.push((node, share.map_or(ResourceChange::Remove, ResourceChange::Set)));
        }
        Self { changes, uncounted, facts }
    }
}

/// Whether more peer pods may run on a node than its share. That is impossible if the number does not become lower, as the scheduler
/// assigned no more. A reset of the node is an exception: it ignores what runs there, also on a node that is going to have no share.
fn needs_count(request: &NodeRequest, node: &Node, share: Option<u32>) -> bool {
    let present = node.level(&request.resource).capacity;
    match present {
        None => share.is_some() || node.mark() == Some(request.resource.as_str()),
        Some(0) => true,
        Some(_) => share < present,
    }
}

/// A write, its node, and the index of the request that has the node.
struct PlannedWrite<'a> {
    write: NodeWrite,
    node: &'a Node,
    owner: Option<usize>,
}

impl PlannedWrite<'_> {
    /// Whether the request of this index waits for it: the request has the node, or the node loses the request's resource and no other
    /// request has the node for the same resource.
    fn is_of(&self, index: usize, requests: &[NodeRequest]) -> bool {
        let resource = &requests[index].resource;
        match self.owner {
            Some(owner) if owner == index => true,
            Some(owner) if requests[owner].resource == *resource => false,
            _ => self.removes(resource),
        }
    }

    fn removes(&self, resource: &str) -> bool {
        self.write.resources.get(resource) == Some(&None)
    }

    /// Whether the node gets a smaller share, or none. Where a request shares nothing out, running peer pods keep nothing.
    fn lowers(&self, requests: &[NodeRequest]) -> bool {
        let shared = self.owner.map(|owner| &requests[owner]).filter(|request| request.shares_out());
        self.write.resources.iter().any(|(name, vms)| {
            let is_share = vms.is_some() || shared.is_some_and(|request| request.resource == *name);
            is_share && *vms < self.node.level(name).capacity
        })
    }
}

/// The writes to all nodes that differ.
fn planned_writes<'a>(
    requests: &[NodeRequest],
    assignment: &Assignment<'a>,
    parts: &[RequestPlan<'a>],
) -> Vec<PlannedWrite<'a>> {
    let unclear = requests.iter().filter(|request| request.may_have_any_node());
    let unclear: BTreeSet<_> = unclear.map(|request| request.resource.as_str()).collect();
    let unselected = assignment.unselected.iter();
    let unselected = unselected.filter(|node| node.mark().is_none_or(|mark| !unclear.contains(mark)));
    let unselected = unselected.map(|node| (*node, None));
    let selected = parts.iter().enumerate().flat_map(|(index, part)| {
        part.changes.iter().map(move |(node, change)| (*node, Some((index, *change))))
    });
    let writes = selected.chain(unselected).filter_map(|(node, of)| {
        let wanted = of.map(|(index, change)| (requests[index].resource.as_str(), change));
        Some(PlannedWrite { write: write(node, wanted)?, node, owner: of.map(|(index, _)| index) })
    });
    writes.collect()
}

/// The write that makes a node as planned, if it differs. `wanted`: the resource of the request that has the node, and what becomes
/// of it.
fn write(node: &Node, wanted: Option<(&str, ResourceChange)>) -> Option<NodeWrite> {
    let (marked, resource) = (node.mark(), wanted.map(|(resource, _)| resource));
    let mut resources = BTreeMap::new();
    if let Some(former) = marked.filter(|mark| Some(*mark) != resource) {
        resources.insert(former.to_owned(), None);
    }
    let mark = match wanted {
        Some((resource, ResourceChange::Set(vms))) => {
            resources.insert(resource.to_owned(), Some(vms));
            Some(resource)
        }
        Some((resource, ResourceChange::Remove)) => {
            resources.insert(resource.to_owned(), None);
            None
        }
        Some((resource, ResourceChange::Keep)) => marked.filter(|mark| *mark == resource),
        None => None,
    };
    let differs = resources.iter().any(|(name, vms)| node.level(name) != Level::of(*vms));
    (differs || marked != mark).then(|| NodeWrite {
        node: node.name().clone(),
        uid: node.uid().into(),
        resources,
        mark: mark.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests;
