//! Reports the state of a configuration *(client required)*: the status, and an event for each new reason.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::EventType;
use operator_kit::{api_call::ApiError, conditions::is_true, status::Publisher};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::conditions::{ConditionType, Finding, Reason, conditions, ready};
use crate::api::v1alpha1::{PeerPodConfig, PeerPodConfigStatus};

/// Writes statuses and events.
pub(super) struct Reporter {
    publisher: Publisher,
    /// When a status was last written.
    written: Mutex<Option<Instant>>,
}

/// The report about one configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// How many nodes are selected.
    pub(super) nodes: usize,
    /// How many VMs they advertise together.
    pub(super) advertised: u64,
}

/// How long the watch may take to deliver a written status.
pub(super) const READ_BACK: Duration = Duration::from_secs(5);

impl Reporter {
    pub(super) fn new(publisher: Publisher) -> Self {
        Self { publisher, written: Mutex::default() }
    }

    /// Whether a status was written recently. A reconcile that began before the watch delivered it compared with the former one.
    pub(super) fn wrote_recently(&self) -> bool {
        let written = *self.written.lock();
        written.is_some_and(|written| written.elapsed() < READ_BACK)
    }

    /// Writes the status if it changed, and an event for each reason that is new.
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
        *self.written.lock() = Some(Instant::now());
        self.publisher.status(config, &status).await?;
        for condition in news {
            self.announce(config, condition).await;
        }
        Ok(())
    }

    async fn announce(&self, config: &PeerPodConfig, condition: &Condition) {
        let Condition { type_, reason, message, .. } = condition;
        let event_type = Reason::named(reason).map_or(EventType::Normal, Reason::event);
        match event_type {
            EventType::Normal => info!(condition = type_, reason, "{message}"),
            EventType::Warning => warn!(condition = type_, reason, "{message}"),
        }
        self.publisher.event(config, event_type, reason, message).await;
    }
}

/// `Ready` repeats what another condition says, unless all is well.
fn is_news(condition: &Condition, before: &[Condition]) -> bool {
    let known = before.iter().any(|it| it.type_ == condition.type_ && it.reason == condition.reason);
    let repeats = condition.type_ == ConditionType::Ready.as_str()
        && condition.status != "True"
        && !is_true(before, ConditionType::Ready.as_str());
    !known && !repeats
}
