//! Tells people about a decision *(client required)*: condition and event. Writes only what changed, so that a state
//! that stays costs nothing.

use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder},
};
use serde_json::json;
use tracing::{debug, warn};

use super::{
    progress::Telling,
    verdict::{Verdict, conditions},
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPod, PeerPodStatus},
    runtime::{
        api_call::{self, ApiError},
        text::cut,
    },
};

/// Room in an event's note, in bytes, as the API server has it.
const NOTE_LIMIT: usize = 1024;

/// How a state that stays is kept from being written again.
pub(super) struct Reporter {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
}

impl Reporter {
    /// Puts the verdict into the status, with an event where the reason is a new one or is to be told again. `None` clears
    /// what an earlier one left; where none ever stood, nothing is written.
    pub(super) async fn report(&self, peerpod: &PeerPod, telling: &Telling) -> Result<(), ApiError> {
        let verdict = telling.verdict.as_ref();
        let empty = PeerPodStatus::default();
        let before = peerpod.status.as_ref().unwrap_or(&empty);
        let generation = peerpod.metadata.generation;
        let conditions = match verdict {
            Some(verdict) => conditions(verdict, &before.conditions, generation, Timestamp::now()),
            None => Vec::new(),
        };
        if conditions == before.conditions {
            return Ok(());
        }
        let to_be_told = verdict.filter(|verdict| {
            telling.repeat
                || !before
                    .conditions
                    .iter()
                    .any(|it| it.status == "True" && it.reason == verdict.reason.as_str())
        });
        self.write_status(peerpod, PeerPodStatus { conditions, observed_generation: generation }).await?;
        if let Some(Verdict { reason, message }) = to_be_told {
            self.event(peerpod, reason.event(), reason.as_str(), message).await;
        }
        Ok(())
    }

    async fn write_status(&self, peerpod: &PeerPod, status: PeerPodStatus) -> Result<(), ApiError> {
        let api: Api<PeerPod> =
            Api::namespaced(self.client.clone(), &peerpod.namespace().unwrap_or_default());
        // The uid keeps the status of one PeerPod off a later one of the same name.
        let patch = json!({
            "apiVersion": PeerPod::api_version(&()),
            "kind": PeerPod::kind(&()),
            "metadata": { "name": peerpod.name_any(), "uid": peerpod.uid() },
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        match api_call::bounded(api.patch_status(&peerpod.name_any(), &params, &Patch::Apply(patch))).await {
            Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
            // It is gone, or another one has its name: there is nobody left to tell.
            _ => Ok(()),
        }
    }

    /// Publishes an event. One that cannot be published is logged; a terminating namespace takes none.
    pub(super) async fn event(&self, peerpod: &PeerPod, type_: EventType, reason: &str, note: &str) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(cut(note, NOTE_LIMIT)),
            action: "Reaping".to_owned(),
            secondary: None,
        };
        let published = api_call::bounded(self.recorder.publish(&event, &peerpod.object_ref(&()))).await;
        match published {
            Err(error) if error.is_of_terminating_namespace() => {
                debug!(%error, "the namespace takes no events any more");
            }
            Err(error) => warn!(%error, "an event could not be published"),
            Ok(()) => {}
        }
    }
}
