//! Which PeerPods share a Pod or a machine. Synchronous *(no client)*; fed by the watch before anything is reconciled, so
//! that no decision is made on half a list.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
};

use futures::{Stream, stream};
use kube::{
    ResourceExt,
    runtime::{reflector::ObjectRef, watcher::Event},
};
use tokio::sync::Notify;

use crate::{
    api::v1alpha1::PeerPod,
    provider::{InstanceId, cloud_label},
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
    /// How many PeerPods each cloud has; one that had some keeps its place.
    clouds: BTreeMap<&'static str, usize>,
}

#[derive(Debug)]
struct Filed {
    hashes: Vec<u64>,
    cloud: &'static str,
    /// Of all that decisions read of the object itself, status aside.
    content: u64,
}

/// What an event of the watch changed.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Whether decisions may come out otherwise. A mere write of the status is no change: it would wake whoever wrote it.
    pub(super) matters: bool,
    /// The other PeerPods for which it may matter.
    pub(super) others: Vec<Key>,
}

impl Index {
    /// Takes over what the watch saw.
    pub(super) fn apply(&self, event: &Event<PeerPod>) -> Change {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => state.arriving = Links::default(),
            Event::InitApply(peerpod) => {
                state.arriving.file(key(peerpod).into(), self.filed(peerpod));
                return Change { matters: true, others: Vec::new() };
            }
            Event::InitDone => {
                let mut arrived = std::mem::take(&mut state.arriving);
                for cloud in state.current.clouds.keys() {
                    arrived.clouds.entry(cloud).or_default();
                }
                state.current = arrived;
            }
            Event::Apply(peerpod) => {
                let key = Key::from(key(peerpod));
                let filed = self.filed(peerpod);
                if state.current.filed.get(&key).is_some_and(|before| before.content == filed.content) {
                    return Change::default();
                }
                let mut others = state.current.sharing_with(&key);
                state.current.remove(&key);
                state.current.file(key.clone(), filed);
                others.extend(state.current.sharing_with(&key));
                return Change { matters: true, others };
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

    fn find(&self, hash: u64) -> Vec<Key> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.current.sharing.get(&hash).cloned().unwrap_or_default()
    }

    /// How many PeerPods each cloud has, by the cloud's label.
    pub(super) fn clouds(&self) -> BTreeMap<&'static str, usize> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).current.clouds.clone()
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
        let owners: Vec<_> =
            peerpod.owner_references().iter().map(|owner| (&owner.kind, &owner.name, &owner.uid)).collect();
        let spec = (&spec.cloud_provider, &spec.instance_id);
        let content = (&metadata.uid, deleted, &metadata.finalizers, &metadata.annotations, owners, spec);
        Filed { hashes, cloud: cloud_label(cloud), content: self.hasher.hash_one(content) }
    }
}

impl Links {
    fn file(&mut self, key: Key, filed: Filed) {
        for hash in &filed.hashes {
            self.sharing.entry(*hash).or_insert_with(|| Vec::with_capacity(1)).push(key.clone());
        }
        *self.clouds.entry(filed.cloud).or_default() += 1;
        self.filed.insert(key, filed);
    }

