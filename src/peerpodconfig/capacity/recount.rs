//! The counts of a pass, and the nodes that later passes count again *(no client)*.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{super::findings::SLOW_RESYNC, in_use::InUse, node_request::NodeRequest};
use crate::api::v1alpha1::Distribution;

/// How long uneven shares stay, at least, while there is nothing else to write. Running peer pods keep them uneven, and no watch shows
/// when these Pods end.
const UNEVEN: Duration = Duration::from_secs(60);

/// They stay this many times the duration of the last count of all nodes, if that is longer: a large cluster has a hundred thousand Pods
/// to count, for as long as its peer pods run.
const REST: u32 = 20;

/// But no longer than this.
const MOST_UNEVEN: Duration = SLOW_RESYNC;

/// When a node that got a smaller share is counted again. By then the scheduler and the kubelet have seen the smaller share, so no
/// further Pod exceeds it.
const RECOUNT_DELAY: Duration = Duration::from_secs(5);

/// The counts that passes leave to each other.
#[derive(Debug)]
pub(super) struct Recount {
    /// The nodes on which peer pods were found, and when.
    counts: HashMap<Arc<str>, Counted>,
    /// Nodes to count again, and when.
    scheduled: HashMap<Arc<str>, Instant>,
    /// How long uneven shares stay, and the counts with them.
    uneven: Duration,
    /// What the shares are of.
    shared: Vec<Shared>,
}

/// What a request shares out: how many VMs, as which resource, and how.
type Shared = (String, Option<u32>, Distribution);

impl Default for Recount {
    fn default() -> Self {
        Self { counts: HashMap::new(), scheduled: HashMap::new(), uneven: UNEVEN, shared: Vec::new() }
    }
}

#[derive(Debug)]
struct Counted {
    at: Instant,
    resources: BTreeMap<String, u32>,
}

impl Counted {
    fn is_younger(&self, age: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < age
    }
}

impl Recount {
    /// How long uneven shares stay.
    pub(super) fn uneven(&self) -> Duration {
        self.uneven
    }

    /// Forgets the counts, except those of nodes that wait, if these requests share out something else than before: peer pods that have
    /// ended since would keep a larger share than the new limit allows.
    pub(super) fn share(&mut self, requests: &[NodeRequest], waits: impl Fn(&Arc<str>) -> bool) {
        let shared = requests.iter().map(|request| {
            let limit = request.limit.as_ref().ok().copied().flatten();
            (request.resource.clone(), limit, request.distribution)
        });
        let shared: Vec<_> = shared.collect();
        if shared != self.shared {
            self.counts.retain(|node, _| waits(node));
            self.shared = shared;
        }
    }

    /// The stored counts. They keep shares as they are, and lower none: a node whose share is to become smaller is counted first. Those
    /// of nodes that wait are kept until their turn.
    pub(super) fn all(&self, waits: impl Fn(&Arc<str>) -> bool, now: Instant) -> InUse {
        let is_kept =
            |node: &Arc<str>, counted: &Counted| counted.is_younger(self.uneven, now) || waits(node);
        let counts = self.counts.iter().filter(|(node, counted)| is_kept(node, counted));
        InUse::remembered(counts.map(|(node, counted)| (node.clone(), counted.resources.clone())).collect())
    }

    /// Stores the counts of a plan, which was begun `now` and took that long. The counts of nodes that wait stay.
    pub(super) fn take(
        &mut self,
        in_use: &InUse,
        took: Duration,
        waits: impl Fn(&Arc<str>) -> bool,
        now: Instant,
    ) {
        if in_use.is_complete() {
            self.counts.clear();
            self.scheduled.retain(|_, due| *due > now);
            self.uneven = took.saturating_mul(REST).clamp(UNEVEN, MOST_UNEVEN);
        }
        let uneven = self.uneven;
        self.counts.retain(|node, counted| counted.is_younger(uneven, now) || waits(node));
        for (node, resources) in in_use.counted() {
            if self.scheduled.get(node).is_some_and(|due| *due <= now) {
                self.scheduled.remove(node);
            }
            // A node without peer pods needs no entry.
            if resources.is_empty() {
                self.counts.remove(node);
            } else {
                self.counts.insert(node.clone(), Counted { at: now + took, resources: resources.clone() });
            }
        }
        if self.counts.is_empty() {
            self.uneven = UNEVEN;
        }
    }

    /// Schedules a recount of these nodes.
    pub(super) fn schedule(&mut self, nodes: impl IntoIterator<Item = Arc<str>>, now: Instant) {
        self.scheduled.extend(nodes.into_iter().map(|node| (node, now + RECOUNT_DELAY)));
    }

    /// The nodes whose recount is due.
    pub(super) fn due(&self, now: Instant) -> Vec<Arc<str>> {
        self.scheduled.iter().filter(|(_, due)| **due <= now).map(|(node, _)| node.clone()).collect()
    }

    /// When the next recount is due.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        self.scheduled.values().min().map(|due| due.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: &str = "x.y/vm";
    const AT_ONCE: Duration = Duration::ZERO;

