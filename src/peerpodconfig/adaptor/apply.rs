//! Writes the DaemonSet and the annotations of the ServiceAccount *(client required)*.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{ResourceExt, api::DeleteParams};
use operator_kit::api_call::ApiError;

use super::super::{
    apply::Objects,
    findings::RoomError,
    resources,
    wanted::{Found, Kind, Wanted},
};
use crate::api::v1alpha1::PeerPodConfig;

pub(super) struct Applier {
    pub(super) objects: Objects,
    /// The operator's own namespace.
    pub(super) namespace: String,
}

impl Applier {
    pub(super) async fn daemon_set(
        &self,
        config: &PeerPodConfig,
        daemon_set: &DaemonSet,
    ) -> Result<Found, RoomError> {
        let wanted = [Wanted::of(daemon_set)?];
        Ok(self.objects.bring(&config.name_any(), &[self.kind()], &wanted).await?)
    }

    /// Annotates the ServiceAccount with what these configurations want. Returns whether it exists.
    pub(super) async fn service_account(&self, configs: &[Arc<PeerPodConfig>]) -> Result<bool, RoomError> {
        let staying = configs.iter().filter(|config| config.metadata.deletion_timestamp.is_none());
        let account = resources::service_account(staying.map(AsRef::as_ref), &self.namespace);
        Ok(self.objects.adjust(&Wanted::of(&account)?).await?)
    }

    /// Deletes the DaemonSet after its Pods. Returns whether any is left.
    pub(super) async fn remove(&self, config: &PeerPodConfig) -> Result<bool, ApiError> {
        self.objects.clear(&config.name_any(), &[self.kind()], &DeleteParams::foreground()).await
    }

    fn kind(&self) -> Kind {
        Kind::namespaced::<DaemonSet>(&self.namespace)
    }
}
