//! Backs off from nodes whose writes fail, so that they neither delay the others nor load the API server *(no client)*.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use operator_kit::{Backoff, backoff};
use tokio::time::Instant;

use super::plan::NodeWrite;

/// The longest wait of a node whose writes fail.
const LONGEST: Duration = Duration::from_secs(60);

/// This many failures do not concern single nodes. This many in a row end a pass. This many waiting nodes wait together, because
/// a pass for some of them costs as much as one for all.
pub(super) const MANY: usize = 16;

/// The nodes whose writes failed, why, and until when they wait.
#[derive(Debug)]
pub(super) struct Failures {
    table: HashMap<Arc<str>, Failure>,
    backoff: Backoff<Arc<str>>,
    /// Nodes that were not tried after too many failures.
    untried: HashSet<Arc<str>>,
    /// Until when all of these wait together, while they are many.
    shared_pause_until: Option<Instant>,
    shared_backoff: Backoff<()>,
}

#[derive(Debug)]
struct Failure {
    error: String,
    until: Instant,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            table: HashMap::new(),
            backoff: Backoff::new(backoff::BASE, LONGEST),
            untried: HashSet::new(),
            shared_pause_until: None,
            shared_backoff: Backoff::new(backoff::BASE, LONGEST),
        }
    }
}

impl Failures {
    /// Forgets all nodes without a pending write.
    pub(super) fn retain(&mut self, writes: &[NodeWrite]) {
        if self.table.is_empty() && self.untried.is_empty() {
            return;
        }
        let meant: HashSet<_> = writes.iter().map(|write| &write.node).collect();
        self.table.retain(|node, _| meant.contains(node));
        self.backoff.retain(|node| meant.contains(node));
        self.untried.retain(|node| meant.contains(node));
        if self.table.is_empty() && self.untried.is_empty() {
            self.shared_pause_until = None;
            self.shared_backoff.succeeded(&());
        }
    }

    /// Whether a write to this node must wait.
    pub(super) fn delays(&self, node: &Arc<str>, now: Instant) -> bool {
        let until = match self.table.get(node) {
            Some(failure) => self.shared_pause().unwrap_or(failure.until),
            None if self.untried.contains(node) => self.shared_pause().unwrap_or(now),
            None => return false,
        };
        until > now
    }

    /// Whether the last write to this node failed.
    pub(super) fn has(&self, node: &Arc<str>) -> bool {
        self.table.contains_key(node)
    }

    /// The write failed.
    pub(super) fn failed(&mut self, node: &Arc<str>, error: String, now: Instant) {
        let until = now + self.backoff.failed(node);
        self.table.insert(node.clone(), Failure { error, until });
        self.untried.remove(node);
    }

    /// The write succeeded, or the node was removed.
    pub(super) fn succeeded(&mut self, node: &Arc<str>) {
        let (failed, untried) = (self.table.remove(node).is_some(), self.untried.remove(node));
        if failed || untried {
            self.backoff.succeeded(node);
            // No longer all of them fail.
            self.shared_backoff.succeeded(&());
        }
    }

    /// The write is not tried now, as it waits for others.
    pub(super) fn forget(&mut self, node: &Arc<str>) {
        self.table.remove(node);
        self.untried.remove(node);
        self.backoff.succeeded(node);
    }

    /// A pass ended in which writes failed, and these nodes were not tried.
    pub(super) fn ended(&mut self, untried: impl IntoIterator<Item = Arc<str>>, now: Instant) {
        self.untried.extend(untried);
        if self.are_many() && self.shared_pause_until.is_none_or(|until| until <= now) {
            self.shared_pause_until = Some(now + self.shared_backoff.failed(&()));
        }
    }

    /// When the first of them may be written to.
    pub(super) fn again(&self, now: Instant) -> Option<Duration> {
        let untried = (!self.untried.is_empty()).then_some(now);
        let first = self.table.values().map(|failure| failure.until).chain(untried).min()?;
        Some(self.shared_pause().unwrap_or(first).saturating_duration_since(now))
    }

    /// All nodes whose writes failed and the errors, by name.
    pub(super) fn all(&self) -> Vec<(Arc<str>, String)> {
        let mut all: Vec<_> =
            self.table.iter().map(|(node, failure)| (node.clone(), failure.error.clone())).collect();
        all.sort();
        all
    }

    fn are_many(&self) -> bool {
        self.table.len() + self.untried.len() >= MANY
    }

    /// Until when all of them wait, if they are many.
    fn shared_pause(&self) -> Option<Instant> {
        self.shared_pause_until.filter(|_| self.are_many())
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
    fn each_node_waits_ever_longer_until_it_could_be_written_to() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        failures.failed(&a, "no".into(), now);
        assert!(failures.delays(&a, now) && !failures.delays(&b, now));
        assert!(failures.again(now).is_some_and(|again| !again.is_zero() && again <= backoff::BASE));
        assert!(!failures.delays(&a, now + backoff::BASE));
        for _ in 0..20 {
            failures.failed(&a, "no".into(), now);
        }
        assert!(!failures.delays(&a, now + LONGEST));
        failures.failed(&b, "neither".into(), now);
        assert_eq!(failures.all(), [(a.clone(), "no".to_owned()), (b.clone(), "neither".to_owned())]);
        failures.succeeded(&a);
        assert_eq!((failures.delays(&a, now), failures.backoff.failures(&a)), (false, 0));
        failures.retain(&[write("b"), write("c")]);
        assert_eq!(failures.all().len(), 1);
        failures.retain(&[write("a")]);
        assert_eq!((failures.all().len(), failures.again(now), failures.backoff.failures(&b)), (0, None, 0));
    }

    #[test]
    fn many_wait_together_ever_longer_and_others_do_not_wait_for_them() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let nodes: Vec<_> = (0..MANY).map(|number| Arc::<str>::from(format!("{number}"))).collect();
        let [untried, failing @ ..] = &nodes[..] else { unreachable!() };
        let other = Arc::from("other");
        // A few nodes wait each by itself.
        failures.failed(&failing[0], "no".into(), start);
        failures.ended([], start);
        assert_eq!(failures.shared_pause_until, None);
        let (mut now, mut passes) = (start, 0);
        while now < start + Duration::from_secs(3600) {
            for node in failing.iter().filter(|node| !failures.delays(node, now)).collect::<Vec<_>>() {
                failures.failed(node, "no".into(), now);
            }
            failures.ended([untried.clone()], now);
            assert!(nodes.iter().all(|node| failures.delays(node, now)));
            assert!(!failures.delays(&"sound".into(), now));
            let pause_until = failures.shared_pause_until;
            // A further failure makes none of them wait longer.
            failures.failed(&other, "no".into(), now);
            failures.ended([], now);
            assert_eq!(failures.shared_pause_until, pause_until);
            now += failures.again(now).unwrap();
            passes += 1;
        }
        assert!((60..140).contains(&passes), "{passes}");
        assert!(!failures.delays(untried, now));
        // As soon as one write succeeds, the others wait only briefly.
        failures.succeeded(untried);
        failures.ended([], now);
        assert!(failures.again(now).is_some_and(|again| again <= LONGEST));
        assert_eq!(failures.shared_backoff.failures(&()), 1);
        failures.retain(&[]);
        assert_eq!((failures.shared_pause_until, failures.again(now)), (None, None));
    }
}
