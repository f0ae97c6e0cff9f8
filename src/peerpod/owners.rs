//! Notices when a Pod that keeps its machine ends or goes *(client required)*.
//!
//! Most Pods of a cluster own no PeerPod, and of those that do hardly any is waited for. So Pods are watched only while
//! somebody waits, by metadata alone, and nothing of them is kept. A Pod that ends without being deleted does not show in
//! its metadata; the timer of the waiting PeerPod finds that.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, TryStreamExt, future::select};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, reflector::ObjectRef, watcher},
};
use tokio::sync::Notify;
use tracing::warn;

use super::{
    index::{Key, Nudges, key},
    object::owner,
};
use crate::api::v1alpha1::PeerPod;

/// Who waits for which Pods.
pub(super) struct OwnerWatch {
    /// The PeerPods that wait for a Pod, by its uid.
    expected: Mutex<HashMap<String, HashSet<Key>>>,
    changed: Notify,
    nudges: Nudges,
}

impl OwnerWatch {
    pub(super) fn new(nudges: Nudges) -> Self {
        Self { expected: Mutex::default(), changed: Notify::new(), nudges }
    }

    /// Asks for another look at this PeerPod whenever something happens to its Pod, until [`Self::settled`].
    pub(super) fn expect(&self, peerpod: &PeerPod) {
        if let Some(owner) = owner(peerpod)
            && self.expected().entry(owner.uid.clone()).or_default().insert(key(peerpod).into())
        {
            self.changed.notify_one();
        }
    }

    /// This PeerPod expects nothing of its Pod any more. Whether it did.
    pub(super) fn settled(&self, peerpod: &PeerPod) -> bool {
        let Some(owner) = owner(peerpod) else { return false };
        let mut expected = self.expected();
        let Some(waiting) = expected.get_mut(&owner.uid) else { return false };
        let expected_it = waiting.remove(&key(peerpod));
        if waiting.is_empty() {
            expected.remove(&owner.uid);
            self.changed.notify_one();
        }
        expected_it
    }

    /// Forgets PeerPods that are not there any more.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectRef<PeerPod>) -> bool) {
        self.expected().retain(|_, waiting| {
            waiting.retain(|key| exists(key));
            !waiting.is_empty()
        });
        self.changed.notify_one();
    }

    /// Watches while somebody waits.
    pub(super) async fn run(&self, client: Client) -> Infallible {
        loop {
            self.changed_to(true).await;
            let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
            let config = watcher::Config::default().page_size(super::PAGE);
            let events = watcher::watcher(pods, config)
                .default_backoff()
                .inspect_err(|error| warn!(%error, "watching Pods failed; trying again"))
                .filter_map(|event| std::future::ready(event.ok()))
                .for_each(async |event| self.take(&event));
            select(pin!(events), pin!(self.changed_to(false))).await;
        }
    }

    async fn changed_to(&self, waiting: bool) {
        loop {
            let changed = self.changed.notified();
            if self.expected().is_empty() != waiting {
                return;
            }
            changed.await;
        }
    }

    fn take(&self, event: &watcher::Event<PartialObjectMeta<Pod>>) {
        let expected = self.expected();
        match event {
            watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
                let waiting = pod.metadata.uid.as_ref().and_then(|uid| expected.get(uid));
                self.nudges.add(waiting.into_iter().flatten().cloned());
            }
            // What happened before the watch began shows in no event.
            watcher::Event::InitDone => self.nudges.add(expected.values().flatten().cloned()),
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        }
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<String, HashSet<Key>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
