//! What is known of each PeerPod, and whom a change of one concerns *(no client)*.

use std::collections::{BTreeMap, HashMap};

use kube::runtime::reflector::ObjectRef;

use super::{
    Key,
    relatives::{FEW, Placement, Relatives, Stake},
};
use crate::{
    api::v1alpha1::PeerPod,
    metrics::{Metrics, Population},
};

#[derive(Debug, Default)]
pub(super) struct Links {
    /// What is known of each PeerPod.
    pub(super) entries: HashMap<Key, Entry>,
    pub(super) relatives: Relatives,
    /// What each cloud has; one that had some keeps its place.
    pub(super) clouds: BTreeMap<&'static str, Totals>,
}

/// Counts of one cloud's PeerPods.
#[derive(Debug, Default)]
pub(super) struct Totals {
    peerpods: usize,
    queued: usize,
    pub(super) pending: usize,
    pub(super) ambiguous: usize,
    /// How many of the pending ones that do not wait for their Pods were deleted in each second.
    deleted: BTreeMap<i64, usize>,
}

/// What the status of a PeerPod says, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It waits for its Pod.
    WaitsForPod,
    /// Its Pod may run on its VM or on another one.
    Ambiguous,
    /// Anything else, or nothing.
    Other,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) placement: Placement,
    pub(super) stake: Stake,
    /// The second in which it was made.
    pub(super) created: i64,
    pub(super) cloud: &'static str,
    /// Whether it was not looked at since it changed.
    pub(super) queued: bool,
    /// The second in which it was deleted, where its finalizer is still there.
    pub(super) deleted: Option<i64>,
    pub(super) said: Said,
    /// Of all that decisions read of the object itself, status aside.
    pub(super) content: u64,
    /// Whether it is being deleted, or its status says something that may no longer hold. Of the others, nothing is to be
    /// done about one that has no newer siblings.
    pub(super) restless: bool,
}

/// What follows when an entry takes the place of another one.
pub(super) struct Replaced {
    /// What the former one was of.
    pub(super) before: Option<Placement>,
    /// Whether there may be something to do about the new one.
    pub(super) matters: bool,
    /// A few others that this may concern.
    pub(super) others: Vec<Key>,
}

impl Links {
    /// Puts an entry in the place of what there was.
    ///
    /// Others are concerned where a VM comes, goes, or is found to be older: its own PeerPods and those of the next older VMs of
    /// its Pod; where one of several PeerPods of a superseded VM goes: the others of them; and where the last one goes that a
    /// deletion may have waited for: those that are being deleted. Only a few of them each time, but each that goes in turn
    /// reaches the next.
    pub(super) fn replace(&mut self, key: &Key, new: Option<Entry>) -> Replaced {
        let old = self.entries.get(key).map(|entry| (entry.placement, entry.stake));
        let now = new.as_ref().map(|entry| (entry.placement, entry.stake));
        let mut placements: Vec<_> =
            [old, now].into_iter().flatten().map(|(placement, _)| placement).collect();
        placements.dedup();
        let before: Vec<_> = placements.iter().map(|placement| self.relatives.placed(*placement)).collect();
        self.remove(key);
        let mut matters = false;
        if let Some(entry) = new {
            let since =
                self.relatives.recorded(entry.placement).map_or(entry.created, |it| it.min(entry.created));
            let newer = || self.relatives.newer(entry.placement, since).next().is_some();
            matters = entry.restless || (entry.stake == Stake::Held && newer());
            self.insert(key.clone(), Entry { queued: matters, ..entry });
        }
        let mut others = Vec::new();
        for (placement, before) in placements.into_iter().zip(before) {
            let after = self.relatives.placed(placement);
            let newer = || after.is_some_and(|since| self.relatives.newer(placement, since).next().is_some());
            if before != after || (old == Some((placement, Stake::Held)) && now != old && newer()) {
                others.extend(self.relatives.held(placement).take(FEW + 1).cloned());
            }
            if before != after {
                // One more than are asked for: that one may have more newer siblings now than it asks for.
                let until = before.max(after).unwrap_or(i64::MAX);
                let older = self.relatives.older(placement, until).take(FEW + 1);
                others.extend(older.filter_map(|it| self.relatives.held(it.placement()).next()).cloned());
            }
        }
        if let Some((placement, _)) = old.filter(|_| old != now)
            && self.relatives.living(placement.vm).next().is_none()
        {
            others.extend(self.relatives.waiting(placement).cloned());
        }
        others.retain(|other| other != key);
        Replaced { before: old.map(|(placement, _)| placement), matters, others }
    }

