//! Which PeerPods share a Pod or a VM. Synchronous *(no client)*; fed by the watch before anything is reconciled, so
//! that no decision is made on half a list.

mod links;
mod relatives;

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};

pub(super) use self::relatives::{FEW, MOST_PODS};
use self::{
    links::{Entry, Links, Replaced, Said},
    relatives::{Placement, Stake},
};
use super::{
    object::{created, has_finalizer, owner},
    verdict::{Reason, is_kept_for_pod, says_something, stands_because_of},
};
use crate::{
    api::v1alpha1::PeerPod,
    metrics::Metrics,
    provider::{InstanceId, cloud_label},
};

pub(super) type Key = Arc<ObjectRef<PeerPod>>;

/// PeerPods by the hashes of what they share: whoever acts compares the objects themselves.
#[derive(Debug, Default)]
pub(super) struct Index {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    current: Links,
    /// What a list that is still arriving has brought so far.
    arriving: Links,
    /// The VMs of which it was unclear once whether their Pods run on them. What a status said of it counts even when it is
    /// gone from there: whoever may write a status must not have a VM deleted by that.
    doubted: HashSet<Placement>,
}

/// The siblings of one PeerPod that may have taken its place. However many there are, the newest few are asked for: any of
/// them can supersede it. With more than these it is looked at by a timer as long as none does.
#[derive(Debug)]
pub(super) struct Siblings {
    /// When its own VM was first recorded for its Pod.
    pub(super) recorded: Timestamp,
    /// The newest few VMs of its Pod that are no older than its own.
    pub(super) newest: Vec<Newer>,
    /// When the next one of them was recorded, which is not asked for.
    pub(super) next: Option<Timestamp>,
}

/// A VM that is no older.
#[derive(Debug)]
pub(super) struct Newer {
    /// One that records it.
    pub(super) key: Key,
    pub(super) recorded: Timestamp,
    /// Whether a PeerPod of another Pod names it, too. Two Pods of one name have VMs that look alike, and whoever may write
    /// a PeerPod could have one of them take the other's place.
    pub(super) contested: bool,
}

/// The others that name the same VM and may need it.
#[derive(Debug)]
pub(super) struct Claimants {
    /// One that is not being deleted.
    pub(super) living: Option<Key>,
    /// Of each other Pod one that is being deleted.
    pub(super) going: Vec<Key>,
}

/// What an event of the watch changed.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Whether there may be something to do about the PeerPod that now is not done. A mere write of the status is no change,
    /// as it would wake whoever wrote it, but for one that makes a PeerPod restless: the look that would take the condition
    /// back may have been before it was seen.
    pub(super) matters: bool,
    /// The other PeerPods for which that may be so.
    pub(super) others: Vec<Key>,
}

impl Index {
    /// Takes over what the watch saw.
    pub(super) fn apply(&self, event: &Event<PeerPod>) -> Change {
        let mut guard = self.state();
        let state = &mut *guard;
        match event {
            Event::Init => state.arriving = Links::default(),
            // Nobody may look at it yet: the store shows what was there before until the list is whole.
            Event::InitApply(peerpod) => {
                let entry = self.entry(peerpod);
                state.doubt(peerpod, entry.placement);
                state.arriving.arrive(key(peerpod).into(), entry);
            }
            Event::InitDone => {
                let mut arrived = std::mem::take(&mut state.arriving);
                for cloud in state.current.clouds.keys() {
                    arrived.clouds.entry(cloud).or_default();
                }
                state.doubted.retain(|placement| arrived.relatives.is_known(*placement));
                state.current = arrived;
                return Change { matters: false, others: state.current.restless().collect() };
            }
            Event::Apply(peerpod) => {
                let key = Key::from(key(peerpod));
                let entry = self.entry(peerpod);
                state.doubt(peerpod, entry.placement);
                if let Some(matters) = state.current.refresh(&key, &entry) {
                    return Change { matters, others: Vec::new() };
                }
                return state.replace(&key, Some(entry));
            }
            Event::Delete(peerpod) => {
                return state.replace(&key(peerpod).into(), None);
            }
        }
        Change::default()
    }

    /// Whether this PeerPod exists.
    pub(super) fn contains(&self, key: &ObjectRef<PeerPod>) -> bool {
        self.state().current.entries.contains_key(key)
    }

    /// The siblings that may have taken its place.
    pub(super) fn siblings(&self, peerpod: &PeerPod) -> Siblings {
        let placement = self.placement(peerpod);
        let Links { relatives, .. } = &self.state().current;
        let first = relatives.recorded(placement).filter(|_| placement.is_whole());
        let since = first.unwrap_or(i64::MAX).min(created(peerpod).as_second());
        let mut newer = relatives.newer(placement, since);
        let newest = newer.by_ref().take(FEW).filter_map(|placed| {
            Some(Newer {
                key: relatives.held(placed.placement()).next()?.clone(),
                recorded: second(placed.recorded),
                contested: relatives.is_contested(placed.placement()),
            })
        });
        Siblings {
            recorded: second(since),
            newest: newest.collect(),
            next: newer.next().map(|placed| second(placed.recorded)),
        }
    }

