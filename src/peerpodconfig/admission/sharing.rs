//! Which configuration has the admission of a runtime class. Pure *(no client)*.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::super::conditions::{ConditionType, Reason};
use crate::api::v1alpha1::{AdmissionMode, PeerPodConfig};

/// Whether a configuration asks for an admission of this runtime class.
fn is_for(config: &PeerPodConfig, class: &str) -> bool {
    let admission = &config.spec.admission;
    config.metadata.deletion_timestamp.is_none()
        && admission.mode != AdmissionMode::None
        && admission.runtime_class_name == class
}

/// Whether any other configuration requests an admission, of any class. `configs`: all, the oldest first.
pub(super) fn has_others(config: &PeerPodConfig, configs: &[Arc<PeerPodConfig>]) -> bool {
    let mut others = configs.iter().filter(|other| other.uid() != config.uid());
    others.any(|other| is_for(other, &other.spec.admission.runtime_class_name))
}

/// The older configuration that has the admission of this one's runtime class; none if this one asks for no admission.
pub(super) fn older_with_same_class(
    config: &PeerPodConfig,
    configs: &[Arc<PeerPodConfig>],
) -> Option<Arc<PeerPodConfig>> {
    let admission = &config.spec.admission;
    if admission.mode == AdmissionMode::None {
        return None;
    }
    let mut older = configs.iter().take_while(|other| other.uid() != config.uid());
    older.find(|other| is_for(other, &admission.runtime_class_name)).cloned()
}

/// The names of the younger ones that ask for an admission of this one's runtime class. What they have of it stays until this one's is
/// ready.
pub(super) fn younger_with_same_class(config: &PeerPodConfig, configs: &[Arc<PeerPodConfig>]) -> Vec<String> {
    let class = &config.spec.admission.runtime_class_name;
    let younger = configs.iter().skip_while(|other| other.uid() != config.uid()).skip(1);
    younger.filter(|other| is_for(other, class)).map(|other| other.name_any()).collect()
}

/// The configuration that has the admission of `class`, if `config` still has objects for it but must not have them.
pub(super) fn successor(
    config: &PeerPodConfig,
    class: &str,
    configs: &[Arc<PeerPodConfig>],
) -> Option<Arc<PeerPodConfig>> {
    if is_for(config, class) {
        return None;
    }
    configs.iter().find(|other| other.uid() != config.uid() && is_for(other, class)).cloned()
}

/// Whether its admission is ready for its present spec.
pub(super) fn is_ready(config: &PeerPodConfig) -> bool {
    admission_ready(config).is_some_and(|condition| condition.status == "True")
}

/// Whether `AdmissionReady` has this reason for its present spec.
pub(super) fn has_reason(config: &PeerPodConfig, reason: Reason) -> bool {
    admission_ready(config).is_some_and(|condition| condition.reason == reason.as_str())
}

/// `AdmissionReady`, if it is about the present spec.
fn admission_ready(config: &PeerPodConfig) -> Option<&Condition> {
    let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
    let condition = conditions.find(|condition| condition.type_ == ConditionType::AdmissionReady.as_str())?;
    (condition.observed_generation == config.metadata.generation).then_some(condition)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::failure_reasons, *};

    fn config(name: &str, class: &str, mode: &str, deleted: bool) -> Arc<PeerPodConfig> {
        let deletion = deleted.then_some("1970-01-01T00:16:40Z");
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": name, "uid": name, "generation": 1, "deletionTimestamp": deletion },
            "spec": { "admission": { "mode": mode, "runtimeClassName": class } },
        }));
        Arc::new(config.unwrap())
    }

    fn name(config: Option<Arc<PeerPodConfig>>) -> Option<String> {
        config.map(|config| config.name_any())
    }

    #[test]
    fn the_oldest_that_stays_has_the_admission_of_its_runtime_class() {
        let oldest = config("oldest", "kata", "Policy", false);
        let (younger, last) =
            (config("younger", "kata", "Webhook", false), config("last", "kata", "None", false));
        let configs = [oldest.clone(), younger.clone(), last.clone()];
        assert_eq!(name(older_with_same_class(&oldest, &configs)), None);
        assert_eq!(name(older_with_same_class(&younger, &configs)), Some("oldest".to_owned()));
        assert_eq!(name(older_with_same_class(&last, &configs)), None, "it asks for none");
        assert_eq!(younger_with_same_class(&oldest, &configs), ["younger"]);
        assert!(younger_with_same_class(&younger, &configs).is_empty());
        for leaves in [
            config("leaves", "kata", "Policy", true),
            config("leaves", "kata", "None", false),
            config("leaves", "other", "Policy", false),
        ] {
            let configs = [leaves.clone(), younger.clone()];
            assert_eq!(name(older_with_same_class(&younger, &configs)), None);
            assert!(younger_with_same_class(&oldest, &[oldest.clone(), leaves]).is_empty());
        }
    }

    #[test]
    fn a_failure_of_one_that_shares_an_admission_is_none_of_that_admission() {
        let configs =
            [config("oldest", "kata", "Policy", false), config("younger", "kata", "Webhook", false)];
        assert_eq!(
            failure_reasons(&configs[0], &configs),
            [Reason::InvalidAdmission, Reason::AdmissionFailed]
        );
        assert_eq!(failure_reasons(&configs[1], &configs), [Reason::SharedNotReady; 2]);
        assert_eq!(failure_reasons(&configs[1], &configs[1..])[1], Reason::AdmissionFailed);
    }

    #[test]
    fn one_that_leaves_the_admission_has_a_successor() {
        let stays = config("own", "kata", "Policy", false);
        let (next, last) =
            (config("next", "kata", "Webhook", false), config("last", "kata", "Policy", false));
        let deleted = config("deleted", "kata", "Policy", true);
        assert_eq!(name(successor(&stays, "kata", &[stays.clone(), next.clone()])), None);
        for leaves in [
            config("own", "kata", "Policy", true),
            config("own", "kata", "None", false),
            config("own", "other", "Policy", false),
        ] {
            let configs = [leaves.clone(), deleted.clone(), next.clone(), last.clone()];
            assert_eq!(name(successor(&leaves, "kata", &configs)), Some("next".to_owned()));
            assert!(has_others(&leaves, &configs));
            let nobody = [leaves.clone(), deleted.clone(), config("none", "kata", "None", false)];
            assert_eq!(name(successor(&leaves, "kata", &nobody)), None);
            assert!(!has_others(&leaves, &nobody));
        }
    }
}
