//! What turns Pods of a runtime class into peer pods, when it is to go and that of another configuration takes its place: it
//! stays until the other one's stands, so that no Pod comes in between. It is to go when its configuration is deleted, or
//! edited so that it leaves the admission to others or is for another class.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Service},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;
use operator_kit::api_call::ApiError;

use super::{
    Context,
    admission::Means,
    apply,
    conditions::{ConditionType, Finding, Reason},
};
use crate::api::v1alpha1::{AdmissionMode, PeerPodConfig};

/// How long a configuration keeps an admission that is to go for the sake of another.
const KEPT: Duration = Duration::from_secs(60);

/// From when on the other one's webhook is registered though nobody can call it yet: Pods that are refused are made again,
/// those that run as no peer pods go on.
const REGISTERED: Duration = Duration::from_secs(45);

impl Context {
    /// Where the admission of this one is to go, and another one that is not ready is to take its place: whether it stays for
    /// that. `kinds`: all that an admission may consist of.
    pub(super) async fn hand_over(
        &self,
        config: &PeerPodConfig,
        kinds: &[apply::Kind],
    ) -> Result<Option<Finding>, ApiError> {
        let here = self.here();
        // Mostly there is nobody to wait for, and nothing need be asked.
        if !here.iter().any(|other| other.uid() != config.uid() && is_living(other) && !stands(other)) {
            return Ok(None);
        }
        let class = self.class_admitted(config, kinds).await?;
        Ok(class.and_then(|class| hand_over(config, &class, &here, Timestamp::now())))
    }

    /// The older configuration whose admission is for the same runtime class.
    pub(super) fn older_with_same_class(&self, config: &PeerPodConfig) -> Option<Arc<PeerPodConfig>> {
        let class = &config.spec.admission.runtime_class_name;
        let here = self.here();
        let mut older = here.into_iter().take_while(|other| other.uid() != config.uid());
        older.find(|other| is_living(other) && is_for(other, class))
    }

