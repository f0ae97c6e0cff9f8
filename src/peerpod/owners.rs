//! Notices when a Pod that keeps its machine ends or goes *(client required)*.
//!
//! Most Pods of a cluster own no PeerPod, and of those that do hardly any is waited for. So Pods are watched only while
//! somebody waits, by metadata alone, and nothing of them is kept. A Pod that ends without being deleted does not show in
//! its metadata; the timer of the waiting PeerPod finds that.

use std::{
    collections::HashSet,
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, TryStreamExt, future::select};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::Notify;
use tracing::warn;

use super::{
    index::{Index, Nudges},
    observe::owner,
};
use crate::api::v1alpha1::PeerPod;

/// Pods that somebody waits for, by uid: never more than there are PeerPods.
pub(super) struct OwnerWatch {
    expected: Mutex<HashSet<String>>,
    changed: Notify,
    index: Arc<Index>,
    nudges: Nudges,
}

impl OwnerWatch {
    pub(super) fn new(index: Arc<Index>, nudges: Nudges) -> Self {
        Self { expected: Mutex::default(), changed: Notify::new(), index, nudges }
    }

    /// Asks for another look at this PeerPod whenever something happens to its Pod, until [`Self::settled`].
    pub(super) fn expect(&self, peerpod: &PeerPod) {
        if let Some(owner) = owner(peerpod)
            && self.expected().insert(owner.uid.clone())
        {
            self.changed.notify_one();
        }
    }

    /// Nothing is expected of this PeerPod's Pod any more.
    pub(super) fn settled(&self, peerpod: &PeerPod) {
        if let Some(owner) = owner(peerpod)
            && self.expected().remove(&owner.uid)
        {
            self.changed.notify_one();
        }
    }

    /// Forgets what was expected for PeerPods that are not there any more.
    pub(super) fn retain(&self) {
        let mut expected = self.expected();
        expected.retain(|uid| !self.index.owned_by(uid).is_empty());
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
        match event {
            watcher::Event::Apply(pod) | watcher::Event::Delete(pod) => {
                if let Some(uid) = pod.uid().filter(|uid| self.expected().contains(uid)) {
                    self.nudges.add(self.index.owned_by(&uid));
                }
            }
            // What happened before the watch began shows in no event.
            watcher::Event::InitDone => {
                let expected: Vec<_> = self.expected().iter().cloned().collect();
                self.nudges.add(expected.iter().flat_map(|uid| self.index.owned_by(uid)));
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
        }
    }

    fn expected(&self) -> MutexGuard<'_, HashSet<String>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
