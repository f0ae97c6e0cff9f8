//! Backs off from nodes whose writes fail, so that they neither delay the others nor load the API server *(no client)*.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use operator_kit::{Backoff, backoff};
use tokio::time::Instant;

use super::node_write::NodeWrite;

/// The longest wait of nodes whose writes fail.
const LONGEST: Duration = Duration::from_secs(60);

/// This many failures in a row end a pass: they do not concern single nodes.
pub(super) const MANY: usize = 16;

/// The nodes whose writes failed. They wait together, because a pass for some of them costs as much as one for all.
#[derive(Debug)]
pub(super) struct Failures {
    /// Nodes that wait, and why their writes failed; `None`: not tried after too many failures.
    waiting: HashMap<Arc<str>, Option<String>>,
    /// Until when they wait.
    until: Option<Instant>,
    backoff: Backoff<()>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { waiting: HashMap::new(), until: None, backoff: Backoff::new(backoff::BASE, LONGEST) }
    }
}

impl Failures {
    /// Forgets all nodes without a pending write.
    pub(super) fn retain(&mut self, writes: &[NodeWrite]) {
        if !self.waiting.is_empty() {
            let meant: HashSet<_> = writes.iter().map(|write| &write.node).collect();
            self.waiting.retain(|node, _| meant.contains(node));
        }
        if self.waiting.is_empty() {
            self.until = None;
            self.backoff.succeeded(&());
        }
    }

    /// Whether a write to this node must wait.
    pub(super) fn delays(&self, node: &Arc<str>, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now) && self.waiting.contains_key(node)
    }

    /// Whether the last write to this node failed.
    pub(super) fn has(&self, node: &Arc<str>) -> bool {
        matches!(self.waiting.get(node), Some(Some(_)))
    }

    /// The write failed.
    pub(super) fn failed(&mut self, node: &Arc<str>, error: String) {
        self.waiting.insert(node.clone(), Some(error));
    }

    /// The write succeeded, or the node was removed.
    pub(super) fn succeeded(&mut self, node: &Arc<str>) {
        if self.waiting.remove(node).is_some() {
            // No longer all of them fail.
            self.backoff.succeeded(&());
        }
    }

    /// The write is not tried now, as it waits for others.
    pub(super) fn forget(&mut self, node: &Arc<str>) {
        self.waiting.remove(node);
    }

    /// A pass ended in which writes failed, and these nodes were not tried.
    pub(super) fn ended(&mut self, untried: impl IntoIterator<Item = Arc<str>>, now: Instant) {
        for node in untried {
            self.waiting.entry(node).or_insert(None);
        }
        if self.until.is_none_or(|until| until <= now) {
            self.until = Some(now + self.backoff.failed(&()));
        }
    }

    /// When they may be written to.
    pub(super) fn again(&self, now: Instant) -> Option<Duration> {
        let wait = || self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        (!self.waiting.is_empty()).then(wait)
    }

    /// All nodes whose writes failed and the errors, by name.
    pub(super) fn all(&self) -> Vec<(Arc<str>, String)> {
        let failed = self.waiting.iter().filter_map(|(node, error)| Some((node.clone(), error.clone()?)));
        let mut all: Vec<_> = failed.collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(node: &str) -> NodeWrite {
        NodeWrite {
            node: node.into(),
            uid: "u".into(),
            resources: [("x.y/vm".to_owned(), Some(1))].into(),
            mark: None,
        }
    }

    #[test]
    fn failed_and_untried_nodes_wait_together_ever_longer_and_others_do_not_wait_for_them() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let [failing, late, sound, untried] = ["failing", "late", "sound", "untried"].map(Arc::<str>::from);
        assert_eq!(failures.again(start), None);
        let (mut now, mut passes) = (start, 0);
        while now < start + Duration::from_secs(3600) {
            failures.failed(&failing, "no".into());
            failures.ended([untried.clone()], now);
            let pause = failures.again(now).unwrap();
            assert!(!pause.is_zero() && pause <= if passes == 0 { backoff::BASE } else { LONGEST });
            assert!(failures.delays(&failing, now) && failures.delays(&untried, now));
            // A further failure makes none of them wait longer.
            failures.failed(&late, "neither".into());
            failures.ended([], now);
            assert_eq!(failures.again(now), Some(pause));
            assert!(failures.delays(&late, now) && !failures.delays(&sound, now));
            now += pause;
            assert!([&failing, &late, &untried].iter().all(|node| !failures.delays(node, now)));
            passes += 1;
        }
        assert!((60..200).contains(&passes), "{passes}");
        assert!(failures.has(&failing) && failures.has(&late) && !failures.has(&untried));
        assert_eq!(failures.all(), [(failing, "no".to_owned()), (late, "neither".to_owned())]);
        // Others were written to all the time.
        failures.succeeded(&sound);
        assert_eq!(failures.backoff.failures(&()), passes);
        // As soon as a write to one of them succeeds, the others wait only briefly.
        failures.succeeded(&untried);
        failures.ended([], now);
        assert!(failures.again(now).is_some_and(|again| !again.is_zero() && again <= backoff::BASE));
    }

    #[test]
    fn nodes_without_a_pending_write_are_forgotten_and_the_pause_with_the_last_of_them() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        failures.failed(&a, "no".into());
        failures.failed(&b, "neither".into());
        failures.ended([], now);
        failures.retain(&[write("b"), write("c")]);
        assert_eq!(failures.all(), [(b.clone(), "neither".to_owned())]);
        assert!(failures.delays(&b, now) && !failures.delays(&a, now));
        failures.retain(&[write("a")]);
        assert_eq!((failures.again(now), failures.until, failures.backoff.failures(&())), (None, None, 0));
        // The same if it waits for others first.
        failures.failed(&b, "no".into());
        failures.ended([], now);
        failures.forget(&b);
        assert_eq!(failures.again(now), None);
        failures.retain(&[write("b")]);
        assert_eq!((failures.until, failures.backoff.failures(&())), (None, 0));
    }
}
