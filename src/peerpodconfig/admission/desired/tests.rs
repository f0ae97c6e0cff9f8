use std::sync::Arc;

use serde_json::json;

use super::{super::observe::Present, *};

fn config(mode: &str) -> PeerPodConfig {
    let config = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "config", "generation": 1 },
        "spec": { "admission": { "mode": mode, "runtimeClassName": "kata" } },
    }));
    config.unwrap()
}

fn ready(config: &PeerPodConfig) -> Arc<PeerPodConfig> {
    let mut config = json!(config);
    config["status"] = json!({ "conditions": [{
        "type": "AdmissionReady", "status": "True", "reason": "PolicyInForce", "message": "",
        "lastTransitionTime": "1970-01-01T00:16:40Z", "observedGeneration": 1,
    }] });
    Arc::new(serde_json::from_value(config).unwrap())
}

/// The means of one with this mode for the class `kata`.
fn means(mode: &str, older: Option<&Arc<PeerPodConfig>>, present: Option<(&str, Means)>) -> Means {
    let present = present.map(|(class, means)| Present { class: class.to_owned(), means });
    let observed = Observed { supports_policies: true, older: older.cloned(), younger: Vec::new(), present };
    Desired::of(&config(mode), &observed, "n").means
}

#[test]
fn a_younger_one_removes_its_admission_when_that_of_the_older_one_is_ready() {
    let older = Arc::new(config("Policy"));
    let present = Some(("kata", Means::Policy));
    assert_eq!(means("Webhook", Some(&older), present), Means::Policy, "nothing replaces it yet");
    assert_eq!(means("Webhook", Some(&older), Some(("other", Means::Policy))), Means::None);
    assert_eq!(means("Webhook", Some(&older), None), Means::None);
    assert_eq!(means("Webhook", Some(&ready(&older)), present), Means::None);
    assert_eq!(means("Webhook", None, present), Means::Webhook);
    assert_eq!(means("Policy", None, None), Means::Policy);
    assert_eq!(means("None", None, present), Means::None);
}

#[test]
fn where_no_policies_are_supported_what_is_there_stays() {
    let own = config("Policy");
    let present = Present { class: "kata".to_owned(), means: Means::Webhook };
    let observed =
        Observed { supports_policies: false, older: None, younger: Vec::new(), present: Some(present) };
    let desired = Desired::of(&own, &observed, "n");
    assert!(desired.is_unsupported);
    assert_eq!((desired.means, desired.kinds.len(), desired.former.len()), (Means::Webhook, 4, 0));
    let desired = Desired::of(&own, &Observed { present: None, ..observed }, "n");
    assert_eq!((desired.means, desired.kinds.len(), desired.former.len()), (Means::None, 0, 4));
}
