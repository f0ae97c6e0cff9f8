//! Watches the Pods that PeerPods wait for *(client required)*.
//!
//! Most Pods of a cluster own no PeerPod, and hardly any PeerPod waits for its Pod. So the operator watches Pods only while a
//! PeerPod waits, reads their metadata alone and stores nothing of it. The metadata does not show that a Pod ended without being
//! deleted; the timer of the waiting PeerPod finds that.
//!
//! A timer alone would not do: it must slow down with the number of PeerPods that wait, to 5 min for 3,000 of a namespace. Then
//! their VMs would stay for that long after their Pods ended.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, future::select};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    runtime::{reflector::ObjectRef, watcher},
};
use operator_kit::{
    metadata::Metadata,
    projection::{IDENTITY_ALONE, reading},
    watch::{NAMES_PAGE, paged, retry_watch},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

use super::{
    index::{Key, MOST_RELATIVES},
    object::{key, owner},
    requeue::Requeues,
};
use crate::api::v1alpha1::PeerPod;

/// How long Pods are watched after the last PeerPod waited. Each new watch lists all Pods, and a tenant decides how often a
/// PeerPod begins to wait.
const LINGER: Duration = Duration::from_secs(60);

/// Which PeerPods wait for which Pods.
pub(super) struct PodWatch {
    waiting: Mutex<Waiting>,
    changed: Notify,
    requeues: Requeues,
}

#[derive(Default)]
struct Waiting {
    /// The PeerPods that wait for a Pod, by its uid.
    expected: HashMap<Arc<str>, HashSet<Key>>,
    /// The uid of the Pod that each of them waits for. A PeerPod may get another owner.
    pods: HashMap<Key, Arc<str>>,
    /// Whether the watch has listed all Pods, so that it delivers only new events.
    listed: bool,
}

impl PodWatch {
    pub(super) fn new(requeues: Requeues) -> Self {
        Self { waiting: Mutex::default(), changed: Notify::new(), requeues }
    }

    /// Requeues this PeerPod when its Pod changes, until [`Self::stop_waiting`]. If many wait for one Pod, a change requeues a few,
    /// and each of them that stops waiting requeues the next. So one write to a Pod has a bounded cost. No change since the Pod was
    /// read is missed: a watch that starts lists the Pod, and with a running watch this PeerPod is requeued at once.
    pub(super) fn expect(&self, peerpod: &PeerPod) {
        let Some(owner) = owner(peerpod) else { return };
        let key = Key::from(key(peerpod));
        let mut waiting = self.waiting.lock();
        if !waiting.expect(&key, &owner.uid) {
            return;
        }
        if waiting.listed {
            self.requeues.add([key]);
        }
        self.changed.notify_one();
    }

    /// This PeerPod no longer waits for its Pod. If it did, a few of those that still wait are requeued: their Pod may have ended, too.
    pub(super) fn stop_waiting(&self, key: &ObjectRef<PeerPod>) {
        let others = self.waiting.lock().stop_waiting(key);
        self.requeues.add(others.unwrap_or_default());
        self.changed.notify_one();
    }

    /// Forgets PeerPods that no longer exist.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        let mut waiting = self.waiting.lock();
        let gone: Vec<_> = waiting.pods.keys().filter(|key| !exists(key)).cloned().collect();
        for key in gone {
            waiting.stop_waiting(&key);
        }
        self.changed.notify_one();
    }

    /// Watches Pods while a PeerPod waits, and a while longer.
    pub(super) async fn run(&self, client: Client) -> Infallible {
        let pods: Api<Metadata<Pod>> = Api::all(reading(&client, &IDENTITY_ALONE));
        loop {
            self.changed_to(true).await;
            let events = retry_watch("Pods", watcher::watcher(pods.clone(), paged().page_size(NAMES_PAGE)))
                .filter_map(|event| std::future::ready(event.ok()))
                .for_each(async |event| self.take(&event));
            select(pin!(events), pin!(self.unused())).await;
            self.waiting.lock().listed = false;
        }
    }

    /// Returns when no PeerPod has waited for a while.
    async fn unused(&self) {
        loop {
            self.changed_to(false).await;
            if timeout(LINGER, self.changed_to(true)).await.is_err() {
                return;
            }
        }
    }

    async fn changed_to(&self, waiting: bool) {
        loop {
            let changed = self.changed.notified();
            if self.waiting.lock().expected.is_empty() != waiting {
                return;
            }
            changed.await;
        }
    }

    fn take(&self, event: &watcher::Event<Metadata<Pod>>) {
        let Waiting { expected, listed, .. } = &mut *self.waiting.lock();
        match event {
            watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
                let keys = pod.meta().uid.as_deref().and_then(|uid| expected.get(uid));
                self.requeues.add(keys.into_iter().flatten().take(MOST_RELATIVES).cloned());
            }
            watcher::Event::Init => *listed = false,
            // No event shows what happened before the watch began.
            watcher::Event::InitDone => {
                *listed = true;
                self.requeues.add(expected.values().flatten().cloned());
            }
            watcher::Event::InitApply(_) => {}
        }
    }
}