    /// Takes over what a list brings that is not whole yet.
    pub(super) fn arrive(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        self.insert(key, entry);
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.relatives.insert(entry.placement, entry.stake, entry.created, key.clone());
        self.clouds.entry(entry.cloud).or_default().add(&entry);
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else { return };
        if let Some(totals) = self.clouds.get_mut(entry.cloud) {
            totals.remove(&entry);
        }
        self.relatives.remove(entry.placement, entry.stake, entry.created, key.clone());
    }

    /// Whether the PeerPod wants a look that it did not want before; `None` if more of it than its status changed.
    pub(super) fn refresh(&mut self, key: &Key, now: &Entry) -> Option<bool> {
        let before = self.entries.get_mut(key).filter(|before| before.content == now.content)?;
        let totals = self.clouds.get_mut(before.cloud)?;
        totals.remove(before);
        let matters = now.restless && !before.restless;
        before.restless = now.restless;
        before.queued |= matters;
        before.said = now.said;
        totals.add(before);
        Some(matters)
    }

    /// Its cloud, if the PeerPod waited for this.
    pub(super) fn looked_at(&mut self, key: &ObjectRef<PeerPod>) -> Option<&'static str> {
        let entry = self.entries.get_mut(key).filter(|entry| entry.queued)?;
        entry.queued = false;
        self.clouds.get_mut(entry.cloud)?.queued -= 1;
        Some(entry.cloud)
    }

    pub(super) fn publish(&self, cloud: &'static str, metrics: &Metrics) {
        if let Some(totals) = self.clouds.get(cloud) {
            metrics.population(cloud, &totals.population());
        }
    }

    /// Those that want a look, some of them several times.
    pub(super) fn restless(&self) -> impl Iterator<Item = Key> {
        let themselves = self.entries.iter().filter(|(_, entry)| entry.restless).map(|(key, _)| key);
        themselves.chain(self.relatives.rivals()).cloned()
    }
}

impl Entry {
    /// Since which second it should be gone.
    fn overdue_since(&self) -> Option<i64> {
        self.deleted.filter(|_| self.said != Said::WaitsForPod)
    }
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.peerpods += 1;
        self.queued += usize::from(entry.queued);
        self.pending += usize::from(entry.deleted.is_some());
        self.ambiguous += usize::from(entry.said == Said::Ambiguous);
        if let Some(second) = entry.overdue_since() {
            *self.deleted.entry(second).or_default() += 1;
        }
    }

    /// Takes back what was [added](Self::add) for it, so nothing becomes less than nothing.
    fn remove(&mut self, entry: &Entry) {
        self.peerpods -= 1;
        self.queued -= usize::from(entry.queued);
        self.pending -= usize::from(entry.deleted.is_some());
        self.ambiguous -= usize::from(entry.said == Said::Ambiguous);
        if let Some(second) = entry.overdue_since()
            && let Some(count) = self.deleted.get_mut(&second)
        {
            *count -= 1;
            if *count == 0 {
                self.deleted.remove(&second);
            }
        }
    }

    pub(super) fn population(&self) -> Population {
        let oldest = self.deleted.keys().next().copied();
        Population { peerpods: self.peerpods, queued: self.queued, pending: self.pending, oldest }
    }
}
