//! Tells people how far a configuration is *(client required)*: the status, and an event where a reason is a new one.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::json;
use tracing::{info, warn};

use super::verdict::{Finding, Reason, conditions, ready};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig, PeerPodConfigStatus},
    runtime::{
        api_call::{self, ApiError},
        text::cut,
    },
};

/// Room in an event's note, in bytes, as the API server has it.
const NOTE_LIMIT: usize = 1024;

/// Writes what is to be told.
pub(super) struct Reporter {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
}

/// What is to be told of one configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// How many nodes are selected.
    pub(super) nodes: usize,
    /// How many VMs they advertise together.
    pub(super) advertised: u64,
}

impl Reporter {
    /// Writes the status where it changed, and an event for each reason that is new.
    pub(super) async fn report(&self, config: &PeerPodConfig, report: &Report) -> Result<(), ApiError> {
        let empty = PeerPodConfigStatus::default();
        let before = config.status.as_ref().unwrap_or(&empty);
        let generation = config.metadata.generation;
        let ready = ready(&report.findings);
        let status = PeerPodConfigStatus {
            conditions: conditions(
                &ready,
                &report.findings,
                &before.conditions,
                generation,
                Timestamp::now(),
            ),
            observed_generation: generation,
            setup_completed: before.setup_completed || ready.reason == Reason::AllReady,
            nodes: i64::try_from(report.nodes).unwrap_or(i64::MAX),
            advertised: i64::try_from(report.advertised).unwrap_or(i64::MAX),
        };
        if status == *before {
            return Ok(());
        }
        let news: Vec<_> =
            status.conditions.iter().filter(|condition| is_news(condition, &before.conditions)).collect();
        self.write(config, &status).await?;
        for condition in news {
            self.tell(config, condition).await;
        }
        Ok(())
    }

    async fn write(&self, config: &PeerPodConfig, status: &PeerPodConfigStatus) -> Result<(), ApiError> {
        let api: Api<PeerPodConfig> =
            Api::namespaced(self.client.clone(), &config.namespace().unwrap_or_default());
        // The uid keeps the status of one configuration off a later one of the same name.
        let patch = json!({
            "apiVersion": PeerPodConfig::api_version(&()),
            "kind": PeerPodConfig::kind(&()),
            "metadata": { "name": config.name_any(), "uid": config.uid() },
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match api_call::bounded(api.patch_status(&config.name_any(), &params, &Patch::Apply(patch))).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
            // It is gone, or another one has its name: there is nobody left to tell.
            _ => Ok(()),
        }
    }

    async fn tell(&self, config: &PeerPodConfig, condition: &Condition) {
        let Condition { type_, reason, message, .. } = condition;
        let known = Reason::ALL.iter().find(|it| it.as_str() == reason);
        let event_type = known.map_or(EventType::Normal, |reason| reason.event());
        match event_type {
            EventType::Normal => info!(condition = type_, reason, "{message}"),
            EventType::Warning => warn!(condition = type_, reason, "{message}"),
        }
        let event = Event {
            type_: event_type,
            reason: reason.clone(),
            note: Some(cut(message, NOTE_LIMIT)),
            action: "Configuring".to_owned(),
            secondary: None,
        };
        if let Err(error) = api_call::bounded(self.recorder.publish(&event, &config.object_ref(&()))).await {
            warn!(%error, "an event could not be published");
        }
    }
}

/// `Ready` repeats what another condition says, unless all is well.
fn is_news(condition: &Condition, before: &[Condition]) -> bool {
    let known = before.iter().any(|it| it.type_ == condition.type_ && it.reason == condition.reason);
    let repeats = condition.type_ == "Ready" && condition.status != "True" && !before_is_ready(before);
    !known && !repeats
}

fn before_is_ready(before: &[Condition]) -> bool {
    before.iter().any(|it| it.type_ == "Ready" && it.status == "True")
}
