//! How many PeerPods the operator works on at once at one cloud, and which wait for their turn *(no client)*.
//!
//! If there is no free slot for a PeerPod, it is parked: its reconcile ends at once, and it is reconciled again when a slot is
//! free. So no reconcile waits for a slot, and a cloud that hangs delays no other cloud. Namespaces take turns at the slots, so a
//! tenant with thousands of PeerPods delays no other tenant.
//!
//! A part of a cloud may hang, so a reconcile that stalls gives its slot to another one. A provider may have to do the same with
//! its connections, for its own reason: libvirt answers at most five calls at once on one connection.
//!
//! A cloud may take so few requests a second that fewer reconciles than there are slots keep it busy. Then a call fails because too
//! many requests wait. Its PeerPod is parked, and leaves its slot free. Of the reconciles that end otherwise, every second one calls
//! two parked PeerPods while a slot was left, and each other one calls one. So as many are under way as the cloud can serve soon.

mod queue;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::runtime::reflector::ObjectRef;
use operator_kit::metrics::Counted;
use tokio::time::Instant;

use self::queue::Queue;
use super::{index::Key, requeue::Requeues};
use crate::{api::v1alpha1::PeerPod, metrics::Metrics};

/// A reconcile that has had its slot for this long has stalled: part of the cloud may hang. The next reconcile gets its slot.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// For this many slots there is one more for stalled reconciles. Further stalled reconciles keep their slots.
const SLOTS_PER_STALLED: usize = 2;

/// The slots at all clouds. Cheap to clone.
#[derive(Clone)]
pub(super) struct Parking(Arc<Inner>);

struct Inner {
    /// The number of slots at each cloud.
    slots: usize,
    clouds: Mutex<BTreeMap<&'static str, Slots>>,
    requeues: Requeues,
    metrics: Metrics,
}

/// The slots at one cloud.
struct Slots {
    all: usize,
    free: usize,
    /// Slots for reconciles that have stalled.
    free_stalled: usize,
    parked: Queue<Counted>,
    /// Each of these has a slot, and is about to be reconciled.
    called: HashSet<Key>,
    /// Whether the last reconcile to end called two, the second one to a slot that was left.
    calls_two: bool,
}

/// The turn of one PeerPod, as long as its reconcile runs.
pub(super) struct Turn<'a> {
    parking: &'a Parking,
    cloud: &'static str,
    key: &'a Key,
    state: Mutex<State>,
}

/// What a reconcile has of its cloud.
enum State {
    /// It did not need a slot until now.
    Unasked,
    /// It ends without one.
    Parked,
    /// One of the slots, or one of those for stalled reconciles. `leaves_slot`: the PeerPod is parked again at the end.
    Entered { since: Instant, stalled: Option<Counted>, is_given_back: bool, leaves_slot: bool },
}

impl Parking {
    /// `slots` at each cloud, at least one, and half as many, rounded up, for stalled reconciles. A parked PeerPod is requeued
    /// when it is its turn.
    pub(super) fn new(slots: usize, requeues: Requeues, metrics: Metrics) -> Self {
        let clouds = Mutex::default();
        Self(Arc::new(Inner { slots: slots.max(1), clouds, requeues, metrics }))
    }

    /// The most reconciles that may have a slot at once, with this number of clouds.
    pub(super) fn most(slots: usize, clouds: usize) -> usize {
        (slots + slots.div_ceil(SLOTS_PER_STALLED)) * clouds
    }

