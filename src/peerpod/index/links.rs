//! What is known of each PeerPod, and which other PeerPods a change affects *(no client)*.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroI64,
};

use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

use super::{
    Key,
    hashes::{PodHash, PodVm, same_stem},
    relatives::{MOST_PODS, MOST_RELATIVES, RecordedVm, Relatives, Role},
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
    /// The totals of each cloud. A cloud that had PeerPods once keeps its entry.
    pub(super) clouds: BTreeMap<&'static str, Totals>,
}

/// Counts of one cloud's PeerPods.
#[derive(Debug, Default)]
pub(super) struct Totals {
    peerpods: usize,
    queued: usize,
    pub(super) pending: usize,
    pub(super) ambiguous: usize,
    /// How many pending PeerPods whose VM is not to stay were deleted in each second.
    deleted: BTreeMap<i64, usize>,
}

/// As what a PeerPod counts in the totals, by its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedAs {
    /// Its VM is to stay for now: it waits for its Pod, or developer mode keeps the VM.
    VmStays,
    /// Its Pod may run on its VM or on another one.
    Ambiguous,
    /// Anything else, or nothing.
    Other,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) pod_vm: PodVm,
    pub(super) role: Role,
    /// The second in which it was made.
    pub(super) created: i64,
    pub(super) cloud: &'static str,
    /// Whether no reconcile has started since it changed.
    pub(super) queued: bool,
    /// The second in which it was deleted, or from which on its VM was no longer to stay, if its finalizer is still there. Never 0: no
    /// clock shows 1970.
    pub(super) deleted: Option<NonZeroI64>,
    pub(super) counted_as: CountedAs,
    /// A hash of all that decisions read from the object itself, except its status.
    pub(super) content: u64,
    /// Whether it is being deleted, its status has a condition that a reconcile may have to remove, or it has no owner, which is
    /// reported. Any other PeerPod needs a reconcile only if it has newer siblings.
    pub(super) needs_resync: bool,
}

/// The result of replacing an entry.
pub(super) struct Replaced {
    /// The VM and the Pod of the former entry.
    pub(super) before: Option<PodVm>,
    /// Whether the new one may need a reconcile.
    pub(super) matters: bool,
    /// A few others that this may affect.
    pub(super) others: Vec<Key>,
}

impl Links {
    /// Replaces the entry of a PeerPod.
    ///
    /// This affects other PeerPods in four cases:
    /// - A VM is added, removed, or found to be older: its own PeerPods and those of the next older VMs of its Pod.
    /// - One of several PeerPods of a superseded VM is removed: the other PeerPods of that VM.
    /// - A PeerPod is added or removed: the PeerPods of its Pod that have no finalizer and for which a younger one exists.
    /// - The last PeerPod that a deletion may have waited for is removed: the PeerPods that are being deleted.
    ///
    /// Each change returns only a few of them. The removal of each of these leads to the next ones.
    pub(super) fn replace(&mut self, key: &Key, new: Option<Entry>) -> Replaced {
        let old = self.entries.get(key).map(|entry| (entry.pod_vm, entry.role.as_written()));
        let now = new.as_ref().map(|entry| (entry.pod_vm, entry.role));
        let vms = [old, now].into_iter().flatten();
        let mut vms: Vec<_> = vms.map(|(pod_vm, _)| (pod_vm, self.relatives.recorded_vm(pod_vm))).collect();
        vms.dedup();
        self.remove(key);
        let mut matters = false;
        if let Some(entry) = new {
            matters = self.needs_reconcile(&entry);
            self.insert(key.clone(), Entry { queued: matters, ..entry });
        }
        let mut others = Vec::new();
        for &(pod_vm, before) in &vms {
            let after = self.relatives.recorded_vm(pod_vm);
            if before != after {
                others.extend(self.beside_changed_vm(pod_vm, before.max(after)).cloned());
            } else if old == Some((pod_vm, Role::Record)) && now != old {
                others.extend(self.beside_removed_record(pod_vm, after).cloned());
            }
        }
        if now != old {
            let pods = vms.iter().filter_map(|(pod_vm, _)| pod_vm.whole());
            others.extend(pods.flat_map(|(_, pod)| self.relatives.few_outdated(pod)).cloned());
            others.extend(old.into_iter().flat_map(|(pod_vm, _)| self.beside_removed_claim(pod_vm)).cloned());
        }
        others.retain(|other| other != key);
        Replaced { before: old.map(|(pod_vm, _)| pod_vm), matters, others }
    }

