//! PeerPods that other parts of the controller requeue *(no client)*.
//!
//! The controller's own queue has no order: while more is due than it can reconcile, it may leave the same PeerPods out again and
//! again. So few are handed out at a time, and namespaces take turns. Those that have a slot at their cloud come first.

use std::{collections::HashSet, mem, sync::Arc};

use futures::{Stream, StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{index::Key, queue::Queue};
use crate::api::v1alpha1::PeerPod;

/// The most that are handed out and can start, but have not. The controller starts thousands of reconciles a second, so this does not
/// limit it.
const MOST_AHEAD: usize = 32;

/// PeerPods to reconcile again. Each waits at most once, and once more while it is handed out, so there are never many more
/// than PeerPods.
#[derive(Clone, Debug, Default)]
pub(super) struct Requeues(Arc<RequeuesInner>);

#[derive(Debug, Default)]
struct RequeuesInner {
    state: Mutex<State>,
    /// Something can be handed out.
    ready: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Each of these has a slot at its cloud, which is empty until it is reconciled.
    called: Vec<Key>,
    waiting: Queue<()>,
    /// Those that were handed out and have not started.
    ahead: HashSet<Key>,
    /// Those whose reconcile runs. One that is handed out meanwhile starts after it, and keeps no other one waiting.
    running: HashSet<Key>,
}

/// The reconcile of a PeerPod, as long as it runs.
pub(super) struct Running<'a> {
    requeues: &'a Requeues,
    key: Key,
}

impl Requeues {
    /// Requeues each of these.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = Key>) {
        self.change(|state| keys.into_iter().for_each(|key| state.waiting.push(&key, || ())));
    }

    /// Requeues each of these, which have a slot at their cloud, before all others.
    pub(super) fn call(&self, keys: impl IntoIterator<Item = Key>) {
        self.change(|state| state.called.extend(keys));
    }

    /// Notes that a reconcile of this PeerPod has started.
    pub(super) fn started(&self, key: Key) -> Running<'_> {
        self.change(|state| {
            state.ahead.remove(&key);
            state.running.insert(key.clone());
        });
        Running { requeues: self, key }
    }

    /// Notes that this PeerPod was handed out, but does not exist.
    pub(super) fn skipped(&self, key: &ObjectRef<PeerPod>) {
        self.change(|state| _ = state.ahead.remove(key));
    }

    /// The requeued PeerPods as they may start, without end.
    pub(super) fn stream(self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send {
        stream::unfold(self, |requeues| async move {
            loop {
                // A change in between leaves its permit, so the wait below ends at once.
                let next = requeues.0.state.lock().take();
                if !next.is_empty() {
                    return Some((stream::iter(next).map(|key| (*key).clone()), requeues));
                }
                requeues.0.ready.notified().await;
            }
        })
        .flatten()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock();
        change(&mut state);
        if state.is_ready() {
            self.0.ready.notify_one();
        }
    }
}

impl State {
    fn is_ready(&self) -> bool {
        !self.called.is_empty() || !self.waiting.is_empty() && self.ahead.len() < MOST_AHEAD
    }

    /// Those that may start now.
    fn take(&mut self) -> Vec<Key> {
        let mut next = mem::take(&mut self.called);
        while self.ahead.len() < MOST_AHEAD
            && let Some(key) = self.waiting.pop()
        {
            if !self.running.contains(&key) {
                self.ahead.insert(key.clone());
            }
            next.push(key);
        }
        next
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.requeues.0.state.lock().running.remove(&self.key);
    }
}

#[cfg(test)]
impl Requeues {
    /// All that are requeued now, each of which starts and ends, in no order.
    pub(super) fn drain(&self) -> Vec<ObjectRef<PeerPod>> {
        let mut drained = Vec::new();
        loop {
            let next = self.0.state.lock().take();
            if next.is_empty() {
                return drained;
            }
            for key in next {
                drained.push((*key).clone());
                drop(self.started(key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream::BoxStream};

    use super::*;

    fn key(namespace: &str, name: impl std::fmt::Display) -> Key {
        ObjectRef::new(&name.to_string()).within(namespace).into()
    }

    /// The requeues of a crowd, of which nothing has started, and those that were handed out.
    fn crowd() -> (Requeues, BoxStream<'static, ObjectRef<PeerPod>>, Vec<ObjectRef<PeerPod>>) {
        let requeues = Requeues::default();
        let mut stream = requeues.clone().stream().boxed();
        requeues.add((0..5000).map(|number| key("crowd", number)));
        let ahead: Vec<_> = std::iter::from_fn(|| next(&mut stream)).collect();
        assert_eq!(ahead.len(), MOST_AHEAD);
        (requeues, stream, ahead)
    }

    /// The next one, if one may start.
    fn next(stream: &mut BoxStream<'_, ObjectRef<PeerPod>>) -> Option<ObjectRef<PeerPod>> {
        stream.next().now_or_never().flatten()
    }

    #[test]
    fn a_requeue_that_is_asked_for_twice_happens_once() {
        let requeues = Requeues::default();
        let one = key("shop", "a");
        requeues.add([one.clone(), one.clone()]);
        requeues.add([one]);
        let mut stream = requeues.stream().boxed();
        assert_eq!(next(&mut stream).unwrap().name, "a");
        assert_eq!(next(&mut stream), None);
    }

    #[test]
    fn a_namespace_that_requeues_without_end_delays_another_by_what_is_handed_out() {
        let (requeues, mut stream, ahead) = crowd();
        requeues.add([key("other", "a")]);
        assert_eq!(next(&mut stream), None, "none of them has started");
        let (mut ahead, mut handed_out) = (ahead.into_iter(), Vec::new());
        // One starts, the other one does not exist.
        drop(requeues.started(ahead.next().unwrap().into()));
        requeues.skipped(&ahead.next().unwrap());
        handed_out.extend(std::iter::from_fn(|| next(&mut stream)));
        assert_eq!(handed_out.len(), 2);
        assert!(handed_out.iter().any(|it| it.namespace.as_deref() == Some("other")), "{handed_out:?}");
    }

    #[test]
    fn a_peerpod_with_a_slot_waits_for_none_without() {
        let (requeues, mut stream, _) = crowd();
        requeues.call([key("other", "a")]);
        assert_eq!(next(&mut stream).unwrap().name, "a");
        assert_eq!(next(&mut stream), None);
    }

    #[test]
    fn those_that_run_keep_no_other_waiting() {
        let requeues = Requeues::default();
        let mut stream = requeues.clone().stream().boxed();
        let hanging: Vec<_> = (0..2 * MOST_AHEAD).map(|number| key("shop", number)).collect();
        let running: Vec<_> = hanging.iter().map(|key| requeues.started(key.clone())).collect();
        requeues.add(hanging.iter().cloned());
        assert_eq!(std::iter::from_fn(|| next(&mut stream)).count(), hanging.len());
        requeues.add([key("shop", "a")]);
        assert_eq!(next(&mut stream).unwrap().name, "a");
        drop(running);
        assert!(requeues.0.state.lock().running.is_empty());
    }
}
