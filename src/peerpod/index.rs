//! Which PeerPods share a Pod or a VM. Synchronous *(no client)*. The watch updates the index before it triggers a reconcile, so
//! no decision uses half a list.
//!
//! | relation | what the two share | used for |
//! |---|---|---|
//! | newer sibling | the Pod; it records another VM, which is no older | `decide.rs`: it may supersede the PeerPod |
//! | younger one | the Pod; it was made later | `decide.rs`: without one, a PeerPod that has no finalizer stays |
//! | claimant | the VM; another Pod may need it | `claims.rs`: the VM is not deleted |
//! | contested (of a VM) | the VM; a PeerPod of another Pod names it | `observe.rs`: the VM supersedes nothing |
//! | waiting one | the VM; it is being deleted | a requeue, when what it may have waited for is removed |
//! | rival | the Pod; each records another VM | a resync |
//! | outdated one | the Pod; it has no finalizer, and there is a younger one | a resync |

mod hashes;
mod links;
mod relatives;

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    num::NonZeroI64,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};
use parking_lot::Mutex;

pub(super) use self::relatives::{MOST_PODS, MOST_RELATIVES};

use self::{
    hashes::{ALL_PODS, EACH_POD, PodHash, PodVm, Pods, non_zero, same_stem},
    links::{CountedAs, Entry, Links, Replaced},
    relatives::Role,
};
use super::{
    conditions::{has_clearable_condition, has_reason, is_kept_for_pod},
    object::{created, delayed_since, deleted_at, has_finalizer, key, owner},
    reasons::Reason,
};
use crate::{
    api::v1alpha1::PeerPod,
    metrics::Metrics,
    provider::{Cloud, InstanceId, NAME_LIMIT, cloud_label, ownership},
};

/// How many PeerPods of starts of a Pod that failed are looked at for one that still needs the VM.
const MOST_EARLIER_STARTS: usize = 64;

pub(super) type Key = Arc<ObjectRef<PeerPod>>;

/// PeerPods by the hashes of what they share. Code that acts on a result compares the objects themselves.
#[derive(Debug, Default)]
pub(super) struct Index {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    current: Links,
    /// The part of a list that has arrived so far.
    arriving: Links,
    /// The VMs that are kept for their Pods, which may run on them. What a status said once stays even if the status is cleared
    /// later. So the right to write a status is not enough to have a VM deleted.
    kept_for_pod: HashSet<PodVm>,
}

/// The siblings of one PeerPod that may have replaced it. The operator asks the cloud for the newest few only, however many there
/// are: each of them can supersede the PeerPod. While none does, a timer reconciles the PeerPod.
#[derive(Debug)]
pub(super) struct Siblings {
    /// When its own VM was first recorded for its Pod.
    pub(super) recorded: Timestamp,
    /// The newest few VMs of its Pod that are no older than its own.
    pub(super) newest: Vec<SiblingVm>,
    /// When the next one, which the operator does not ask for, was recorded.
    pub(super) next: Option<Timestamp>,
    /// Whether its Pod has a living PeerPod that was made later.
    pub(super) has_younger: bool,
}

/// Another VM of the Pod, recorded by one or more siblings.
#[derive(Debug)]
pub(super) struct SiblingVm {
    /// One of these siblings.
    pub(super) key: Key,
    pub(super) recorded: Timestamp,
    /// Whether a PeerPod of another Pod names it too. Two Pods of the same name have VMs that look alike, so a forged PeerPod
    /// could make one VM replace the other.
    pub(super) contested: bool,
}

/// The other PeerPods that name the same VM and may need it.
#[derive(Debug)]
pub(super) struct Claimants {
    /// One that is not being deleted, and not of an earlier start of the same Pod that was released.
    pub(super) living: Option<Key>,
    /// For each other Pod, one PeerPod that is being deleted, of as many Pods as the caller asked for.
    pub(super) deleting: Vec<Key>,
    /// Such a PeerPod of a further Pod, if there are more.
    pub(super) one_more: Option<Key>,
}

