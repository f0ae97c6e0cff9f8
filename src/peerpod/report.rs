//! Reports a decision *(client required)*: condition and event. It writes only changes, so an unchanged state costs nothing.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::events::EventType;
use operator_kit::{api_call::ApiError, status::Publisher};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tracing::debug;

use super::{
    conditions::{ConditionUpdate, conditions, has_reason},
    outcome::StatusUpdate,
};
use crate::api::v1alpha1::{PeerPod, PeerPodStatus};

/// The most reports that are written at once. Each has a connection to the API server, which takes memory.
pub(super) const MOST_REPORTS: usize = 16;

/// How long a report waits for its turn. If a webhook hangs at every status, a reconcile waits no longer than this for others, so
/// those that delete and release continue.
const TURN: Duration = Duration::from_secs(2);

/// Writes conditions, and sends events, as this operator.
pub(super) struct Reporter {
    publisher: Publisher,
    turns: Semaphore,
}

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    /// The API server did not take it.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// Others hang. The next reconcile reports again.
    #[error("the API server is slow: {MOST_REPORTS} other reports took longer than {TURN:?}")]
    NoTurn,
}

impl Reporter {
    pub(super) fn new(publisher: Publisher) -> Self {
        Self { publisher, turns: Semaphore::new(MOST_REPORTS) }
    }

    /// Writes the condition to the status, and an event if the reason is new or must be repeated. `None` clears an earlier
    /// condition; without an earlier one nothing is written.
    pub(super) async fn report(
        &self,
        peerpod: &PeerPod,
        update: &StatusUpdate,
        kept_for_pod: bool,
    ) -> Result<(), ReportError> {
        let condition = update.condition.as_ref();
        let empty = PeerPodStatus::default();
        let before = peerpod.status.as_ref().unwrap_or(&empty);
        let generation = peerpod.metadata.generation;
        let conditions =
            conditions(condition, kept_for_pod, &before.conditions, generation, Timestamp::now());
        if conditions == before.conditions {
            return Ok(());
        }
        let to_announce =
            condition.filter(|condition| update.repeat || !has_reason(peerpod, condition.reason));
        let _turn = self.turn().await?;
        let status = PeerPodStatus { conditions, observed_generation: generation };
        self.publisher.status(peerpod, &status).await?;
        if let Some(ConditionUpdate { reason, message }) = to_announce {
            self.publisher.event(peerpod, reason.event(), reason.as_str(), message.for_status()).await;
        }
        Ok(())
    }

    /// Publishes an event.
    pub(super) async fn event(&self, peerpod: &PeerPod, type_: EventType, reason: &str, note: &str) {
        match self.turn().await {
            Ok(_turn) => self.publisher.event(peerpod, type_, reason, note).await,
            Err(error) => debug!(%error, reason, "the event was not published"),
        }
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, ReportError> {
        // The semaphore is never closed.
        timeout(TURN, self.turns.acquire()).await.ok().and_then(Result::ok).ok_or(ReportError::NoTurn)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{join_all, select};
    use kube::{Client, client::Body};
    use serde_json::json;
    use tokio::time::{Instant, sleep};
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::{api::v1alpha1::FIELD_MANAGER, peerpod::controller::PEERPOD, provider::Error};

    #[tokio::test(start_paused = true)]
    async fn a_status_that_hangs_delays_other_reconciles_by_the_wait_for_a_turn_alone() {
        let hangs = service_fn(async |_: hyper::Request<Body>| {
            std::future::pending::<Result<hyper::Response<Body>, BoxError>>().await
        });
        let publisher = Publisher::new(&Client::new(hangs, "default"), &PEERPOD, FIELD_MANAGER, "Reaping");
        let reporter = Reporter::new(publisher);
        let peerpod: PeerPod = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u-1" },
            "spec": { "cloudProvider": "gcp", "instanceID": "i" },
        }))
        .unwrap();
        let error = Error::new(crate::provider::ErrorClass::Invalid, "the region is unknown");
        let condition =
            super::super::conditions::condition_update(&super::super::decide::Decision::Retry(error));
        let update = StatusUpdate { condition, repeat: false };
        let report = async || reporter.report(&peerpod, &update, false).await;

        let hang = join_all((0..MOST_REPORTS).map(|_| report()));
        let one_more = async {
            sleep(Duration::from_millis(1)).await;
            let begun = Instant::now();
            (report().await, begun.elapsed())
        };
        let (hang, one_more) = (std::pin::pin!(hang), std::pin::pin!(one_more));
        let futures::future::Either::Right(((outcome, took), hang)) = select(hang, one_more).await else {
            panic!("reports that hang ended first")
        };
        assert!(matches!(outcome, Err(ReportError::NoTurn)), "{outcome:?}");
        assert_eq!(took, TURN);
        let timed_out = hang.await;
        assert!(timed_out.iter().all(|it| matches!(it, Err(ReportError::Refused(_)))), "{timed_out:?}");
        assert!(
            timed_out.len() == MOST_REPORTS && reporter.turn().await.is_ok(),
            "their turns are free again"
        );
    }
}
