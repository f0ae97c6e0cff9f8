//! Tells people about a decision *(client required)*: condition and event. Writes only what changed, so that a state
//! that stays costs nothing.

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
    /// Puts the condition into the status, with an event where the reason is a new one or is to be told again. `None` clears
    /// what an earlier one left; where none ever stood, nothing is written.
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
        let to_be_told = condition.filter(|condition| {
            update.repeat
                || !before
                    .conditions
                    .iter()
                    .any(|it| it.status == "True" && it.reason == condition.reason.as_str())
        });
        let status = PeerPodStatus { conditions, observed_generation: generation };
        self.publisher.status(peerpod, &status).await?;
        if let Some(ConditionUpdate { reason, message }) = to_be_told {
            self.publisher.event(peerpod, reason.event(), reason.as_str(), message.for_status()).await;
        }
        Ok(())
    }
}
