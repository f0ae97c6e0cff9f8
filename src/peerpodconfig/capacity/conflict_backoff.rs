//! Backs off from a node that another program keeps resetting *(no client)*.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use operator_kit::Backoff;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::node_write::NodeWrite;

/// The longest first wait of a node that was reset after its correction.
const FIRST: Duration = Duration::from_secs(5);

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(300);

/// A node that was not reset for this long has no more backoff.
const PEACE: Duration = Duration::from_secs(600);

/// The last write to each node. The operator corrects the first reset of a node at once, further ones after waits that double.
#[derive(Debug)]
pub(super) struct ConflictBackoff {
    hasher: RandomState,
    last: Mutex<HashMap<Arc<str>, Last>>,
    backoff: Backoff<Arc<str>>,
}

/// The last write to a node.
#[derive(Debug)]
struct Last {
    content: u64,
    at: Instant,
    /// When the same content may be written again.
    again: Instant,
}

impl Last {
    fn wait(&self, now: Instant) -> Option<Duration> {
        self.again.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }
}

impl Default for ConflictBackoff {
    fn default() -> Self {
        Self { hasher: RandomState::new(), last: Mutex::default(), backoff: Backoff::new(FIRST, LONGEST) }
    }
}

impl ConflictBackoff {
    /// Notes a write, unless the same content was written before and undone too often: then returns how long it must wait. New
    /// content need not wait.
    pub(super) fn admit(&self, write: &NodeWrite, now: Instant) -> Result<(), Duration> {
        let content = self.hasher.hash_one(write);
        let mut table = self.last.lock();
        let again = match table.get(&write.node) {
            Some(last) if last.content == content => {
                if let Some(wait) = last.wait(now) {
                    return Err(wait);
                }
                now + self.backoff.failed(&write.node)
            }
            _ => {
                self.backoff.succeeded(&write.node);
                now
            }
        };
        table.insert(write.node.clone(), Last { content, at: now, again });
        Ok(())
    }

    /// How long this write would have to wait; `None`: it need not.
    pub(super) fn wait(&self, write: &NodeWrite, now: Instant) -> Option<Duration> {
        let content = self.hasher.hash_one(write);
        self.last.lock().get(&write.node).filter(|last| last.content == content)?.wait(now)
    }

    /// Whether the content that was written to a node last would have to wait.
    pub(super) fn delays(&self, node: &Arc<str>, now: Instant) -> bool {
        self.last.lock().get(node).is_some_and(|last| last.wait(now).is_some())
    }

    /// The noted write failed.
    pub(super) fn not_written(&self, node: &Arc<str>) {
        self.last.lock().remove(node);
    }

    /// Forgets old writes.
    pub(super) fn forget_old(&self, now: Instant) {
        let mut table = self.last.lock();
        table.retain(|_, last| now.saturating_duration_since(last.at) < PEACE);
        self.backoff.retain(|node| table.contains_key(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(node: &str, vms: u32) -> NodeWrite {
        NodeWrite {
            node: node.into(),
            uid: "u".into(),
            resources: [("x.y/vm".to_owned(), Some(vms))].into(),
            mark: Some("x.y/vm".to_owned()),
        }
    }

    #[test]
    fn the_first_reset_is_corrected_at_once_and_further_ones_ever_more_slowly() {
        let (conflicts, start) = (ConflictBackoff::default(), Instant::now());
        let mut now = start;
        let mut written = 0;
        // Another program resets the node every 100 ms, for an hour.
        while now < start + Duration::from_secs(3600) {
            conflicts.forget_old(now);
            match conflicts.admit(&write("a", 3), now) {
                Ok(()) => written += 1,
                Err(wait) => assert!(wait <= LONGEST),
            }
            if now == start + Duration::from_millis(100) {
                assert_eq!(written, 2, "the first reset");
            }
            now += Duration::from_millis(100);
        }
        // Delays are random, between half of the first wait and the longest so far.
        assert!((10..80).contains(&written), "{written}");
    }

    #[test]
    fn other_nodes_new_decisions_and_failed_writes_do_not_wait() {
        let (conflicts, now) = (ConflictBackoff::default(), Instant::now());
        for _ in 0..2 {
            conflicts.admit(&write("a", 3), now).unwrap();
        }
        assert!(conflicts.admit(&write("a", 3), now).is_err());
        let waits = |node: &str, vms: u32, now| conflicts.wait(&write(node, vms), now).is_some();
        assert!(waits("a", 3, now) && !waits("a", 4, now));
        assert!(!waits("a", 3, now + FIRST) && !waits("b", 3, now));
        assert!(conflicts.delays(&"a".into(), now) && !conflicts.delays(&"a".into(), now + FIRST));
        conflicts.admit(&write("b", 3), now).unwrap();
        conflicts.admit(&write("a", 4), now).unwrap();
        for _ in 0..5 {
            conflicts.admit(&write("a", 5), now).unwrap();
            conflicts.not_written(&"a".into());
        }
    }

    #[test]
    fn a_node_that_is_left_alone_has_no_more_backoff() {
        let (conflicts, now) = (ConflictBackoff::default(), Instant::now());
        while conflicts.admit(&write("a", 3), now).is_ok() {}
        let later = now + PEACE;
        conflicts.forget_old(later);
        assert!(conflicts.last.lock().is_empty() && conflicts.backoff.failures(&"a".into()) == 0);
        for _ in 0..2 {
            conflicts.admit(&write("a", 3), later).unwrap();
        }
    }
}