    fn remove(&mut self, key: &Key) {
        let Some(filed) = self.filed.remove(key) else { return };
        if let Some(count) = self.clouds.get_mut(filed.cloud) {
            *count -= 1;
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

    fn sharing_with(&self, key: &Key) -> Vec<Key> {
        let hashes = self.filed.get(key).map(|filed| filed.hashes.as_slice()).unwrap_or_default();
        let sharing = hashes.iter().filter_map(|hash| self.sharing.get(hash)).flatten();
        sharing.filter(|other| *other != key).cloned().collect()
    }
}

/// A PeerPod by namespace and name.
pub(super) fn key(peerpod: &PeerPod) -> ObjectRef<PeerPod> {
    ObjectRef::new(&peerpod.name_any()).within(&peerpod.namespace().unwrap_or_default())
}

/// PeerPods that want another look. Each waits at most once, so there are never more than there are PeerPods.
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

    /// Those that are asked for, as they come; one at a time, without end.
    pub(super) fn stream(self) -> impl Stream<Item = ObjectRef<PeerPod>> + Send {
        stream::unfold(self, |nudges| async move {
            loop {
                // One that is added in between leaves its permit, so the wait below ends at once.
                if let Some(key) = nudges.take() {
                    return Some(((*key).clone(), nudges));
                }
                nudges.0.arrived.notified().await;
            }
        })
    }

    fn take(&self) -> Option<Key> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.iter().next().cloned()?;
        waiting.take(&next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1alpha1::PeerPodSpec;
    use futures::StreamExt;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn peerpod(name: &str, pod_uid: &str, instance: &str) -> PeerPod {
        let spec = PeerPodSpec { cloud_provider: Some("libvirt".into()), instance_id: Some(instance.into()) };
        let mut peerpod = PeerPod::new(name, spec);
        peerpod.metadata.namespace = Some("shop".into());
        peerpod.metadata.owner_references =
            Some(vec![OwnerReference { uid: pod_uid.into(), ..OwnerReference::default() }]);
        peerpod
    }

    fn names(keys: &[Key]) -> Vec<String> {
        let mut names: Vec<_> = keys.iter().map(|key| key.name.clone()).collect();
        names.sort();
        names
    }

    const UUID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

    #[test]
    fn a_list_replaces_what_was_known_when_it_is_whole() {
        let index = Index::default();
        index.apply(&Event::Apply(peerpod("old", "pod-1", "")));
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(peerpod("new", "pod-1", "")));
        assert_eq!(names(&index.owned_by("pod-1")), ["old"]);
        index.apply(&Event::InitDone);
        assert_eq!(names(&index.owned_by("pod-1")), ["new"]);
        assert_eq!(index.clouds(), [("libvirt", 1)].into());
    }

    #[test]
    fn those_that_share_a_pod_or_a_machine_are_told_of_each_other() {
        let index = Index::default();
        assert!(index.apply(&Event::Apply(peerpod("a", "pod-1", UUID))).others.is_empty());
        assert_eq!(names(&index.apply(&Event::Apply(peerpod("b", "pod-1", ""))).others), ["a"]);
        assert_eq!(
            names(&index.apply(&Event::Apply(peerpod("c", "pod-2", &UUID.to_uppercase()))).others),
            ["a"]
        );
        let id = InstanceId::parse("libvirt", UUID).unwrap();
        assert_eq!(names(&index.naming("libvirt", &id)), ["a", "c"]);
        assert_eq!(names(&index.apply(&Event::Delete(peerpod("c", "pod-2", UUID))).others), ["a"]);
        assert_eq!(names(&index.naming("libvirt", &id)), ["a"]);
    }

    #[test]
    fn one_that_loses_its_owner_is_no_longer_found_by_it() {
        let index = Index::default();
        let mut orphan = peerpod("a", "pod-1", "");
        index.apply(&Event::Apply(orphan.clone()));
        index.apply(&Event::Apply(peerpod("b", "pod-1", "")));
        orphan.metadata.owner_references = None;
        assert_eq!(names(&index.apply(&Event::Apply(orphan)).others), ["b"], "its siblings are one fewer");
        assert_eq!(names(&index.owned_by("pod-1")), ["b"]);
    }

    #[test]
    fn a_written_status_is_no_change_and_everything_that_decisions_read_is() {
        let index = Index::default();
        let mut one = peerpod("a", "pod-1", UUID);
        let matters = |one: &PeerPod| index.apply(&Event::Apply(one.clone())).matters;
        assert!(matters(&one));
        one.status = Some(crate::api::v1alpha1::PeerPodStatus::default());
        one.metadata.resource_version = Some("2".into());
        assert!(!matters(&one));
        one.metadata.finalizers = Some(vec!["peer.pod/finalizer".into()]);
        assert!(matters(&one));
        one.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
        assert!(matters(&one));
        one.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        assert!(matters(&one));
        one.metadata.uid = Some("another".into());
        assert!(matters(&one));
        assert!(!matters(&one));
    }

    #[tokio::test]
    async fn a_nudge_given_twice_comes_once() {
        let nudges = Nudges::default();
        let one = Key::from(key(&peerpod("a", "pod-1", "")));
        nudges.add([one.clone(), one.clone()]);
        nudges.add([one]);
        let mut stream = Box::pin(nudges.stream());
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert!(futures::poll!(stream.next()).is_pending());
    }
}
