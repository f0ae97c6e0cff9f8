//! What must be true before the operator counts as ready.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Collects conditions. Ready when every needed condition is met, and there is at least one: a process that has not yet named its
/// needs is not ready. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    items: Mutex<Vec<Item>>,
    changed: Notify,
}

#[derive(Debug)]
struct Item {
    name: Cow<'static, str>,
    needed: bool,
    problem: Option<String>,
}

/// One condition. Dropping it changes nothing: a condition that is not met then never will be.
#[derive(Debug)]
pub struct Condition {
    readiness: Readiness,
    index: usize,
}

impl Readiness {
    /// Adds a condition without which the operator is not ready. It is not met at first.
    pub fn needs(&self, name: impl Into<Cow<'static, str>>) -> Condition {
        self.add(Item { name: name.into(), needed: true, problem: Some("not yet".to_owned()) })
    }

    /// Adds a condition that is shown and no more, such as settings of which the last good ones are still in force. It
    /// is met at first.
    pub fn shows(&self, name: impl Into<Cow<'static, str>>) -> Condition {
        self.add(Item { name: name.into(), needed: false, problem: None })
    }

    /// Whether everything needed is met. A program that needs nothing has not started yet.
    pub fn is_ready(&self) -> bool {
        let items = self.0.items.lock();
        let mut needed = items.iter().filter(|item| item.needed).peekable();
        needed.peek().is_some() && needed.all(|item| item.problem.is_none())
    }

    /// Returns when everything needed is met.
    pub async fn ready(&self) {
        loop {
            // It counts changes from its creation on, so that none between the look and the wait is missed.
            let changed = self.0.changed.notified();
            if self.is_ready() {
                return;
            }
            changed.await;
        }
    }

    /// A line for each condition.
    pub(super) fn report(&self, title: &str) -> String {
        let mut text = format!("{title}\n");
        for Item { name, problem, .. } in self.0.items.lock().iter() {
            // Writing to a string cannot fail.
            let _ = match problem {
                None => writeln!(text, "[+] {name}"),
                Some(problem) => writeln!(text, "[-] {name}: {problem}"),
            };
        }
        text
    }

    fn add(&self, item: Item) -> Condition {
        let mut items = self.0.items.lock();
        items.push(item);
        Condition { readiness: self.clone(), index: items.len() - 1 }
    }
}

impl Condition {
    /// It is met.
    pub fn met(&self) {
        self.set(None);
    }

    /// It is not met, and why: one line without secrets, as any client may read it.
    pub fn unmet(&self, problem: impl Into<String>) {
        self.set(Some(problem.into()));
    }

    fn set(&self, problem: Option<String>) {
        // Items are never removed, so the index stays valid.
        if let Some(item) = self.readiness.0.items.lock().get_mut(self.index) {
            item.problem = problem;
        }
        self.readiness.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn ready_is_when_every_need_is_met() {
        let readiness = Readiness::default();
        assert!(!readiness.is_ready(), "nothing is known yet");
        let settings = readiness.shows("settings");
        assert!(!readiness.is_ready(), "nothing is needed yet");
        let (widgets, pods) = (readiness.needs("widgets"), readiness.needs("pods"));
        widgets.met();
        assert!(!readiness.is_ready());
        assert_eq!(
            readiness.report("not ready"),
            "not ready\n[+] settings\n[+] widgets\n[-] pods: not yet\n"
        );
        let mut waits = pin!(readiness.ready());
        assert!(waits.as_mut().now_or_never().is_none());
        pods.met();
        assert!(waits.now_or_never().is_some());
        settings.unmet("rejected: no such provider");
        assert!(readiness.is_ready());
        assert_eq!(
            readiness.report("ready"),
            "ready\n[-] settings: rejected: no such provider\n[+] widgets\n[+] pods\n"
        );
        pods.unmet("watch lost");
        drop(pods);
        assert!(!readiness.is_ready());
    }
}
