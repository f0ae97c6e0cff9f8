//! Writes the DaemonSet and the annotations of the ServiceAccount *(client required)*.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{ResourceExt, api::DeleteParams};
use operator_kit::api_call::ApiError;

use super::{
    super::{
        apply::Left,
        findings::ReconcileError,
        resources,
        wanted::{Found, Kind, Wanted},
    },
    Adaptor,
    settings::SETTINGS_SINCE,
};
use crate::api::v1alpha1::PeerPodConfig;

impl Adaptor {
    /// Writes the DaemonSet of a configuration.
    pub(super) async fn apply(
        &self,
        config: &PeerPodConfig,
        daemon_set: &DaemonSet,
    ) -> Result<Found, ReconcileError> {
        let wanted = [wanted(daemon_set)?];
        Ok(self.objects.apply_all(&config.name_any(), &[self.kind()], &wanted).await?)
    }

    /// Annotates the ServiceAccount, which all configurations share, with the union of what they want. Returns whether it exists.
    pub(in super::super) async fn annotate_service_account(
        &self,
        configs: &[Arc<PeerPodConfig>],
    ) -> Result<bool, ReconcileError> {
        let account = resources::service_account(configs.iter().map(AsRef::as_ref), &self.options.namespace);
        Ok(self.objects.adjust(&Wanted::of(&account)?).await?)
    }

    /// Deletes the DaemonSet of a configuration after its Pods. Returns what is left.
    pub(in super::super) async fn remove(&self, config: &PeerPodConfig) -> Result<Option<Left>, ApiError> {
        self.observer.lists.forget(&config.name_any());
        self.objects.clear(&config.name_any(), &[self.kind()], &DeleteParams::foreground()).await
    }

    fn kind(&self) -> Kind {
        Kind::namespaced::<DaemonSet>(&self.options.namespace)
    }
}

/// The wanted DaemonSet. While it differs, its settings are in force since the next write.
fn wanted(daemon_set: &DaemonSet) -> serde_json::Result<Wanted> {
    Ok(Wanted::of(daemon_set)?.with_time(SETTINGS_SINCE))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::Timestamp;

    use super::{
        super::{super::drift::Drifts, settings},
        *,
    };

    fn with_settings(hash: &str, second: i64) -> Wanted {
        let mut daemon_set = DaemonSet::default();
        let record = settings::record(hash, Timestamp::from_second(second).ok());
        daemon_set.metadata.annotations = Some(record.collect());
        wanted(&daemon_set).unwrap()
    }

    #[test]
    fn repeated_drift_is_left_alone_although_the_settings_time_differs() {
        let (drifts, start) = (Drifts::default(), Instant::now());
        let is_admitted = |wanted: &Wanted, second: u64| {
            let now = start + Duration::from_secs(second);
            drifts.admit(&wanted.key(Some("config")), &wanted.content(), now)
        };
        let admitted = (0..10_i64).filter(|&second| {
            let wanted = with_settings("hash", second);
            assert!(wanted.object.to_string().contains(SETTINGS_SINCE), "it is written all the same");
            is_admitted(&wanted, second.unsigned_abs())
        });
        assert_eq!(admitted.count(), 4);
        assert!(is_admitted(&with_settings("another", 10), 10), "new settings need not wait");
    }
}
