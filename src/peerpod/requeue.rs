//! PeerPods that other parts of the controller requeue *(no client)*.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{Stream, StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

use super::index::Key;
use crate::api::v1alpha1::PeerPod;

/// PeerPods to reconcile again. Each waits at most once, and once more while it is handed out, so there are never many more
/// than PeerPods.
#[derive(Clone, Debug, Default)]
pub(super) struct Requeues(Arc<RequeuesInner>);

#[derive(Debug, Default)]
struct RequeuesInner {
    waiting: Mutex<HashSet<Key>>,
    arrived: Notify,
}

impl Requeues {
    /// Requeues each of these.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = Key>) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        waiting.extend(keys);
        if waiting.len() > before {
            self.0.arrived.notify_one();
        }
    }

    /// The requeued PeerPods as they arrive, without end.
    pub(super) fn stream(self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send {
        stream::unfold(self, |requeues| async move {
            loop {
                // One that is added in between leaves its permit, so the wait below ends at once.
                let waiting = requeues.take();
                if !waiting.is_empty() {
                    return Some((stream::iter(waiting).map(|key| (*key).clone()), requeues));
                }
                requeues.0.arrived.notified().await;
            }
        })
        .flatten()
    }

    fn take(&self) -> HashSet<Key> {
        std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_requeue_that_is_asked_for_twice_happens_once() {
        let requeues = Requeues::default();
        let one = Key::from(ObjectRef::new("a").within("shop"));
        requeues.add([one.clone(), one.clone()]);
        requeues.add([one]);
        let mut stream = Box::pin(requeues.stream());
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert!(futures::poll!(stream.next()).is_pending());
    }
}