/// What an event of the watch changed.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Whether the PeerPod needs a reconcile. A mere write of the status does not, because the operator's own write would
    /// trigger the next one. The exception is a write that makes the PeerPod need a resync: the reconcile that would clear the
    /// condition may have run before the write was observed.
    pub(super) matters: bool,
    /// The other PeerPods that may need a reconcile.
    pub(super) others: Vec<Key>,
}

impl Index {
    /// Applies an event of the watch.
    pub(super) fn apply(&self, event: &Event<PeerPod>) -> Change {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        match event {
            Event::Init => state.arriving = Links::default(),
            // No reconcile yet: the store shows the former state until the list is complete.
            Event::InitApply(peerpod) => {
                let key = Key::from(key(peerpod));
                let mut entry = self.entry(peerpod);
                state.current.note_end_of_wait(&key, &mut entry, Timestamp::now());
                state.read_kept_for_pod(peerpod, entry.pod_vm);
                state.arriving.put(key, entry);
            }
            Event::InitDone => {
                let mut arrived = std::mem::take(&mut state.arriving);
                for cloud in state.current.clouds.keys() {
                    arrived.clouds.entry(cloud).or_default();
                }
                state.kept_for_pod.retain(|pod_vm| arrived.relatives.is_known(*pod_vm));
                state.current = arrived;
                return Change { matters: false, others: state.current.to_resync().collect() };
            }
            Event::Apply(peerpod) => {
                let key = Key::from(key(peerpod));
                let mut entry = self.entry(peerpod);
                state.current.note_end_of_wait(&key, &mut entry, Timestamp::now());
                state.read_kept_for_pod(peerpod, entry.pod_vm);
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
        self.state.lock().current.entries.contains_key(key)
    }

    /// The siblings that may have replaced it.
    pub(super) fn siblings(&self, peerpod: &PeerPod) -> Siblings {
        let pod_vm = self.pod_vm(peerpod);
        let Links { relatives, .. } = &self.state.lock().current;
        let first = pod_vm.whole().and_then(|_| relatives.recorded(pod_vm));
        let made = created(peerpod).as_second();
        let since = first.unwrap_or(i64::MAX).min(made);
        let mut newer = relatives.newer(pod_vm, since);
        let newest = newer.by_ref().take(MOST_RELATIVES).filter_map(|vm| {
            Some(SiblingVm {
                key: relatives.records(vm.pod_vm()).next()?.clone(),
                recorded: second(vm.recorded),
                contested: relatives.is_contested(vm.pod_vm()),
            })
        });
        Siblings {
            recorded: second(since),
            newest: newest.collect(),
            next: newer.next().map(|vm| second(vm.recorded)),
            has_younger: pod_vm.pod.is_some_and(|pod| relatives.has_younger(pod, made)),
        }
    }

    /// The others that name the same VM and may need it, of no more than `most` other Pods and one: those whose Pods' VMs have the
    /// same names but for the sandbox. If the VM bears the name of this PeerPod's Pod, it is of no other Pod.
    pub(super) fn claimants(&self, peerpod: &PeerPod, most: usize) -> Claimants {
        let pod_vm = self.pod_vm(peerpod);
        self.claimants_of(peerpod, pod_vm, same_stem(pod_vm.pod), most)
    }

    /// Like [`Self::claimants`], whatever names the VMs of their Pods have.
    pub(super) fn claimants_of_any_name(&self, peerpod: &PeerPod, most: usize) -> Claimants {
        self.claimants_of(peerpod, self.pod_vm(peerpod), ALL_PODS, most)
    }

    /// Another living PeerPod with the finalizer that names the same VM for a Pod, whatever the name of that is.
    pub(super) fn record_of_any_pod(&self, peerpod: &PeerPod) -> Option<Key> {
        let (own, vm) = (key(peerpod), self.pod_vm(peerpod).vm);
        let relatives = &self.state.lock().current.relatives;
        relatives.recording(vm, EACH_POD).find(|key| ***key != own).cloned()
    }

    fn claimants_of(&self, peerpod: &PeerPod, pod_vm: PodVm, pods: Pods, most: usize) -> Claimants {
        let (own, made) = (key(peerpod), created(peerpod).as_second());
        let Links { relatives, entries, .. } = &self.state.lock().current;
        let mut deleting = relatives.deleting_of_other_pods(pod_vm, pods.clone()).cloned();
        // After a start that failed, cloud-api-adaptor released the PeerPod, and the Pod may have got the same VM again.
        let is_of_earlier_start =
            |key: &&Key| entries.get(*key).is_some_and(|it| it.was_released_before(pod_vm.pod, made));
        let mut living = relatives.living(pod_vm.vm, pods).filter(|key| ***key != own);
        let first = living.by_ref().take(MOST_EARLIER_STARTS).find(|key| !is_of_earlier_start(key));
        Claimants {
            // If there are more earlier starts than that, the next PeerPod counts, whatever it is.
            living: first.or_else(|| living.next()).cloned(),
            deleting: deleting.by_ref().take(most).collect(),
            one_more: deleting.next(),
        }
    }

    /// Whether this Pod has a living PeerPod with the finalizer that names another VM of the cloud than `peerpod` does.
    pub(super) fn has_another_vm(&self, pod: &ObjectMeta, peerpod: &PeerPod) -> bool {
        let (Some(name), Some(uid)) = (&pod.name, &pod.uid) else { return false };
        let pod = self.pod_hash(pod.namespace.as_ref(), peerpod.cloud_provider(), uid, name);
        let pod_vm = PodVm { pod: Some(pod), ..self.pod_vm(peerpod) };
        self.state.lock().current.relatives.has_another_vm(pod_vm)
    }

    /// Notes whether the own Pod of this PeerPod, which is being deleted, has ended. Then the PeerPod claims no VM: it would have its
    /// VM deleted itself. Without that, many PeerPods of Pods that never existed could refuse each other, and a VM, for ever.
    /// Returns others that may have been refused because of it.
    pub(super) fn pod_has_ended(&self, peerpod: &PeerPod, ended: bool) -> Vec<Key> {
        // Most reconciles find what is known already.
        let content = || self.content(peerpod);
        self.state.lock().current.pod_has_ended(&key(peerpod), ended, content)
    }

    /// Keeps the VM of this PeerPod for its Pod, which may run on it: no newer VM replaces it any more, for as long as a PeerPod
    /// records it for that Pod.
    pub(super) fn keep_for_pod(&self, peerpod: &PeerPod) {
        self.state.lock().kept_for_pod.extend(Some(self.pod_vm(peerpod)).filter(|it| it.whole().is_some()));
    }

    /// Whether the VM of this PeerPod is kept for its Pod, by [`Self::keep_for_pod`] or by its status.
    pub(super) fn is_kept_for_pod(&self, peerpod: &PeerPod) -> bool {
        self.state.lock().kept_for_pod.contains(&self.pod_vm(peerpod))
    }

    /// All PeerPods that may need a reconcile.
    pub(super) fn to_resync(&self) -> Vec<Key> {
        self.state.lock().current.to_resync().collect()
    }

    /// How many PeerPods are unfinished: being deleted and not released yet, or ambiguous.
    pub(super) fn unfinished(&self) -> usize {
        self.state.lock().current.clouds.values().map(|totals| totals.pending + totals.ambiguous).sum()
    }

    /// Notes that a reconcile of the PeerPod starts.
    pub(super) fn reconcile_started(&self, key: &ObjectRef<PeerPod>, metrics: &Metrics) {
        let mut state = self.state.lock();
        if let Some(cloud) = state.current.reconcile_started(key) {
            state.current.publish(cloud, metrics);
        }
    }

    /// Publishes the counts of PeerPods. It holds the lock, so an older count never overwrites a newer one.
    pub(super) fn publish(&self, metrics: &Metrics) {
        let state = self.state.lock();
        for cloud in state.current.clouds.keys() {
            state.current.publish(cloud, metrics);
        }
    }

    /// By the same fields that `relations` compares.
    fn pod_vm(&self, peerpod: &PeerPod) -> PodVm {
        let cloud = peerpod.cloud_provider();
        let namespace = peerpod.metadata.namespace.as_ref();
        let pod = owner(peerpod).map(|pod| self.pod_hash(namespace, cloud, &pod.uid, &pod.name));
        let vm = InstanceId::parse(cloud, peerpod.instance_id()).ok();
        let vm = vm.map(|id| non_zero(self.hasher.hash_one((cloud, id.key()))));
        PodVm { vm, pod }
    }

    fn pod_hash(&self, namespace: Option<&String>, cloud: &str, uid: &str, name: &str) -> PodHash {
        let name_limit = Cloud::named(cloud).map_or(NAME_LIMIT, |cloud| cloud.name_limit);
        let stem = self.hasher.hash_one(ownership::stem_of(name, name_limit));
        PodHash::new(stem, self.hasher.hash_one((namespace, cloud, uid, name)))
    }

    fn entry(&self, peerpod: &PeerPod) -> Entry {
        let deleted = deleted_at(peerpod);
        let role = match (deleted, has_finalizer(peerpod)) {
            (Some(_), _) => Role::Deleting,
            (None, true) => Role::Record,
            (None, false) => Role::WithoutFinalizer,
        };
        let pod_vm = self.pod_vm(peerpod);
        let is_ownerless = role == Role::Record && pod_vm.pod.is_none();
        let needs_resync = deleted.is_some() || has_clearable_condition(peerpod) || is_ownerless;
        Entry {
            pod_vm,
            role,
            created: created(peerpod).as_second(),
            cloud: cloud_label(peerpod.cloud_provider()),
            queued: needs_resync,
            deleted: delayed_since(peerpod).and_then(|it| NonZeroI64::new(it.as_second())),
            counted_as: if Reason::ALL.iter().any(|it| it.keeps_vm() && has_reason(peerpod, *it)) {
                CountedAs::VmStays
            } else if deleted.is_none() && has_reason(peerpod, Reason::AmbiguousSiblings) {
                CountedAs::Ambiguous
            } else {
                CountedAs::Other
            },
            content: self.content(peerpod),
            needs_resync,
        }
    }

    /// See [`Entry::content`].
    fn content(&self, peerpod: &PeerPod) -> u64 {
        let PeerPod { metadata, spec, .. } = peerpod;
        let owners: Vec<_> = peerpod
            .owner_references()
            .iter()
            .map(|owner| (&owner.api_version, &owner.kind, &owner.name, &owner.uid, owner.controller))
            .collect();
        let spec = (&spec.cloud_provider, &spec.instance_id);
        let (deleted, finalizers) = (deleted_at(peerpod), &metadata.finalizers);
        self.hasher.hash_one((&metadata.uid, deleted, finalizers, &metadata.annotations, owners, spec))
    }
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or_default()
}

impl State {
    /// Takes over from the status that the VM is kept for its Pod.
    fn read_kept_for_pod(&mut self, peerpod: &PeerPod, pod_vm: PodVm) {
        if pod_vm.whole().is_some() && is_kept_for_pod(peerpod) {
            self.kept_for_pod.insert(pod_vm);
        }
    }

    fn replace(&mut self, key: &Key, new: Option<Entry>) -> Change {
        let Replaced { before, matters, others } = self.current.replace(key, new);
        if let Some(pod_vm) = before.filter(|pod_vm| !self.current.relatives.is_known(*pod_vm)) {
            self.kept_for_pod.remove(&pod_vm);
        }
        Change { matters, others }
    }
}

#[cfg(test)]
mod tests;
