//! How many PeerPods the operator works on at once at one cloud, and which wait for their turn *(no client)*.
//!
//! If there is no free slot for a PeerPod, it is parked: its reconcile ends at once, and it is reconciled again when a slot is
//! free. So no reconcile waits for a slot, and a cloud that hangs delays no other cloud. Namespaces take turns at the slots, so a
//! tenant with thousands of PeerPods delays no other tenant.
//!
//! A part of a cloud may hang, so a reconcile that stalls gives its slot to another one. A provider may have to do the same with
//! its connections, for its own reason: libvirt answers at most five calls at once on one connection.
//!
//! A cloud may take so few requests a second that fewer reconciles than there are slots keep it busy. No more than
//! [it says](crate::provider::Provider::most_at_once) are under way then, those that have stalled included. While it wants no calls,
//! no parked PeerPod is called: thousands would come one after the other, and each write to its status that the cloud wants no calls.
//! Those that the cloud refused, and those that were parked meanwhile, return after that time, and the first has the others called.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kube::runtime::reflector::ObjectRef;
use operator_kit::metrics::Counted;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{index::Key, queue::Queue, requeue::Requeues};
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
    /// The most that may be under way, as the cloud last said.
    most: usize,
    /// How many are taken.
    taken: usize,
    /// How many reconciles that have stalled gave theirs to the next one.
    stalled: usize,
    parked: Queue<Counted>,
    /// Each of these has a slot, and is about to be reconciled.
    called: HashSet<Key>,
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
    /// One of the slots, or one of those for stalled reconciles.
    Entered { since: Instant, stalled: Option<Counted>, is_given_back: bool },
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
        let next: Vec<_> = self.0.clouds.lock().values_mut().flat_map(|at| at.forget(key)).collect();
        self.0.requeues.call(next);
    }

    /// Forgets all PeerPods but these.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        let gone: Vec<_> = {
            let clouds = self.0.clouds.lock();
            let known = clouds.values().flat_map(|at| at.parked.keys().chain(&at.called));
            known.filter(|key| !exists(key)).cloned().collect()
        };
        for key in gone {
            self.forget(&key);
        }
    }

    fn enter(&self, cloud: &'static str, key: &Key, most: Option<usize>) -> bool {
        let metrics = &self.0.metrics;
        let (entered, next) = {
            let mut clouds = self.0.clouds.lock();
            // The PeerPod's cloud may have changed since it was parked.
            let others = clouds.iter_mut().filter(|(name, _)| **name != cloud);
            let mut next: Vec<_> = others.flat_map(|(_, at)| at.forget(key)).collect();
            let at = clouds.entry(cloud).or_insert_with(|| Slots::new(self.0.slots));
            at.most = most.unwrap_or(usize::MAX);
            let entered = at.enter(key, || metrics.peerpod_parked(cloud));
            // The cloud may take more than before.
            next.extend(at.call());
            (entered, next)
        };
        self.0.requeues.call(next);
        entered
    }

    /// Changes the slots at a cloud, and requeues the PeerPods that get one by that.
    fn at(&self, cloud: &str, change: impl FnOnce(&mut Slots)) {
        let next = self.0.clouds.lock().get_mut(cloud).map(|at| {
            change(at);
            at.call()
        });
        self.0.requeues.call(next.unwrap_or_default());
    }
}

impl Slots {
    fn new(slots: usize) -> Self {
        Self {
            all: slots,
            most: usize::MAX,
            taken: 0,
            stalled: 0,
            parked: Queue::default(),
            called: HashSet::new(),
        }
    }

    /// Whether there is a free slot, if at most so many may be under way.
    fn has_room(&self, most: usize) -> bool {
        self.taken < self.all && self.taken + self.stalled < most
    }

    /// Whether there is a slot for this PeerPod. Otherwise it is parked.
    fn enter(&mut self, key: &Key, counted: impl FnOnce() -> Counted) -> bool {
        if self.called.remove(key) {
            return true;
        }
        // No slot that is free is left to one that comes while others are parked. One finds out from the cloud that it wants no calls.
        if self.parked.is_empty() && self.has_room(self.most.max(1)) {
            self.taken += 1;
            return true;
        }
        self.parked.push(key, counted);
        false
    }

    /// Forgets a PeerPod. Returns those that get the slot which was meant for it.
    fn forget(&mut self, key: &ObjectRef<PeerPod>) -> Vec<Key> {
        self.parked.remove(key);
        self.taken -= usize::from(self.called.remove(key));
        self.call()
    }

    /// Gives the slots that are free to the next ones in the queue.
    fn call(&mut self) -> Vec<Key> {
        let mut next = Vec::new();
        while self.has_room(self.most)
            && let Some(key) = self.parked.pop()
        {
            self.taken += 1;
            self.called.insert(key.clone());
            next.push(key);
        }
        next
    }
}

impl Turn<'_> {
    /// Whether there is a slot at the cloud, from now until the end of this turn. Otherwise the PeerPod is parked. `most`: how many
    /// may be under way there, if the cloud limits it; zero while it wants no calls.
    pub(super) fn enter(&self, most: Option<usize>) -> bool {
        let mut state = self.state.lock();
        if let State::Unasked = *state {
            *state = if self.parking.enter(self.cloud, self.key, most) {
                State::Entered { since: Instant::now(), stalled: None, is_given_back: false }
            } else {
                State::Parked
            };
        }
        matches!(*state, State::Entered { .. })
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
        matches!(&*self.state.lock(), State::Entered { since, .. } if since.elapsed() >= STALLED_AFTER)
    }

    /// Gives the slot to the next one, if there is one for stalled reconciles.
    fn stall(&self) {
        let Parking(inner) = self.parking;
        let mut state = self.state.lock();
        let State::Entered { stalled, is_given_back, .. } = &mut *state else { return };
        *stalled = Some(inner.metrics.provider_call_stalled(self.cloud));
        self.parking.at(self.cloud, |at| {
            if at.stalled < at.all.div_ceil(SLOTS_PER_STALLED) {
                (at.taken, at.stalled) = (at.taken - 1, at.stalled + 1);
                *is_given_back = true;
            }
        });
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Self { parking, cloud, key, state } = self;
        match *state.get_mut() {
            State::Unasked => parking.forget(key),
            // It is reconciled again when it is called.
            State::Parked => {}
            State::Entered { is_given_back, .. } => parking.at(cloud, |at| {
                *(if is_given_back { &mut at.stalled } else { &mut at.taken }) -= 1;
            }),
        }
    }
}

#[cfg(test)]
mod tests;
