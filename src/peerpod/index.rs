//! Which PeerPods share a Pod or a machine. Synchronous *(no client)*; fed by the watch before anything is reconciled, so
//! that no decision is made on half a list.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};

use super::{
    object::has_finalizer,
    verdict::{Reason, stands_because_of},
};
use crate::{
    api::v1alpha1::PeerPod,
    provider::{InstanceId, cloud_label},
    runtime::{Metrics, metrics::Population},
};

pub(super) type Key = Arc<ObjectRef<PeerPod>>;

/// PeerPods by the hash of what they share. A lookup may name one too many, never one too few; whoever asks compares the
/// objects themselves.
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
}

#[derive(Debug, Default)]
struct Links {
    /// What each PeerPod is filed under.
    filed: HashMap<Key, Filed>,
    sharing: HashMap<u64, Vec<Key>>,
    /// What each cloud has; one that had some keeps its place.
    clouds: BTreeMap<&'static str, Totals>,
}

/// Counts of one cloud's PeerPods.
#[derive(Debug, Default)]
struct Totals {
    peerpods: usize,
    queued: usize,
    pending: usize,
    /// How many of the pending ones that do not wait for their Pods were deleted in each second.
    deleted: BTreeMap<i64, usize>,
}

#[derive(Debug)]
struct Filed {
    hashes: Vec<u64>,
    cloud: &'static str,
    /// Whether it was not looked at since it changed.
    queued: bool,
    /// The second in which it was deleted, where its finalizer is still there.
    deleted: Option<i64>,
    /// Whether its status says that it waits for its Pod.
    waits_for_pod: bool,
    /// Of all that decisions read of the object itself, status aside.
    content: u64,
    /// Whether it is being deleted, or its status says something that may no longer hold. Of the others, nothing is to be
    /// done about one that shares neither Pod nor machine.
    restless: bool,
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => state.arriving = Links::default(),
            // Nobody may look at it yet: the store shows what was there before until the list is whole.
            Event::InitApply(peerpod) => state.arriving.file(key(peerpod).into(), self.filed(peerpod)),
            Event::InitDone => {
                let mut arrived = std::mem::take(&mut state.arriving);
                for cloud in state.current.clouds.keys() {
                    arrived.clouds.entry(cloud).or_default();
                }
                state.current = arrived;
                return Change { matters: false, others: state.current.restless().collect() };
            }
            Event::Apply(peerpod) => {
                let key = Key::from(key(peerpod));
                let filed = self.filed(peerpod);
                if let Some(matters) = state.current.refresh(&key, &filed) {
                    return Change { matters, others: Vec::new() };
                }
                let mut others = state.current.sharing_with(&key);
                state.current.remove(&key);
                others.extend(state.current.sharing_any(&filed.hashes));
                let matters = filed.restless || !others.is_empty();
                state.current.file(key, Filed { queued: matters, ..filed });
                return Change { matters, others };
            }
            Event::Delete(peerpod) => {
                let key = Key::from(key(peerpod));
                let others = state.current.sharing_with(&key);
                state.current.remove(&key);
                return Change { matters: false, others };
            }
        }
        Change::default()
    }

    /// Whether this PeerPod exists.
    pub(super) fn contains(&self, key: &ObjectRef<PeerPod>) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current.filed.contains_key(key)
    }

    /// PeerPods that may be owned by the Pod with this uid.
    pub(super) fn owned_by(&self, pod_uid: &str) -> Vec<Key> {
        self.find(self.hasher.hash_one(("pod", pod_uid)))
    }

    /// PeerPods that may name this machine.
    pub(super) fn naming(&self, cloud: &str, id: &InstanceId) -> Vec<Key> {
        self.find(self.hasher.hash_one(("machine", cloud, id.as_str())))
    }

    /// The other PeerPods that may share Pod or machine with this one.
    pub(super) fn sharing_with(&self, key: &ObjectRef<PeerPod>) -> Vec<Key> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current.sharing_with(key)
    }

    /// All PeerPods about which there may be something to do.
    pub(super) fn restless(&self) -> Vec<Key> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current.restless().collect()
    }

    /// How many PeerPods are being deleted and not released yet.
    pub(super) fn pending(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.current.clouds.values().map(|totals| totals.pending).sum()
    }

    fn find(&self, hash: u64) -> Vec<Key> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.current.sharing.get(&hash).cloned().unwrap_or_default()
    }

    /// A PeerPod is looked at now.
    pub(super) fn looked_at(&self, key: &ObjectRef<PeerPod>, metrics: &Metrics) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cloud) = state.current.looked_at(key) {
            state.current.publish(cloud, metrics);
        }
    }

    /// Tells how many PeerPods there are. Under the lock, so that an older count never overtakes a newer one.
    pub(super) fn publish(&self, metrics: &Metrics) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for cloud in state.current.clouds.keys() {
            state.current.publish(cloud, metrics);
        }
    }

    fn filed(&self, peerpod: &PeerPod) -> Filed {
        let owners =
            peerpod.owner_references().iter().map(|owner| self.hasher.hash_one(("pod", owner.uid.as_str())));
        let cloud = peerpod.cloud_provider();
        let machine = InstanceId::parse(cloud, peerpod.instance_id()).ok();
        let hashes =
            owners.chain(machine.map(|id| self.hasher.hash_one(("machine", cloud, id.as_str())))).collect();
        let PeerPod { metadata, spec, .. } = peerpod;
        let deleted = metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let owners: Vec<_> = peerpod
            .owner_references()
            .iter()
            .map(|owner| (&owner.api_version, &owner.kind, &owner.name, &owner.uid, owner.controller))
            .collect();
        let spec = (&spec.cloud_provider, &spec.instance_id);
        let content = (&metadata.uid, deleted, &metadata.finalizers, &metadata.annotations, owners, spec);
        let says = peerpod.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
        let restless = deleted.is_some() || says;
        Filed {
            hashes,
            cloud: cloud_label(cloud),
            queued: restless,
            deleted: deleted.filter(|_| has_finalizer(peerpod)).map(Timestamp::as_second),
            waits_for_pod: stands_because_of(peerpod, Reason::WaitingForPod),
            content: self.hasher.hash_one(content),
            restless,
        }
    }
}