    /// Whether a PeerPod with this entry, which is not in the index, may need a reconcile.
    fn needs_reconcile(&self, entry: &Entry) -> bool {
        let Entry { pod_vm, created, .. } = *entry;
        let has_newer = || {
            let since = self.relatives.recorded(pod_vm).map_or(created, |it| it.min(created));
            self.relatives.newer(pod_vm, since).next().is_some()
        };
        entry.needs_resync
            || match entry.role {
                Role::Record => has_newer(),
                Role::WithoutFinalizer => {
                    pod_vm.pod.is_some_and(|pod| self.relatives.has_younger(pod, created))
                }
                Role::Deleting | Role::Ended => false,
            }
    }

    /// The PeerPods of a VM that was added or removed, or whose first record changed, and those of the next older VMs of its Pod.
    /// `latest`: the VM with the later one of its first records, before the change and after it.
    fn beside_changed_vm(&self, pod_vm: PodVm, latest: Option<RecordedVm>) -> impl Iterator<Item = &Key> {
        let own = self.relatives.records(pod_vm).take(MOST_RELATIVES + 1);
        // One more than a reconcile asks for: that PeerPod may now have more newer siblings than a reconcile asks for.
        let older = self.relatives.older(pod_vm, latest.map_or(i64::MAX, |vm| vm.recorded));
        let older = older.take(MOST_RELATIVES + 1);
        own.chain(older.filter_map(move |it| self.relatives.records(it.pod_vm()).next()))
    }

    /// The other PeerPods of a VM of which one record was removed, if the VM is superseded.
    fn beside_removed_record(&self, pod_vm: PodVm, vm: Option<RecordedVm>) -> impl Iterator<Item = &Key> {
        let has_newer = |vm: RecordedVm| self.relatives.newer(pod_vm, vm.recorded).next().is_some();
        let superseded = vm.filter(|vm| has_newer(*vm));
        superseded.into_iter().flat_map(move |_| self.relatives.records(pod_vm).take(MOST_RELATIVES + 1))
    }

    /// The PeerPods that are being deleted and may have waited for a PeerPod that was removed, if it was the last one that a deletion
    /// waits for.
    fn beside_removed_claim(&self, pod_vm: PodVm) -> impl Iterator<Item = &Key> {
        // One without the finalizer may be of an earlier start of the Pod that waits, and claims nothing then.
        let is_claimed = self.relatives.recording(pod_vm.vm, same_stem(pod_vm.pod)).next().is_some();
        let waiting = (!is_claimed).then(move || self.relatives.waiting(pod_vm));
        waiting.into_iter().flatten()
    }

    /// Adds a PeerPod, or replaces its entry without a look at others.
    pub(super) fn put(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        self.insert(key, entry);
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.relatives.insert(entry.pod_vm, entry.role, entry.created, key.clone());
        self.clouds.entry(entry.cloud).or_default().add(&entry);
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else { return };
        if let Some(totals) = self.clouds.get_mut(entry.cloud) {
            totals.remove(&entry);
        }
        self.relatives.remove(entry.pod_vm, entry.role, entry.created, key.clone());
    }

    /// Notes since when the deletion of this PeerPod is due: the time for which its VM was to stay, until `at`, does not count.
    pub(super) fn note_end_of_wait(&self, key: &Key, entry: &mut Entry, at: Timestamp) {
        let (Some(deleted), Some(before)) = (entry.deleted, self.entries.get(key)) else { return };
        let has_ended = before.counted_as == CountedAs::VmStays && entry.counted_as != CountedAs::VmStays;
        let ended = if has_ended { NonZeroI64::new(at.as_second()) } else { before.deleted };
        entry.deleted = Some(ended.map_or(deleted, |ended| ended.max(deleted)));
    }

