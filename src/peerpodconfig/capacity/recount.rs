//! The counts of a pass, and the nodes that later passes count again *(no client)*.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::plan::InUse;

/// How long uneven shares stay while there is nothing else to write. Running peer pods keep them uneven, and no watch shows when
/// these Pods end.
pub(super) const UNEVEN: Duration = Duration::from_secs(60);

/// How old a count may be for a write.
const RECENT: Duration = Duration::from_secs(5);

/// When a node that got a smaller share is counted again. By then the scheduler and the kubelet have seen the smaller share, so no
/// further Pod exceeds it.
const RECOUNT_DELAY: Duration = Duration::from_secs(5);

/// The counts that passes leave to each other.
#[derive(Debug, Default)]
pub(super) struct Recount {
    /// The nodes on which peer pods were found, and when.
    counts: HashMap<Arc<str>, Counted>,
    /// Nodes to count again, and when.
    scheduled: HashMap<Arc<str>, Instant>,
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
    /// All stored counts, to see whether there is anything to do.
    pub(super) fn all(&self, now: Instant) -> InUse {
        self.of(|_, counted| counted.is_younger(UNEVEN, now))
    }

    /// The counts that are recent enough, for nodes that do not change. Nodes that wait are among them: they are not counted until
    /// their turn.
    pub(super) fn recent(&self, waits: impl Fn(&Arc<str>) -> bool, now: Instant) -> InUse {
        self.of(|node, counted| counted.is_younger(RECENT, now) || waits(node))
    }

    fn of(&self, matches: impl Fn(&Arc<str>, &Counted) -> bool) -> InUse {
        let counts = self.counts.iter().filter(|(node, counted)| matches(node, counted));
        InUse::remembered(counts.map(|(node, counted)| (node.clone(), counted.resources.clone())).collect())
    }

    /// Stores the counts of a plan. The counts of nodes that wait stay.
    pub(super) fn take(&mut self, in_use: &InUse, waits: impl Fn(&Arc<str>) -> bool, now: Instant) {
        self.counts.retain(|node, counted| counted.is_younger(UNEVEN, now) || waits(node));
        if in_use.is_complete() {
            self.counts.clear();
            self.scheduled.retain(|_, due| *due > now);
        }
        for (node, resources) in in_use.counted() {
            if self.scheduled.get(node).is_some_and(|due| *due <= now) {
                self.scheduled.remove(node);
            }
            // A node without peer pods needs no entry.
            if resources.is_empty() {
                self.counts.remove(node);
            } else {
                self.counts.insert(node.clone(), Counted { at: now, resources: resources.clone() });
            }
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
    fn a_count_is_kept_as_long_as_uneven_shares_and_is_recent_for_seconds() {
        let (mut recount, start) = (Recount::default(), Instant::now());
        recount.take(&counted(&[("a", 3), ("b", 0)]), nobody, start);
        recount.take(&counted(&[("c", 1)]), nobody, start + RECENT);
        assert_eq!(recount.recent(nobody, start + RECENT), remembered(&[("c", 1)]));
        assert_eq!(recount.all(start + RECENT), remembered(&[("a", 3), ("c", 1)]));
        assert_eq!(recount.all(start + UNEVEN), remembered(&[("c", 1)]));
        recount.take(&counted(&[("c", 0)]), nobody, start + UNEVEN);
        assert_eq!((recount.all(start), recount.counts.len()), (InUse::default(), 0));
        recount.take(&counted(&[("a", 3)]), nobody, start);
        // A node that waits is not recounted.
        let waits = |node: &Arc<str>| **node == *"a";
        let later = start + 2 * UNEVEN;
        recount.take(&counted(&[("c", 1)]), waits, later);
        assert_eq!(recount.recent(waits, later), remembered(&[("a", 3), ("c", 1)]));
        assert_eq!(recount.recent(nobody, later), remembered(&[("c", 1)]));
        recount.take(&InUse::of_all([("b".into(), [(VM.to_owned(), 2)].into())].into()), nobody, start);
        assert_eq!(recount.all(start), remembered(&[("b", 2)]));
    }

    #[test]
    fn a_node_stays_due_until_it_was_counted() {
        let (mut recount, start) = (Recount::default(), Instant::now());
        recount.schedule(["a".into(), "b".into()], start);
        assert_eq!((recount.due(start).len(), recount.next(start)), (0, Some(RECOUNT_DELAY)));
        // A count for another reason was too early.
        recount.take(&counted(&[("a", 3)]), nobody, start);
        let later = start + RECOUNT_DELAY;
        assert_eq!((recount.due(later).len(), recount.next(later)), (2, Some(Duration::ZERO)));
        recount.take(&counted(&[("a", 0)]), nobody, later);
        assert_eq!(recount.due(later), ["b".into()]);
        recount.take(&InUse::of_all(HashMap::new()), nobody, later);
        assert_eq!((recount.due(later).len(), recount.next(later)), (0, None));
    }
}