    fn counted(nodes: &[(&str, u32)]) -> InUse {
        let mut in_use = InUse::default();
        for (node, vms) in nodes {
            in_use
                .add((*node).into(), Some((VM.to_owned(), *vms)).filter(|_| *vms > 0).into_iter().collect());
        }
        in_use
    }

    fn nobody(_: &Arc<str>) -> bool {
        false
    }

    fn remembered(nodes: &[(&str, u32)]) -> InUse {
        InUse::remembered(
            nodes.iter().map(|(node, vms)| ((*node).into(), [(VM.to_owned(), *vms)].into())).collect(),
        )
    }

    #[test]
    fn a_count_is_kept_as_long_as_uneven_shares() {
        let (mut recount, start) = (Recount::default(), Instant::now());
        let later = start + UNEVEN / 2;
        recount.take(&counted(&[("a", 3), ("b", 0)]), AT_ONCE, nobody, start);
        recount.take(&counted(&[("c", 1)]), AT_ONCE, nobody, later);
        assert_eq!(recount.all(nobody, later), remembered(&[("a", 3), ("c", 1)]));
        assert_eq!(recount.all(nobody, start + UNEVEN), remembered(&[("c", 1)]));
        recount.take(&counted(&[("c", 0)]), AT_ONCE, nobody, start + UNEVEN);
        assert_eq!((recount.all(nobody, start), recount.counts.len()), (InUse::default(), 0));
        recount.take(&counted(&[("a", 3)]), AT_ONCE, nobody, start);
        // A node that waits is not recounted.
        let waits = |node: &Arc<str>| **node == *"a";
        let later = start + 2 * UNEVEN;
        recount.take(&counted(&[("c", 1)]), AT_ONCE, waits, later);
        assert_eq!(recount.all(waits, later), remembered(&[("a", 3), ("c", 1)]));
        assert_eq!(recount.all(nobody, later), remembered(&[("c", 1)]));
        let all = InUse::of_all([("b".into(), [(VM.to_owned(), 2)].into())].into());
        recount.take(&all, AT_ONCE, nobody, start);
        assert_eq!(recount.all(nobody, start), remembered(&[("b", 2)]));
    }

    #[test]
    fn counts_that_take_long_are_rare() {
        let (mut recount, start, long) = (Recount::default(), Instant::now(), UNEVEN / 10);
        let all = InUse::of_all([("a".into(), [(VM.to_owned(), 2)].into())].into());
        recount.take(&all, long, nobody, start);
        let (rest, counted_at) = (recount.uneven(), start + long);
        assert!(rest > 10 * long, "{rest:?}");
        // A node in between is counted in a moment, but all of them would not be.
        recount.take(&counted(&[("b", 1)]), AT_ONCE, nobody, counted_at);
        assert_eq!(recount.uneven(), rest);
        let last = counted_at + rest - Duration::from_millis(1);
        assert_eq!(recount.all(nobody, last), remembered(&[("a", 2), ("b", 1)]));
        assert_eq!(recount.all(nobody, counted_at + rest), InUse::default());
        recount.take(&counted(&[("a", 0), ("b", 0)]), AT_ONCE, nobody, last);
        assert_eq!(recount.uneven(), UNEVEN, "nothing is uneven any more");
        recount.take(&all, MOST_UNEVEN, nobody, start);
        assert_eq!(recount.uneven(), MOST_UNEVEN);
    }

    #[test]
    fn another_limit_needs_new_counts() {
        let request = |limit: u32| {
            let config = serde_json::from_value(serde_json::json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
                "metadata": { "name": "config" }, "spec": { "limit": limit },
            }));
            [NodeRequest::of(&config.unwrap())]
        };
        let (mut recount, now) = (Recount::default(), Instant::now());
        recount.share(&request(10), nobody);
        recount.take(&counted(&[("a", 3), ("b", 1)]), AT_ONCE, nobody, now);
        recount.share(&request(10), nobody);
        assert_eq!(recount.all(nobody, now), remembered(&[("a", 3), ("b", 1)]));
        recount.share(&request(4), |node| **node == *"b");
        assert_eq!(recount.all(nobody, now), remembered(&[("b", 1)]));
    }

    #[test]
    fn a_node_stays_due_until_it_was_counted() {
        let (mut recount, start) = (Recount::default(), Instant::now());
        recount.schedule(["a".into(), "b".into()], start);
        assert_eq!((recount.due(start).len(), recount.next(start)), (0, Some(RECOUNT_DELAY)));
        // A count for another reason was too early.
        recount.take(&counted(&[("a", 3)]), AT_ONCE, nobody, start);
        let later = start + RECOUNT_DELAY;
        assert_eq!((recount.due(later).len(), recount.next(later)), (2, Some(Duration::ZERO)));
        recount.take(&counted(&[("a", 0)]), AT_ONCE, nobody, later);
        assert_eq!(recount.due(later), ["b".into()]);
        recount.take(&InUse::of_all(HashMap::new()), AT_ONCE, nobody, later);
        assert_eq!((recount.due(later).len(), recount.next(later)), (0, None));
    }
}