    /// Whether the PeerPod newly needs a resync; `None` if more than its status changed.
    pub(super) fn refresh(&mut self, key: &Key, now: &Entry) -> Option<bool> {
        let before = self.entries.get_mut(key).filter(|before| before.content == now.content)?;
        let totals = self.clouds.get_mut(before.cloud)?;
        totals.remove(before);
        let matters = now.needs_resync && !before.needs_resync;
        before.needs_resync = now.needs_resync;
        before.queued |= matters;
        before.counted_as = now.counted_as;
        before.deleted = now.deleted;
        totals.add(before);
        Some(matters)
    }

    /// Notes whether the own Pod of this PeerPod, which is being deleted, has ended. Returns the PeerPods that were refused because this
    /// claim exceeded [`MOST_PODS`].
    pub(super) fn pod_has_ended(
        &mut self,
        key: &ObjectRef<PeerPod>,
        ended: bool,
        content: impl FnOnce() -> u64,
    ) -> Vec<Key> {
        let Some((key, entry)) = self.entries.get_key_value(key) else { return Vec::new() };
        let (before, role) =
            if ended { (Role::Deleting, Role::Ended) } else { (Role::Ended, Role::Deleting) };
        if entry.role != before || entry.content != content() {
            return Vec::new();
        }
        let (key, entry) = (Key::clone(key), Entry { role, ..entry.clone() });
        let pod_vm = entry.pod_vm;
        self.put(key, entry);
        let left = self.relatives.deleting_of_other_pods(pod_vm, same_stem(pod_vm.pod));
        if !ended || left.take(MOST_PODS + 1).count() > MOST_PODS {
            return Vec::new();
        }
        self.relatives.waiting_of_other_pods(pod_vm).cloned().collect()
    }

    /// Notes that a reconcile starts. Returns the PeerPod's cloud if it was queued.
    pub(super) fn reconcile_started(&mut self, key: &ObjectRef<PeerPod>) -> Option<&'static str> {
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

    /// Those that may need a reconcile. Some occur several times.
    pub(super) fn to_resync(&self) -> impl Iterator<Item = Key> {
        let themselves = self.entries.iter().filter(|(_, entry)| entry.needs_resync).map(|(key, _)| key);
        themselves.chain(self.relatives.rivals()).chain(self.relatives.all_outdated()).cloned()
    }
}

impl Entry {
    /// Whether it is a PeerPod of this Pod that was made before that second, and that has no finalizer any more.
    pub(super) fn was_released_before(&self, pod: Option<PodHash>, second: i64) -> bool {
        let is_of_pod = pod.is_some() && self.pod_vm.pod == pod;
        is_of_pod && self.role == Role::WithoutFinalizer && self.created < second
    }

    /// The second since when it should be deleted.
    fn overdue_since(&self) -> Option<i64> {
        self.deleted.filter(|_| self.counted_as != CountedAs::VmStays).map(NonZeroI64::get)
    }
}

impl Totals {
    fn add(&mut self, entry: &Entry) {
        self.peerpods += 1;
        self.queued += usize::from(entry.queued);
        self.pending += usize::from(entry.deleted.is_some());
        self.ambiguous += usize::from(entry.counted_as == CountedAs::Ambiguous);
        if let Some(second) = entry.overdue_since() {
            *self.deleted.entry(second).or_default() += 1;
        }
    }

    /// Subtracts what [`Self::add`] added for it, so no count underflows.
    fn remove(&mut self, entry: &Entry) {
        self.peerpods -= 1;
        self.queued -= usize::from(entry.queued);
        self.pending -= usize::from(entry.deleted.is_some());
        self.ambiguous -= usize::from(entry.counted_as == CountedAs::Ambiguous);
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