impl Links {
    fn file(&mut self, key: Key, filed: Filed) {
        for hash in &filed.hashes {
            self.sharing.entry(*hash).or_insert_with(|| Vec::with_capacity(1)).push(key.clone());
        }
        self.clouds.entry(filed.cloud).or_default().add(&filed);
        self.filed.insert(key, filed);
    }

    /// Whether the PeerPod wants a look that it did not want before; `None` if more of it than its status changed.
    fn refresh(&mut self, key: &Key, now: &Filed) -> Option<bool> {
        let before = self.filed.get_mut(key).filter(|before| before.content == now.content)?;
        let totals = self.clouds.get_mut(before.cloud)?;
        totals.remove(before);
        let matters = now.restless && !before.restless;
        before.restless = now.restless;
        before.queued |= matters;
        before.waits_for_pod = now.waits_for_pod;
        totals.add(before);
        Some(matters)
    }

    fn remove(&mut self, key: &Key) {
        let Some(filed) = self.filed.remove(key) else { return };
        if let Some(totals) = self.clouds.get_mut(filed.cloud) {
            totals.remove(&filed);
        }
        for hash in filed.hashes {
            if let Some(sharing) = self.sharing.get_mut(&hash) {
                sharing.retain(|other| other != key);
                if sharing.is_empty() {
                    self.sharing.remove(&hash);
                }
            }
        }
    }

    /// Its cloud, if the PeerPod waited for this.
    fn looked_at(&mut self, key: &ObjectRef<PeerPod>) -> Option<&'static str> {
        let filed = self.filed.get_mut(key).filter(|filed| filed.queued)?;
        filed.queued = false;
        self.clouds.get_mut(filed.cloud)?.queued -= 1;
        Some(filed.cloud)
    }

    fn publish(&self, cloud: &'static str, metrics: &Metrics) {
        if let Some(totals) = self.clouds.get(cloud) {
            metrics.population(cloud, &totals.population());
        }
    }

    /// Those that share something with another one.
    fn sharing(&self) -> impl Iterator<Item = Key> {
        self.sharing.values().filter(|sharing| sharing.len() > 1).flatten().cloned()
    }

    /// Those that want a look, some of them several times.
    fn restless(&self) -> impl Iterator<Item = Key> {
        let themselves = self.filed.iter().filter(|(_, filed)| filed.restless).map(|(key, _)| key.clone());
        themselves.chain(self.sharing())
    }

    fn sharing_with(&self, key: &ObjectRef<PeerPod>) -> Vec<Key> {
        let hashes = self.filed.get(key).map(|filed| filed.hashes.as_slice()).unwrap_or_default();
        self.sharing_any(hashes).filter(|other| **other != *key).collect()
    }

    /// Those that are filed under any of these.
    fn sharing_any(&self, hashes: &[u64]) -> impl Iterator<Item = Key> {
        hashes.iter().filter_map(|hash| self.sharing.get(hash)).flatten().cloned()
    }
}

impl Filed {
    /// Since which second it should be gone.
    fn overdue_since(&self) -> Option<i64> {
        self.deleted.filter(|_| !self.waits_for_pod)
    }
}

impl Totals {
    fn add(&mut self, filed: &Filed) {
        self.peerpods += 1;
        self.queued += usize::from(filed.queued);
        self.pending += usize::from(filed.deleted.is_some());
        if let Some(second) = filed.overdue_since() {
            *self.deleted.entry(second).or_default() += 1;
        }
    }

    /// Takes back what was [added](Self::add) for it, so nothing becomes less than nothing.
    fn remove(&mut self, filed: &Filed) {
        self.peerpods -= 1;
        self.queued -= usize::from(filed.queued);
        self.pending -= usize::from(filed.deleted.is_some());
        if let Some(second) = filed.overdue_since()
            && let Some(count) = self.deleted.get_mut(&second)
        {
            *count -= 1;
            if *count == 0 {
                self.deleted.remove(&second);
            }
        }
    }

    fn population(&self) -> Population {
        let oldest = self.deleted.keys().next().copied();
        Population { peerpods: self.peerpods, queued: self.queued, pending: self.pending, oldest }
    }
}

/// A PeerPod by namespace and name.
pub(super) fn key(peerpod: &PeerPod) -> ObjectRef<PeerPod> {
    ObjectRef::new(&peerpod.name_any()).within(&peerpod.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests;
