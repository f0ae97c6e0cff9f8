use serde_json::{Value, json};

use super::*;

fn config(admission: &Value, admission_ready: &str) -> PeerPodConfig {
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "older" },
        "spec": { "admission": admission },
        "status": { "conditions": [{
            "type": "AdmissionReady", "status": admission_ready, "reason": "Any", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    }))
    .unwrap()
}

#[test]
fn a_shared_admission_is_as_far_as_the_older_one() {
    let state = |ready| shared_state(&config(&json!({}), ready)).reason;
    assert_eq!(state("True"), Reason::AdmissionShared);
    assert_eq!(state("False"), Reason::SharedNotReady);
}

#[test]
fn fields_that_differ_from_the_older_configuration_are_named() {
    let message_of = |own: Value, older: Value| {
        differing(&config(&own, "True"), &config(&older, "True")).map(|finding| finding.message)
    };
    let same = [json!({ "excludedNamespaces": ["a", "b"] }), json!({ "excludedNamespaces": ["b", "a"] })];
    let [own, older] = same;
    assert_eq!(message_of(own, older), None);
    let message = message_of(
        json!({ "sizing": "Sum", "excludedNamespaces": ["a"] }),
        json!({ "extendedResource": "example.com/vm", "excludedNamespaces": ["a"] }),
    );
    let message = message.unwrap();
    assert!(message.contains("PeerPodConfig older"), "{message}");
    assert!(message.contains("differs in admission.extendedResource, admission.sizing;"), "{message}");
}

#[test]
fn it_is_rolled_out_when_no_pod_of_before_serves_any_more() {
    let rolled_out = |observed: i64, replicas: i32, updated: i32| {
        let deployment = serde_json::from_value(json!({
            "metadata": { "generation": 2 },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
            "status": { "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated },
        }));
        is_rolled_out(&deployment.unwrap())
    };
    assert!(rolled_out(2, 2, 2));
    assert!(!rolled_out(1, 2, 2));
    assert!(!rolled_out(2, 2, 1));
    // All new Pods exist, and an old one still serves.
    assert!(!rolled_out(2, 3, 2));
}
