//! What turns Pods of a runtime class into peer pods, when the configuration that did goes and another stays: it stays until
//! the other's stands, so that no Pod comes in between.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;

use super::{
    Context, apply,
    verdict::{Finding, Kind, Reason},
};
use crate::{
    api::v1alpha1::{AdmissionMode, PeerPodConfig},
    runtime::api_call::ApiError,
};

/// How long a configuration that is being deleted keeps its admission for the sake of another.
const KEPT: Duration = Duration::from_secs(60);

/// From when on the other one's webhook is registered though nobody can call it yet: Pods that are refused are made again,
/// those that run as no peer pods go on.
const REGISTERED: Duration = Duration::from_secs(45);

impl Context {
    /// Where another one that is not ready is to take over the admission of this one, which is being deleted: whether it stays
    /// for that.
    pub(super) fn hand_over(&self, config: &PeerPodConfig) -> Option<Finding> {
        hand_over(config, &self.here(), Timestamp::now())
    }

    /// The older configuration whose admission is for the same runtime class.
    pub(super) fn older_with_same_class(&self, config: &PeerPodConfig) -> Option<Arc<PeerPodConfig>> {
        let here = self.here();
        let mut older = here.into_iter().take_while(|other| other.uid() != config.uid());
        older.find(|other| other.metadata.deletion_timestamp.is_none() && is_of_class(other, config))
    }

    /// Whether one that is being deleted still turns Pods of this one's runtime class into peer pods.
    pub(super) async fn is_stood_in_for(
        &self,
        config: &PeerPodConfig,
        entrances: &[apply::Kind],
    ) -> Result<bool, ApiError> {
        let now = Timestamp::now();
        for other in self.here() {
            let keeps = is_of_class(&other, config) && went_within(&other, REGISTERED, now);
            if keeps && apply::any(&self.client, &other.name_any(), entrances).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn hand_over(config: &PeerPodConfig, here: &[Arc<PeerPodConfig>], now: Timestamp) -> Option<Finding> {
    if config.spec.admission.mode == AdmissionMode::None {
        return None;
    }
    let mut stay = here.iter().filter(|other| other.metadata.deletion_timestamp.is_none());
    let successor = stay.find(|other| is_of_class(other, config)).filter(|it| !stands(it))?;
    let (name, seconds) = (successor.name_any(), KEPT.as_secs());
    Some(if went_within(config, KEPT, now) {
        let message =
            format!("it stays until that of PeerPodConfig {name} is ready, for {seconds} s at most");
        Finding::new(Reason::AdmissionKept, message)
    } else {
        let message = format!(
            "it goes, though that of PeerPodConfig {name}, which is to take its place, is not ready after {seconds} s; the \
             status of that one says why"
        );
        Finding::new(Reason::AdmissionDropped, message)
    })
}

/// Whether a configuration has an admission, which is for the same runtime class as this one's.
fn is_of_class(other: &PeerPodConfig, config: &PeerPodConfig) -> bool {
    let admission = &other.spec.admission;
    admission.mode != AdmissionMode::None
        && admission.runtime_class_name == config.spec.admission.runtime_class_name
}

/// Whether Pods get no further than to the admission of this configuration itself.
fn stands(config: &PeerPodConfig) -> bool {
    let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|condition| {
        condition.type_ == Kind::AdmissionReady.as_str()
            && [Reason::WebhookRunning, Reason::PolicyInForce, Reason::RuntimeClassMissing]
                .iter()
                .any(|reason| reason.as_str() == condition.reason)
    })
}

/// Whether it began to be deleted no longer ago, by the API server's clock or ours: whichever goes wrong, it ends.
fn went_within(config: &PeerPodConfig, time: Duration, now: Timestamp) -> bool {
    let deleted = config.metadata.deletion_timestamp.as_ref();
    deleted.is_some_and(|deleted| now.duration_since(deleted.0).unsigned_abs() < time)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One that was deleted at 1000 s, if it was.
    fn config(name: &str, class: &str, mode: &str, deleted: bool, reason: &str) -> Arc<PeerPodConfig> {
        let deletion = deleted.then_some("1970-01-01T00:16:40Z");
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": name, "uid": name, "deletionTimestamp": deletion },
            "spec": { "admission": { "mode": mode, "runtimeClassName": class } },
            "status": { "conditions": [{
                "type": "AdmissionReady", "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            }] },
        }));
        Arc::new(config.unwrap())
    }

    #[test]
    fn an_admission_stays_until_that_of_the_oldest_that_stays_stands_and_not_for_ever() {
        let going = config("going", "kata", "Policy", true, "Deleting");
        let at = |config: &PeerPodConfig, others: &[&Arc<PeerPodConfig>], second| {
            let here: Vec<_> = std::iter::once(&going).chain(others.iter().copied()).cloned().collect();
            let told = hand_over(config, &here, Timestamp::from_second(second).unwrap());
            told.map(|told| (told.reason, told.message))
        };
        let successor = |reason| config("next", "kata", "Webhook", false, reason);
        let (sharing, ready) = (successor("AdmissionShared"), successor("WebhookRunning"));
        let (reason, message) = at(&going, &[&sharing], 1059).unwrap();
        assert_eq!(reason, Reason::AdmissionKept);
        assert!(message.contains("PeerPodConfig next "), "{message}");
        for (other_clock, expected) in [
            (990, Reason::AdmissionKept),
            (1060, Reason::AdmissionDropped),
            // A clock is far off.
            (900, Reason::AdmissionDropped),
        ] {
            assert_eq!(at(&going, &[&sharing], other_clock).unwrap().0, expected, "{other_clock}");
        }
        assert_eq!(at(&going, &[&ready], 1001), None);
        assert_eq!(at(&going, &[&successor("PolicyInForce")], 1001), None);
        // The API server refuses all Pods of a class that does not exist.
        assert_eq!(at(&going, &[&successor("RuntimeClassMissing")], 1001), None);
        // Another behind one that is ready shares that one's.
        assert_eq!(at(&going, &[&ready, &sharing], 1001), None);
        for nobody in [
            config("next", "other", "Webhook", false, "WebhookStarting"),
            config("next", "kata", "None", false, "AdmissionElsewhere"),
            config("next", "kata", "Webhook", true, "WebhookStarting"),
        ] {
            assert_eq!(at(&going, &[&nobody], 1001), None);
        }
        let without = config("without", "kata", "None", true, "AdmissionElsewhere");
        assert_eq!(at(&without, &[&sharing], 1001), None);
    }
}
