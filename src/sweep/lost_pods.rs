//! What is done about Pods that lost their VM *(client required)*: an event, and on request an eviction.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, Preconditions},
};
use operator_kit::{Permission, api_call};
use tracing::{info, warn};

use super::controller::Sweeper;
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
        let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let eviction = EvictParams { delete_options: Some(options), ..EvictParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.sweeper.search.client.clone(), &namespace);
        match api_call::bounded(pods.evict(&pod.name, &eviction)).await {
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
