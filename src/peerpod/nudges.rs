//! PeerPods that somebody asks to be looked at again *(no client)*.

use std::{
    collections::{BTreeSet, HashSet},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::index::{Key, Name};
use crate::api::v1alpha1::PeerPod;

/// PeerPods that want another look. Each waits at most once, and once more while it is handed out, so there are never
/// many more than there are PeerPods.
#[derive(Clone, Debug, Default)]
pub(super) struct Nudges(Arc<NudgesInner>);

#[derive(Debug, Default)]
struct NudgesInner {
    waiting: Mutex<HashSet<Key>>,
    arrived: Notify,
}

impl Nudges {
    /// Asks for another look at each of these.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = Key>) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        waiting.extend(keys);
        if waiting.len() > before {
            self.0.arrived.notify_one();
        }
    }

    /// Those that are asked for, as they come, without end.
    pub(super) fn stream(self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send {
        stream::unfold(self, |nudges| async move {
            loop {
                // One that is added in between leaves its permit, so the wait below ends at once.
                let waiting = nudges.take();
                if !waiting.is_empty() {
                    return Some((stream::iter(waiting).map(|key| (*key).clone()), nudges));
                }
                nudges.0.arrived.notified().await;
            }
        })
        .flatten()
    }

    fn take(&self) -> HashSet<Key> {
        std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The time for each look at a living PeerPod.
const PACE: Duration = Duration::from_millis(20);

/// So many looks are made at once after a while without any.
const BURST: u32 = 100;

/// Living PeerPods that want another look. There is no haste about any, and whoever may create PeerPods can make thousands of them
/// want one: so they are handed out at a bounded rate, one of each namespace in turn.
#[derive(Clone, Debug, Default)]
pub(super) struct PacedNudges(Arc<PacedInner>);

#[derive(Debug, Default)]
struct PacedInner {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    names: BTreeSet<Name>,
    /// What comes after all of the namespace that had its turn last.
    last: Option<Name>,
}

impl PacedNudges {
    /// Asks for another look at each of these.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = Key>) {
        self.waiting().names.extend(keys.into_iter().map(Name));
        self.0.arrived.notify_one();
    }

    /// Those that are asked for, in their turn, without end.
    pub(super) fn stream(self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send {
        stream::unfold((self, rested()), |(nudges, free)| async move {
            loop {
                if let Some(key) = nudges.take() {
                    let free = free.max(rested());
                    sleep_until(free).await;
                    return Some(((*key).clone(), (nudges, free + PACE)));
                }
                nudges.0.arrived.notified().await;
            }
        })
    }

    fn take(&self) -> Option<Key> {
        let Waiting { names, last } = &mut *self.waiting();
        let next =
            last.as_ref().and_then(|last| names.range((Bound::Excluded(last), Bound::Unbounded)).next());
        let next = next.or_else(|| names.first())?.clone();
        names.remove(&next);
        // No name begins with that.
        let namespace = next.0.namespace.as_deref().unwrap_or_default();
        *last = Some(Name(ObjectRef::new("~").within(namespace).into()));
        Some(next.0)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the next look was free at the latest, after a while without any.
fn rested() -> Instant {
    let now = Instant::now();
    now.checked_sub(BURST * PACE).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_handed_out_at_its_pace_and_each_namespace_has_its_turn() {
        let nudges = PacedNudges::default();
        let key =
            |namespace: &str, name: usize| Key::from(ObjectRef::new(&name.to_string()).within(namespace));
        let mut stream = Box::pin(nudges.clone().stream());
        nudges.add((0..1000).map(|name| key("crowd", name)));
        nudges.add((0..1000).map(|name| key("crowd", name)));
        let start = Instant::now();
        stream.next().await;
        nudges.add([key("shop", 1), key("shop", 2), key("bank", 1)]);
        let mut next = Vec::new();
        for _ in 0..6 {
            next.push(stream.next().await.unwrap().namespace.unwrap());
        }
        assert_eq!(next, ["shop", "bank", "crowd", "shop", "crowd", "crowd"]);
        let rest = 1003 - 7;
        for _ in 0..rest {
            stream.next().await.unwrap();
        }
        assert!(futures::poll!(stream.next()).is_pending());
        let least = PACE * (1003 - BURST - 1);
        assert!(start.elapsed() >= least && start.elapsed() < least + 20 * PACE, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_nudge_given_twice_comes_once() {
        let nudges = Nudges::default();
        let one = Key::from(ObjectRef::new("a").within("shop"));
        nudges.add([one.clone(), one.clone()]);
        nudges.add([one]);
        let mut stream = Box::pin(nudges.stream());
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert!(futures::poll!(stream.next()).is_pending());
    }
}