    /// Whether another one turns Pods of this one's runtime class into peer pods for now: a younger one until this one is
    /// ready, or one whose admission is to go. `kinds`: all that an admission may consist of.
    pub(super) async fn is_stood_in_for(
        &self,
        config: &PeerPodConfig,
        kinds: &[apply::Kind],
    ) -> Result<bool, ApiError> {
        let class = &config.spec.admission.runtime_class_name;
        let now = Timestamp::now();
        for other in self.here() {
            let may = other.uid() != config.uid() && may_stand_in(&other, class, now);
            if may && self.class_admitted(&other, kinds).await?.as_ref() == Some(class) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The runtime class of the Pods that the admission of a configuration is for, if there is one. What is registered does
    /// not admit any once what serves it is gone, or going: whoever deletes a configuration in the foreground deletes that
    /// first.
    async fn class_admitted(
        &self,
        config: &PeerPodConfig,
        kinds: &[apply::Kind],
    ) -> Result<Option<String>, ApiError> {
        let name = config.name_any();
        let Some((class, kind)) = apply::class_served(&self.client, &name, kinds).await? else {
            return Ok(None);
        };
        if Means::Webhook.consists_of(kind) {
            for server in [self.kind::<Deployment>(true), self.kind::<Service>(true)] {
                if !apply::any(&self.client, &name, &[server]).await? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(class))
    }
}

/// Of an admission that is for `class`.
fn hand_over(
    config: &PeerPodConfig,
    class: &str,
    here: &[Arc<PeerPodConfig>],
    now: Timestamp,
) -> Option<Finding> {
    if is_living(config) && is_for(config, class) {
        return None;
    }
    let mut others = here.iter().filter(|other| other.uid() != config.uid());
    let successor = others.find(|other| is_living(other) && is_for(other, class)).filter(|it| !stands(it))?;
    let (name, seconds) = (successor.name_any(), KEPT.as_secs());
    Some(if goes_within(config, KEPT, now) {
        let message = format!(
            "the admission of the runtime class {class} stays until PeerPodConfig {name} provides it, for \
             at most {seconds} s"
        );
        Finding::new(Reason::AdmissionKept, message)
    } else {
        let message = format!(
            "the operator removes the admission of the runtime class {class}, although PeerPodConfig \
             {name} does not provide it after {seconds} s; the status of {name} says why"
        );
        Finding::new(Reason::AdmissionDropped, message)
    })
}

fn is_living(config: &PeerPodConfig) -> bool {
    config.metadata.deletion_timestamp.is_none()
}

/// Whether a configuration asks for an admission of this runtime class.
fn is_for(config: &PeerPodConfig, class: &str) -> bool {
    let admission = &config.spec.admission;
    admission.mode != AdmissionMode::None && admission.runtime_class_name == class
}

/// Whether the admission of another one, if it is for `class`, is not about to go.
fn may_stand_in(other: &PeerPodConfig, class: &str, now: Timestamp) -> bool {
    is_living(other) && is_for(other, class) || goes_within(other, REGISTERED, now)
}

/// Whether Pods get no further than to the admission of this configuration itself.
fn stands(config: &PeerPodConfig) -> bool {
    admission_ready(config).is_some_and(|condition| {
        [Reason::WebhookRunning, Reason::PolicyInForce, Reason::RuntimeClassMissing]
            .iter()
            .any(|reason| reason.as_str() == condition.reason)
    })
}

/// What is told of a configuration's admission, if that is about what it asks for now.
pub(super) fn admission_ready(config: &PeerPodConfig) -> Option<&Condition> {
    let condition = admission_condition(config)?;
    (condition.observed_generation == config.metadata.generation).then_some(condition)
}

fn admission_condition(config: &PeerPodConfig) -> Option<&Condition> {
    let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|condition| condition.type_ == ConditionType::AdmissionReady.as_str())
}

/// Whether its admission of before is to go for no longer than this, by the API server's clock or ours: whichever goes wrong,
/// it ends. Of one that is not deleted it is since when its admission is told not to be ready: it becomes so when it is kept,
/// and one that was not ready long before need not be kept.
fn goes_within(config: &PeerPodConfig, time: Duration, now: Timestamp) -> bool {
    let began = match &config.metadata.deletion_timestamp {
        Some(deleted) => deleted,
        None => match admission_condition(config) {
            Some(condition) if condition.status != "True" => &condition.last_transition_time,
            // Nobody has looked at it yet.
            _ => return true,
        },
    };
    now.duration_since(began.0).unsigned_abs() < time
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One that was deleted at 1000 s, if it was. Its condition is of its first generation.
    fn config(name: &str, class: &str, mode: &str, deleted: bool, reason: &str) -> PeerPodConfig {
        let deletion = deleted.then_some("1970-01-01T00:16:40Z");
        let status = Reason::ALL.iter().find(|it| it.as_str() == reason).unwrap().status();
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": name, "uid": name, "generation": 1, "deletionTimestamp": deletion },
            "spec": { "admission": { "mode": mode, "runtimeClassName": class } },
            "status": { "conditions": [{
                "type": "AdmissionReady", "status": if status { "True" } else { "False" }, "reason": reason,
                "message": "", "lastTransitionTime": "1970-01-01T00:16:40Z", "observedGeneration": 1,
            }] },
        }));
        config.unwrap()
    }

    fn edited(mut config: PeerPodConfig) -> PeerPodConfig {
        config.metadata.generation = Some(2);
        config
    }

    /// What is told of the admission of one for the class `kata`.
    fn at(config: &PeerPodConfig, others: &[&PeerPodConfig], second: i64) -> Option<Finding> {
        let here: Vec<_> = [config].iter().chain(others).map(|it| Arc::new((*it).clone())).collect();
        hand_over(config, "kata", &here, Timestamp::from_second(second).unwrap())
    }

    fn successor(reason: &str) -> PeerPodConfig {
        config("next", "kata", "Webhook", false, reason)
    }

    #[test]
    fn an_admission_stays_until_that_of_the_oldest_that_stays_stands_and_not_for_ever() {
        let (sharing, ready) = (successor("AdmissionShared"), successor("WebhookRunning"));
        for going in [
            config("going", "kata", "Policy", true, "AdmissionKept"),
            config("going", "kata", "None", false, "AdmissionKept"),
            config("going", "other", "Policy", false, "AdmissionKept"),
        ] {
            let finding = at(&going, &[&sharing], 1059).unwrap();
            assert_eq!(finding.reason, Reason::AdmissionKept);
            assert!(finding.message.contains("PeerPodConfig next "), "{}", finding.message);
            for (other_clock, expected) in [
                (990, Reason::AdmissionKept),
                (1060, Reason::AdmissionDropped),
                // A clock is far off.
                (900, Reason::AdmissionDropped),
            ] {
                assert_eq!(at(&going, &[&sharing], other_clock).unwrap().reason, expected, "{other_clock}");
            }
            assert_eq!(at(&going, &[&ready], 1001), None);
            assert_eq!(at(&going, &[&successor("PolicyInForce")], 1001), None);
            // The API server refuses all Pods of a class that does not exist.
            assert_eq!(at(&going, &[&successor("RuntimeClassMissing")], 1001), None);
            // Another behind one that is ready shares that one's.
            assert_eq!(at(&going, &[&ready, &sharing], 1001), None);
            // What it was ready for is not what it asks for now.
            let other = edited(ready.clone());
            assert_eq!(at(&going, &[&other], 1001).unwrap().reason, Reason::AdmissionKept);
            for nobody in [
                config("next", "other", "Webhook", false, "WebhookStarting"),
                config("next", "kata", "None", false, "AdmissionElsewhere"),
                config("next", "kata", "Webhook", true, "WebhookStarting"),
            ] {
                assert_eq!(at(&going, &[&nobody], 1001), None);
            }
        }
    }

    #[test]
    fn one_that_was_edited_a_moment_ago_keeps_it_and_one_that_still_asks_for_it_is_not_asked() {
        let sharing = successor("AdmissionShared");
        let left = edited(config("going", "kata", "None", false, "PolicyInForce"));
        assert_eq!(at(&left, &[&sharing], 9000).unwrap().reason, Reason::AdmissionKept);
        // It did not work before.
        let failed = edited(config("going", "kata", "None", false, "WebhookStarting"));
        assert_eq!(at(&failed, &[&sharing], 9000).unwrap().reason, Reason::AdmissionDropped);
        let stays = config("going", "kata", "Policy", false, "PolicyStarting");
        assert_eq!(at(&stays, &[&sharing], 1001), None);
    }

    #[test]
    fn whoever_has_the_class_stands_in_and_whose_admission_is_to_go_for_a_while() {
        let may = |other: &PeerPodConfig, second| {
            may_stand_in(other, "kata", Timestamp::from_second(second).unwrap())
        };
        assert!(may(&successor("SharedNotReady"), 9000));
        assert!(may(&edited(config("it", "other", "Policy", false, "PolicyInForce")), 9000));
        for going in [
            config("it", "kata", "Webhook", true, "AdmissionKept"),
            config("it", "kata", "None", false, "AdmissionKept"),
            config("it", "other", "Webhook", false, "AdmissionKept"),
        ] {
            assert!(may(&going, 1044));
            assert!(!may(&going, 1045));
        }
    }
}