    /// The turn of this PeerPod at this cloud.
    pub(super) fn turn<'a>(&'a self, cloud: &'static str, key: &'a Key) -> Turn<'a> {
        Turn { parking: self, cloud, key, state: Mutex::new(State::Unasked) }
    }

    /// Forgets a PeerPod that needs no slot. The next one gets the slot that was meant for it.
    pub(super) fn forget(&self, key: &ObjectRef<PeerPod>) {
        let next: Vec<_> = self.lock().values_mut().filter_map(|at| at.forget(key)).collect();
        self.0.requeues.add(next);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        let gone: Vec<_> = {
            let clouds = self.lock();
            let known = clouds.values().flat_map(|at| at.parked.keys().chain(&at.called));
            known.filter(|key| !exists(key)).cloned().collect()
        };
        for key in gone {
            self.forget(&key);
        }
    }

    fn enter(&self, cloud: &'static str, key: &Key) -> bool {
        let metrics = &self.0.metrics;
        let (entered, next) = {
            let mut clouds = self.lock();
            // The PeerPod's cloud may have changed since it was parked.
            let others = clouds.iter_mut().filter(|(name, _)| **name != cloud);
            let next: Vec<_> = others.filter_map(|(_, at)| at.forget(key)).collect();
            let at = clouds.entry(cloud).or_insert_with(|| Slots::new(self.0.slots));
            (at.enter(key, || metrics.provider_call_queued(cloud)), next)
        };
        self.0.requeues.add(next);
        entered
    }

    /// Changes the slots at a cloud, and requeues the PeerPods that get one by that.
    fn at<I: IntoIterator<Item = Key>>(&self, cloud: &str, change: impl FnOnce(&mut Slots) -> I) {
        let next: Vec<_> = self.lock().get_mut(cloud).map(change).into_iter().flatten().collect();
        self.0.requeues.add(next);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Slots>> {
        self.0.clouds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn new(slots: usize) -> Self {
        Self {
            all: slots,
            free: slots,
            free_stalled: slots.div_ceil(SLOTS_PER_STALLED),
            parked: Queue::default(),
            called: HashSet::new(),
            calls_two: false,
        }
    }

    /// Whether there is a slot for this PeerPod. Otherwise it is parked.
    fn enter(&mut self, key: &Key, counted: impl FnOnce() -> Counted) -> bool {
        if self.called.remove(key) {
            return true;
        }
        // Slots may be free beside parked PeerPods if the cloud takes few requests. The end of a reconcile calls these. If none is
        // under way, nothing else would.
        if self.free > 0 && (self.parked.is_empty() || self.free == self.all) {
            self.free -= 1;
            self.parked.remove(key);
            return true;
        }
        self.parked.push(key, counted);
        false
    }

    /// Forgets a PeerPod. Returns the PeerPod that gets the slot which was meant for it.
    fn forget(&mut self, key: &ObjectRef<PeerPod>) -> Option<Key> {
        self.parked.remove(key);
        if self.called.remove(key) { self.call_next() } else { None }
    }

    /// Gives a slot that became free to the next one in the queue.
    fn call_next(&mut self) -> Option<Key> {
        if let Some(key) = self.parked.pop() {
            self.called.insert(key.clone());
            return Some(key);
        }
        self.free += 1;
        None
    }

    /// Calls the next one to a slot that was left, if there is one.
    fn call_to_free(&mut self) -> Option<Key> {
        self.free = self.free.checked_sub(1)?;
        self.call_next()
    }
}

impl Turn<'_> {
    /// Whether there is a slot at the cloud, from now until the end of this turn. Otherwise the PeerPod is parked.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.lock();
        if let State::Unasked = *state {
            let entered = self.parking.enter(self.cloud, self.key);
            *state = if entered {
                State::Entered {
                    since: Instant::now(),
                    stalled: None,
                    is_given_back: false,
                    leaves_slot: false,
                }
            } else {
                State::Parked
            };
        }
        matches!(*state, State::Entered { .. })
    }

    /// Has the PeerPod parked again at the end of this turn: too many requests wait for the cloud.
    pub(super) fn leave_slot(&self) {
        if let State::Entered { leaves_slot, .. } = &mut *self.lock() {
            *leaves_slot = true;
        }
    }

    /// Does the work of this turn. If it stalls at the cloud, its slot goes to the next one, while there are slots for stalled
    /// reconciles.
    pub(super) async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            if let Ok(done) = tokio::time::timeout(STALLED_AFTER, &mut work).await {
                return done;
            }
            if self.has_stalled() {
                self.stall();
                return work.await;
            }
        }
    }

    /// Whether the work has had its slot for too long.
    fn has_stalled(&self) -> bool {
        matches!(&*self.lock(), State::Entered { since, .. } if since.elapsed() >= STALLED_AFTER)
    }

    /// Gives the slot to the next one, if there is one for stalled reconciles.
    fn stall(&self) {
        let Parking(inner) = self.parking;
        let mut state = self.lock();
        let State::Entered { stalled, is_given_back, .. } = &mut *state else { return };
        *stalled = Some(inner.metrics.provider_call_stalled(self.cloud));
        let mut clouds = self.parking.lock();
        let free = clouds.get_mut(self.cloud).map(|at| &mut at.free_stalled).filter(|free| **free > 0);
        *is_given_back = free.map(|free| *free -= 1).is_some();
        drop(clouds);
        if *is_given_back {
            self.parking.at(self.cloud, Slots::call_next);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self { parking, cloud, key, state } = self;
        match *state.get_mut().unwrap_or_else(PoisonError::into_inner) {
            State::Unasked => parking.forget(key),
            // It is reconciled again when it is called.
            State::Parked => {}
            State::Entered { is_given_back, leaves_slot, .. } => parking.at(cloud, |at| {
                *(if is_given_back { &mut at.free_stalled } else { &mut at.free }) += 1;
                if leaves_slot {
                    at.parked.put_back(key, || parking.0.metrics.provider_call_queued(cloud));
                    return [None, None].into_iter().flatten();
                }
                let own = at.call_to_free();
                at.calls_two = !at.calls_two;
                [own, if at.calls_two { at.call_to_free() } else { None }].into_iter().flatten()
            }),
        }
    }
}

#[cfg(test)]
mod tests;
