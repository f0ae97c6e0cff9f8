//! What is done about Pods that lost their VM *(client required)*: an event, and on request an eviction.

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::Eviction},
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions},
};
use kube::{Api, ResourceExt, api::PostParams, core::Status};
use operator_kit::{Permission, api_call};
use tracing::{info, warn};

use super::sweeper::Sweeper;
use crate::{
    api::v1alpha1::PeerPod,
    peerpod::{LostState, object::owner},
};

/// The further permissions that [`LostVms::DeletePod`](super::LostVms::DeletePod) needs.
pub const EVICTIONS: &[Permission] = &[Permission::new("", &["pods/eviction"], &["create"])];

/// How the VM of a PeerPod is lost, as an inspection has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) state: LostState,
    /// Whether the inspection before did not show that.
    pub(super) is_new: bool,
    /// Whether an earlier listing showed the VM as sound.
    pub(super) was_sound: bool,
}

/// Acts on the Pods of one round that lost their VM.
pub(super) struct LostPods<'a> {
    sweeper: &'a Sweeper,
    evicts: bool,
    evicted: usize,
}

impl<'a> LostPods<'a> {
    /// `evicts`: whether it evicts Pods at all.
    pub(super) const fn new(sweeper: &'a Sweeper, evicts: bool) -> Self {
        Self { sweeper, evicts, evicted: 0 }
    }

    /// Sends an event to the Pod of this PeerPod if the loss is new, and evicts the Pod if its VM was there before, unless as many as
    /// a round may evict are evicted.
    pub(super) async fn act(&mut self, peerpod: &PeerPod, lost: Lost) {
        if lost.is_new {
            self.emit_event(peerpod, lost.state).await;
        }
        if self.evicts && lost.was_sound && self.evicted < self.sweeper.options.most {
            self.evicted += usize::from(self.evict(peerpod).await);
        }
    }

    /// Evicts the Pod, which a disruption budget may refuse. A later round tries again. Returns whether the Pod is evicted now.
    async fn evict(&self, peerpod: &PeerPod) -> bool {
        let (Some(pod), Some(namespace)) = (owner(peerpod), peerpod.namespace()) else { return false };
        // Not by kube's `Api::evict`: it names the field `delete_options`, which the API server ignores, and with it the
        // precondition. So a later Pod of the same name, such as a StatefulSet's, could be evicted.
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        let metadata = ObjectMeta { name: Some(pod.name.clone()), ..ObjectMeta::default() };
        let eviction = Eviction { metadata, delete_options: Some(options) };
        let pods: Api<Pod> = Api::namespaced(self.sweeper.search.client.clone(), &namespace);
        let params = PostParams::default();
        let evicted = pods.create_subresource::<_, Status>("eviction", &pod.name, &params, &eviction);
        match api_call::bounded(evicted).await {
            Ok(_) => {
                info!(namespace, pod = pod.name, "evicted a Pod, because its VM is lost");
                true
            }
            Err(error) => {
                warn!(namespace, pod = pod.name, %error, "a Pod whose VM is lost could not be evicted");
                false
            }
        }
    }

    /// An event on the Pod, for its user. It says the same as the condition of the PeerPod.
    async fn emit_event(&self, peerpod: &PeerPod, state: LostState) {
        let Some(owner) = owner(peerpod) else { return };
        let metadata = ObjectMeta {
            name: Some(owner.name.clone()),
            namespace: peerpod.namespace(),
            uid: Some(owner.uid.clone()),
            ..ObjectMeta::default()
        };
        let pod = Pod { metadata, ..Pod::default() };
        let reason = state.reason();
        self.sweeper.publisher.event(&pod, reason.event(), reason.as_str(), state.text()).await;
    }
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::{Answer, ApiServer, Call};
    use serde_json::json;

    use super::*;
    use crate::sweep::{Options, search::tests::sweeper};

    /// The PeerPod of the Pod of this name, whose UID is its name, too.
    fn peerpod(pod: &str) -> PeerPod {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod });
        let metadata = json!({ "name": "p", "namespace": "shop", "ownerReferences": [owner] });
        serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).unwrap()
    }

    fn eviction(pod: &str) -> Call {
        let uid = json!({ "deleteOptions": { "preconditions": { "uid": pod } } });
        Call::post(format!("/api/v1/namespaces/shop/pods/{pod}/eviction")).body_with(uid)
    }

    fn lost(was_sound: bool) -> Lost {
        Lost { state: LostState::Gone, is_new: false, was_sound }
    }

    #[tokio::test]
    async fn only_pods_whose_vm_was_there_are_evicted_and_no_more_than_a_round_may() {
        let done = Answer::object(&json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }));
        let refused = Answer::error(429, "TooManyRequests", "it would violate the disruption budget");
        let server = ApiServer::expecting([
            eviction("a").answer(done.clone()),
            eviction("guarded").answer(refused),
            eviction("b").answer(done),
        ]);
        let sweeper = sweeper(server.client(), Options { most: 2, ..Options::off() });
        let mut pods = LostPods::new(&sweeper, true);
        pods.act(&peerpod("accused"), lost(false)).await;
        for pod in ["a", "guarded", "b", "c"] {
            pods.act(&peerpod(pod), lost(true)).await;
        }
        LostPods::new(&sweeper, false).act(&peerpod("d"), lost(true)).await;
    }
}
