//! Whether each configuration is ready, and how much of its capacity peer pods use, for the metrics *(client required)*.
//!
//! The operator watches what nodes advertise. It does not watch which Pods run there, because a watch of all Pods of a cluster
//! costs more than all the rest of the operator. So it counts Pods now and then, in the same way as before a write.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use kube::Api;
use operator_kit::{Leadership, api_call::DEADLINE};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::{
    Capacity,
    assignment::Assignment,
    count::{self, PodView},
    in_use::InUse,
    node::Node,
    node_request::NodeRequest,
};
use crate::metrics::{ConfigCapacity, Metrics, Usage};

/// How often the metrics are brought up to date with what is watched.
const REFRESH: Duration = Duration::from_secs(15);

/// The time between two counts.
const COUNT_INTERVAL: Duration = Duration::from_secs(300);

/// A count is repeated only after this many times its duration: counting takes at most a hundredth of the time.
const REST: u32 = 100;

/// The longest rest after a count, however long it took.
const LONGEST_REST: Duration = Duration::from_secs(3600);

impl Capacity {
    /// Shows in the metrics, while this process leads, which configurations are ready, what their nodes advertise and what peer pods
    /// use of it. `requests`: those of all configurations that the controller honours.
    pub async fn show_usage(
        &self,
        requests: impl Fn() -> Vec<NodeRequest>,
        leadership: &Leadership,
        metrics: &Metrics,
    ) -> Infallible {
        let work = || Box::pin(self.follow_usage(&requests, metrics));
        // The process that leads shows them.
        leadership.each_term(work, || metrics.capacities(BTreeMap::new())).await
    }

    async fn follow_usage(&self, requests: &impl Fn() -> Vec<NodeRequest>, metrics: &Metrics) -> Infallible {
        // Whether a configuration is ready, by its last report, is shown even while the nodes are not known.
        let _ = timeout(REFRESH, self.nodes.wait_until_known()).await;
        let mut counts = Counts::default();
        loop {
            let requests = requests();
            let capacities = match self.nodes.snapshot() {
                Some(nodes) => {
                    counts.refresh(&self.pods, &requests, &nodes).await;
                    capacities(&requests, &nodes, counts.latest.as_ref())
                }
                None => without_nodes(&requests),
            };
            metrics.capacities(capacities);
            sleep(REFRESH).await;
        }
    }
}

/// The counts of Pods.
#[derive(Default)]
struct Counts {
    latest: Option<InUse>,
    /// When that was counted.
    at: Option<Instant>,
    /// For how long nothing is counted then.
    rest: Duration,
}

impl Counts {
    /// Counts the Pods on the nodes of these requests, if it is time, or if some of these nodes were never counted.
    async fn refresh(&mut self, pods: &Api<PodView>, requests: &[NodeRequest], nodes: &[Arc<Node>]) {
        let (nodes, resources) = to_count(requests, nodes);
        let age = self.at.map(|at| at.elapsed());
        let is_known = nodes.iter().all(|node| self.latest.as_ref().is_some_and(|it| it.is_counted(node)));
        if age.is_some_and(|age| age < self.rest || (is_known && age < COUNT_INTERVAL)) {
            return;
        }
        if nodes.is_empty() {
            *self = Self::default();
            return;
        }
        let (start, mut in_use) = (Instant::now(), InUse::default());
        let counted = count::count(pods, &nodes, false, &resources, &mut in_use).await;
        let took = start.elapsed();
        (self.latest, self.rest) = match counted {
            Ok(()) => (Some(in_use), (took * REST).min(LONGEST_REST)),
            Err(error) => {
                debug!(%error, "counting the peer pods for the metrics failed; the operator tries again");
                // An answer that did not come took long, but cost nothing.
                let rest = took.saturating_sub(DEADLINE) * REST;
                (None, rest.min(LONGEST_REST))
            }
        };
        self.at = Some(Instant::now());
    }
}

/// The nodes whose Pods matter, and the extended resources that these request.
fn to_count<'a>(requests: &'a [NodeRequest], nodes: &[Arc<Node>]) -> (Vec<Arc<str>>, BTreeSet<&'a str>) {
    let assignment = Assignment::of(requests, nodes);
    let limited = requests.iter().zip(assignment.shares()).filter(|(request, _)| is_limited(request));
    let (mut counted, mut resources) = (Vec::new(), BTreeSet::new());
    for (request, share) in limited.filter(|(_, share)| !share.is_empty()) {
        counted.extend(share.iter().map(|node| node.name().clone()));
        resources.insert(&*request.resource);
    }
    (counted, resources)
}

/// Whether a request is for a number of VMs. Without one no peer pod is scheduled.
fn is_limited(request: &NodeRequest) -> bool {
    request.limit != Ok(None) && request.bad_resource().is_none()
}

/// What is shown of each configuration. One that is being deleted has no capacity: its nodes are about to advertise nothing.
fn capacities(
    requests: &[NodeRequest],
    nodes: &[Arc<Node>],
    in_use: Option<&InUse>,
) -> BTreeMap<String, ConfigCapacity> {
    let assignment = Assignment::of(requests, nodes);
    let shares = requests.iter().zip(assignment.shares());
    let shown = shares.map(|(request, share)| {
        let known = if request.deleted { readiness(request) } else { capacity(request, &share, in_use) };
        (request.name.clone(), known)
    });
    shown.collect()
}

/// The same while the nodes are not known.
fn without_nodes(requests: &[NodeRequest]) -> BTreeMap<String, ConfigCapacity> {
    requests.iter().map(|request| (request.name.clone(), readiness(request))).collect()
}

/// Whether a configuration is ready, without its capacity.
fn readiness(request: &NodeRequest) -> ConfigCapacity {
    ConfigCapacity { ready: request.ready, ..ConfigCapacity::default() }
}

fn capacity(request: &NodeRequest, share: &[&Arc<Node>], in_use: Option<&InUse>) -> ConfigCapacity {
    let advertised = |node: &Node| {
        let is_ours = node.mark() == Some(&*request.resource);
        node.level(&request.resource).allocatable.filter(|_| is_ours).unwrap_or(0)
    };
    let usage = || {
        let mut usage = Usage::default();
        for node in share {
            let used = in_use.filter(|it| it.is_counted(node.name()))?.of(node.name(), &request.resource);
            usage.used += u64::from(used);
            usage.free += u64::from(advertised(node).saturating_sub(used));
        }
        Some(usage)
    };
    ConfigCapacity {
        ready: request.ready,
        advertised: Some(share.iter().map(|node| u64::from(advertised(node))).sum()),
        usage: is_limited(request).then(usage).flatten(),
    }
}

#[cfg(test)]
mod tests;
