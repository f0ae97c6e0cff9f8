//! Nodes that could not be written to: each is left alone for a while, so that it does not keep others from their turn.
//! *(no client)*

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::plan::NodeWrite;
use crate::runtime::{Backoff, backoff};

/// What a node that cannot be written to waits for at last.
const LONGEST: Duration = Duration::from_secs(60);

/// Which nodes could not be written to, why, and until when they wait.
#[derive(Debug)]
pub(super) struct Failures {
    table: HashMap<Arc<str>, Failure>,
    backoff: Backoff<Arc<str>>,
}

#[derive(Debug)]
struct Failure {
    error: String,
    until: Instant,
}

impl Default for Failures {
    fn default() -> Self {
        Self { table: HashMap::new(), backoff: Backoff::new(backoff::BASE, LONGEST) }
    }
}

impl Failures {
    /// Forgets all nodes that are not to be written to any more.
    pub(super) fn retain(&mut self, writes: &[NodeWrite]) {
        if !self.table.is_empty() {
            let meant: HashSet<_> = writes.iter().map(|write| &write.node).collect();
            self.table.retain(|node, _| meant.contains(node));
            self.backoff.retain(|node| meant.contains(node));
        }
    }

    /// Whether a node may not be written to yet.
    pub(super) fn holds(&self, node: &Arc<str>, now: Instant) -> bool {
        self.table.get(node).is_some_and(|failure| failure.until > now)
    }

    /// It could not be written to.
    pub(super) fn failed(&mut self, node: &Arc<str>, error: String, now: Instant) {
        let until = now + self.backoff.failed(node);
        self.table.insert(node.clone(), Failure { error, until });
    }

    /// It was written to, or is gone.
    pub(super) fn succeeded(&mut self, node: &Arc<str>) {
        self.table.remove(node);
        self.backoff.succeeded(node);
    }

    /// When the first of them may be written to.
    pub(super) fn again(&self, now: Instant) -> Option<Duration> {
        self.table.values().map(|failure| failure.until.saturating_duration_since(now)).min()
    }

    /// All of them and what went wrong, by name.
    pub(super) fn all(&self) -> Vec<(Arc<str>, String)> {
        let mut all: Vec<_> =
            self.table.iter().map(|(node, failure)| (node.clone(), failure.error.clone())).collect();
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
    fn each_node_waits_ever_longer_until_it_could_be_written_to() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let [a, b] = ["a", "b"].map(Arc::<str>::from);
        failures.failed(&a, "no".into(), now);
        assert!(failures.holds(&a, now) && !failures.holds(&b, now));
        assert!(failures.again(now).is_some_and(|again| !again.is_zero() && again <= backoff::BASE));
        assert!(!failures.holds(&a, now + backoff::BASE));
        for _ in 0..20 {
            failures.failed(&a, "no".into(), now);
        }
        assert!(!failures.holds(&a, now + LONGEST));
        failures.failed(&b, "neither".into(), now);
        assert_eq!(failures.all(), [(a.clone(), "no".to_owned()), (b.clone(), "neither".to_owned())]);
        failures.succeeded(&a);
        assert_eq!((failures.holds(&a, now), failures.backoff.failures(&a)), (false, 0));
        failures.retain(&[write("b"), write("c")]);
        assert_eq!(failures.all().len(), 1);
        failures.retain(&[write("a")]);
        assert_eq!((failures.all().len(), failures.again(now), failures.backoff.failures(&b)), (0, None, 0));
    }
}