    /// The others that name the same VM and may need it, of no more than `most` other Pods.
    pub(super) fn claimants(&self, peerpod: &PeerPod, most: usize) -> Claimants {
        let placement = self.placement(peerpod);
        if placement.vm == 0 {
            return Claimants { living: None, going: Vec::new() };
        }
        let own = key(peerpod);
        let Links { relatives, .. } = &self.state().current;
        Claimants {
            living: relatives.living(placement.vm).find(|key| ***key != own).cloned(),
            going: relatives.going_of_other_pods(placement).take(most).cloned().collect(),
        }
    }

    /// A few others that name the same VM and are being deleted.
    pub(super) fn going_beside(&self, peerpod: &PeerPod) -> Vec<Key> {
        let own = key(peerpod);
        let state = self.state();
        let waiting = state.current.relatives.waiting(self.placement(peerpod));
        waiting.filter(|key| ***key != own).cloned().collect()
    }

    /// It is unclear whether the Pod of this PeerPod runs on its VM or on a newer one. Once so, for as long as a PeerPod
    /// records that VM for that Pod.
    pub(super) fn doubt(&self, peerpod: &PeerPod) {
        self.state().doubted.extend(Some(self.placement(peerpod)).filter(|placement| placement.is_whole()));
    }

    /// Whether that was so.
    pub(super) fn is_doubted(&self, peerpod: &PeerPod) -> bool {
        self.state().doubted.contains(&self.placement(peerpod))
    }

    /// All PeerPods about which there may be something to do.
    pub(super) fn restless(&self) -> Vec<Key> {
        self.state().current.restless().collect()
    }

    /// How many PeerPods are being deleted and not released yet, or are ambiguous.
    pub(super) fn unsettled(&self) -> usize {
        self.state().current.clouds.values().map(|totals| totals.pending + totals.ambiguous).sum()
    }

    /// A PeerPod is looked at now.
    pub(super) fn looked_at(&self, key: &ObjectRef<PeerPod>, metrics: &Metrics) {
        let mut state = self.state();
        if let Some(cloud) = state.current.looked_at(key) {
            state.current.publish(cloud, metrics);
        }
    }

    /// Tells how many PeerPods there are. Under the lock, so that an older count never overtakes a newer one.
    pub(super) fn publish(&self, metrics: &Metrics) {
        let state = self.state();
        for cloud in state.current.clouds.keys() {
            state.current.publish(cloud, metrics);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By what `relations` compares, too.
    fn placement(&self, peerpod: &PeerPod) -> Placement {
        let cloud = peerpod.cloud_provider();
        let pod = owner(peerpod).map(|pod| (&peerpod.metadata.namespace, cloud, &pod.uid, &pod.name));
        let vm = InstanceId::parse(cloud, peerpod.instance_id()).ok();
        let vm = vm.map(|id| self.hasher.hash_one((cloud, id.as_str())).max(1));
        Placement {
            vm: vm.unwrap_or_default(),
            pod: pod.map(|pod| self.hasher.hash_one(pod).max(1)).unwrap_or_default(),
        }
    }

    fn entry(&self, peerpod: &PeerPod) -> Entry {
        let cloud = peerpod.cloud_provider();
        let PeerPod { metadata, spec, .. } = peerpod;
        let deleted = metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let owners: Vec<_> = peerpod
            .owner_references()
            .iter()
            .map(|owner| (&owner.api_version, &owner.kind, &owner.name, &owner.uid, owner.controller))
            .collect();
        let spec = (&spec.cloud_provider, &spec.instance_id);
        let content = (&metadata.uid, deleted, &metadata.finalizers, &metadata.annotations, owners, spec);
        let restless = deleted.is_some() || says_something(peerpod);
        let stake = match (deleted, has_finalizer(peerpod)) {
            (Some(_), _) => Stake::Going,
            (None, true) => Stake::Held,
            (None, false) => Stake::Unheld,
        };
        Entry {
            placement: self.placement(peerpod),
            stake,
            created: created(peerpod).as_second(),
            cloud: cloud_label(cloud),
            queued: restless,
            deleted: deleted.filter(|_| has_finalizer(peerpod)).map(Timestamp::as_second),
            said: match deleted {
                _ if stands_because_of(peerpod, Reason::WaitingForPod) => Said::WaitsForPod,
                None if stands_because_of(peerpod, Reason::AmbiguousSiblings) => Said::Ambiguous,
                _ => Said::Other,
            },
            content: self.hasher.hash_one(content),
            restless,
        }
    }
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}

impl State {
    fn doubt(&mut self, peerpod: &PeerPod, placement: Placement) {
        if placement.is_whole() && is_kept_for_pod(peerpod) {
            self.doubted.insert(placement);
        }
    }

    fn replace(&mut self, key: &Key, new: Option<Entry>) -> Change {
        let Replaced { before, matters, others } = self.current.replace(key, new);
        if let Some(placement) = before.filter(|placement| !self.current.relatives.is_known(*placement)) {
            self.doubted.remove(&placement);
        }
        Change { matters, others }
    }
}

/// A PeerPod by namespace and name.
pub(super) fn key(peerpod: &PeerPod) -> ObjectRef<PeerPod> {
    ObjectRef::new(&peerpod.name_any()).within(&peerpod.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests;