impl Waiting {
    /// This PeerPod waits for the Pod with this uid, and for no other. Whether that is new.
    fn expect(&mut self, key: &Key, uid: &str) -> bool {
        if self.pods.get(key).is_some_and(|before| **before == *uid) {
            return false;
        }
        self.stop_waiting(key);
        let uid: Arc<str> = uid.into();
        self.expected.entry(uid.clone()).or_default().insert(key.clone());
        self.pods.insert(key.clone(), uid);
        true
    }

    /// This PeerPod does not wait. If it did, returns a few of those that wait for the same Pod.
    fn stop_waiting(&mut self, key: &ObjectRef<PeerPod>) -> Option<Vec<Key>> {
        let uid = self.pods.remove(key)?;
        let keys = self.expected.get_mut(&uid)?;
        keys.remove(key);
        let others = keys.iter().take(MOST_RELATIVES).cloned().collect();
        if keys.is_empty() {
            self.expected.remove(&uid);
        }
        Some(others)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{from_value, json};
    use watcher::Event;

    use super::*;

    fn peerpod(name: &str, pod_uid: &str) -> PeerPod {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod_uid });
        let mut peerpod = PeerPod::new(name, from_value(json!({})).unwrap());
        peerpod.metadata.namespace = Some("shop".into());
        peerpod.metadata.owner_references = Some(vec![from_value(pod).unwrap()]);
        peerpod
    }

    fn pod(uid: &str) -> Metadata<Pod> {
        from_value(json!({ "metadata": { "uid": uid } })).unwrap()
    }

    /// The names of those that were requeued since the last call.
    fn requeued(requeues: &Requeues) -> Vec<String> {
        let mut names: Vec<_> = requeues.drain().into_iter().map(|it| it.name).collect();
        names.sort();
        names
    }

    #[test]
    fn a_change_of_a_pod_requeues_the_peerpods_that_wait_for_it() {
        let requeues = Requeues::default();
        let watch = PodWatch::new(requeues.clone());
        let (a, b) = (peerpod("a", "pod-a"), peerpod("b", "pod-b"));
        watch.expect(&a);
        watch.expect(&b);
        assert!(requeued(&requeues).is_empty(), "the list is to come");
        watch.take(&Event::InitDone);
        assert_eq!(requeued(&requeues), ["a", "b"]);
        watch.take(&Event::Apply(pod("pod-a")));
        assert_eq!(requeued(&requeues), ["a"]);
        watch.take(&Event::Delete(pod("pod-b")));
        assert_eq!(requeued(&requeues), ["b"]);
        watch.stop_waiting(&key(&a));
        assert!(requeued(&requeues).is_empty(), "no other waits for that Pod");
        assert_eq!(watch.waiting.lock().stop_waiting(&key(&a)), None, "it waits no more");
        watch.take(&Event::Apply(pod("pod-a")));
        assert!(requeued(&requeues).is_empty());
    }

    #[test]
    fn a_change_requeues_a_few_of_many_and_each_that_stops_waiting_requeues_the_next() {
        let requeues = Requeues::default();
        let watch = PodWatch::new(requeues.clone());
        let all: Vec<_> = (0..100).map(|number| peerpod(&number.to_string(), "pod")).collect();
        for one in &all {
            watch.expect(one);
        }
        watch.take(&Event::InitDone);
        assert_eq!(requeued(&requeues).len(), 100);
        let mut stopped = BTreeSet::new();
        watch.take(&Event::Delete(pod("pod")));
        while let names = requeued(&requeues)
            && !names.is_empty()
        {
            assert!(names.len() <= MOST_RELATIVES * MOST_RELATIVES, "{names:?}");
            for name in names {
                watch.stop_waiting(&key(&peerpod(&name, "pod")));
                stopped.insert(name);
            }
        }
        assert_eq!(stopped.len(), 100);
        assert!(watch.waiting.lock().pods.is_empty());
    }

    #[test]
    fn a_peerpod_waits_for_the_pod_that_owns_it_now_alone() {
        let requeues = Requeues::default();
        let watch = PodWatch::new(requeues.clone());
        watch.expect(&peerpod("a", "former"));
        watch.expect(&peerpod("a", "present"));
        watch.take(&Event::InitDone);
        assert_eq!(requeued(&requeues), ["a"]);
        watch.take(&Event::Apply(pod("former")));
        assert!(requeued(&requeues).is_empty());
        watch.take(&Event::Apply(pod("present")));
        assert_eq!(requeued(&requeues), ["a"]);
        assert_eq!(watch.waiting.lock().pods.len(), 1);
        // It was made again with another owner, which no event showed.
        watch.stop_waiting(&key(&peerpod("a", "another")));
        assert!(watch.waiting.lock().expected.is_empty() && watch.waiting.lock().pods.is_empty());
        watch.expect(&peerpod("a", "present"));
        watch.retain(|_| false);
        assert!(watch.waiting.lock().expected.is_empty() && watch.waiting.lock().pods.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_watched_for_a_while_after_the_last_peerpod_waited() {
        let watch = PodWatch::new(Requeues::default());
        let a = peerpod("a", "pod");
        watch.expect(&a);
        let mut unused = pin!(watch.unused());
        assert!(timeout(2 * LINGER, &mut unused).await.is_err(), "it waits");
        watch.stop_waiting(&key(&a));
        assert!(timeout(LINGER / 2, &mut unused).await.is_err());
        watch.expect(&a);
        assert!(timeout(LINGER, &mut unused).await.is_err(), "it waits again");
        watch.stop_waiting(&key(&a));
        assert!(timeout(2 * LINGER, &mut unused).await.is_ok());
    }

    #[test]
    fn a_peerpod_that_begins_to_wait_during_a_watch_is_requeued_once() {
        let requeues = Requeues::default();
        let watch = PodWatch::new(requeues.clone());
        let (a, b) = (peerpod("a", "pod-a"), peerpod("b", "pod-b"));
        watch.expect(&a);
        watch.take(&Event::InitDone);
        requeued(&requeues);
        // Its Pod was read before and may have ended since: this watch has delivered that event already.
        watch.expect(&b);
        assert_eq!(requeued(&requeues), ["b"]);
        watch.expect(&b);
        assert!(requeued(&requeues).is_empty(), "it waits already");
        // A new list requeues all.
        watch.take(&Event::Init);
        watch.stop_waiting(&key(&b));
        watch.expect(&b);
        assert!(requeued(&requeues).is_empty());
        watch.take(&Event::InitDone);
        assert_eq!(requeued(&requeues), ["a", "b"]);
    }
}
