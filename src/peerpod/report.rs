//! Reports a decision *(client required)*: condition and event. It writes only changes, so an unchanged state costs nothing.

use jiff::Timestamp;
use operator_kit::{api_call::ApiError, status::Publisher};

use super::{
    conditions::{ConditionUpdate, conditions},
    deletion_tracker::StatusUpdate,
};
use crate::api::v1alpha1::{PeerPod, PeerPodStatus};

/// Writes conditions, and sends events, as this operator.
pub(super) struct Reporter {
    pub(super) publisher: Publisher,
}

impl Reporter {
    /// Writes the condition to the status, and an event if the reason is new or must be repeated. `None` clears an earlier
    /// condition; without an earlier one nothing is written.
    pub(super) async fn report(
        &self,
        peerpod: &PeerPod,
        update: &StatusUpdate,
        kept_for_pod: bool,
    ) -> Result<(), ApiError> {
        let condition = update.condition.as_ref();
        let empty = PeerPodStatus::default();
        let before = peerpod.status.as_ref().unwrap_or(&empty);
        let generation = peerpod.metadata.generation;
        let conditions =
            conditions(condition, kept_for_pod, &before.conditions, generation, Timestamp::now());
        if conditions == before.conditions {
            return Ok(());
        }
        let to_announce = condition.filter(|condition| {
            update.repeat
                || !before
                    .conditions
                    .iter()
                    .any(|it| it.status == "True" && it.reason == condition.reason.as_str())
        });
        let status = PeerPodStatus { conditions, observed_generation: generation };
        self.publisher.status(peerpod, &status).await?;
        if let Some(ConditionUpdate { reason, message }) = to_announce {
            self.publisher.event(peerpod, reason.event(), reason.as_str(), message.for_status()).await;
        }
        Ok(())
    }
}
