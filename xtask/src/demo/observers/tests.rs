use super::*;
use serde_json::{Value, json};

#[test]
fn virshs_lines_are_read_with_their_time() {
    let line =
        "2026-08-01 12:00:00.123+0000: event 'lifecycle' for domain 'podvm-web-1f3e9a2c': Stopped Destroyed";
    let (at, fact) = domain_event(line).unwrap();
    assert_eq!(at.to_string(), "2026-08-01T12:00:00.123Z");
    assert_eq!(fact, Fact::Domain { name: "podvm-web-1f3e9a2c".into(), event: "Stopped Destroyed".into() });
    assert!(domain_event("events received: 1").is_none());
}

fn peerpod(metadata: &Value, status: &Value) -> PeerPod {
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": metadata, "spec": {}, "status": status,
    }))
    .unwrap()
}

#[test]
fn only_what_is_new_about_a_peerpod_is_a_change() {
    let condition = |status| {
        json!({ "conditions": [{
            "type": "Stalled", "status": status, "reason": "NoOwner", "message": "m",
            "lastTransitionTime": "2026-08-01T12:00:00Z",
        }] })
    };
    let marked = json!({ "name": "a", "finalizers": ["x/y"], "deletionTimestamp": "2026-08-01T12:00:00Z" });
    let alive = peerpod(&json!({ "name": "a", "finalizers": ["x/y"] }), &json!({}));
    let held = peerpod(&marked, &condition("True"));
    let changes = peerpod_changes(Some(&alive), &held);
    assert_eq!(changes[0], PeerPodChange::Marked { finalizers: vec!["x/y".into()] });
    assert!(matches!(&changes[1..], [PeerPodChange::Condition { .. }]), "{changes:?}");
    assert_eq!(peerpod_changes(Some(&held), &held), []);
    assert_eq!(peerpod_changes(Some(&held), &peerpod(&marked, &condition("False"))), []);
    assert_eq!(
        peerpod_changes(Some(&alive), &peerpod(&json!({ "name": "a" }), &json!({}))),
        [PeerPodChange::Released]
    );
}

#[test]
fn a_node_is_reported_when_its_number_of_vms_changes() {
    let node = |vms: &Value| -> watcher::Event<Node> {
        let status = json!({ "allocatable": { "cpu": "4", EXTENDED_RESOURCE: vms } });
        watcher::Event::Apply(
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap(),
        )
    };
    let bare = watcher::Event::Apply(serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap());
    let fact = |vms: Option<&str>| vec![Fact::Node { name: "a".into(), vms: vms.map(str::to_owned) }];
    let mut nodes = Nodes::default();
    assert_eq!(nodes.see(bare.clone()), []);
    assert_eq!(nodes.see(node(&json!("4"))), fact(Some("4")));
    assert_eq!(nodes.see(node(&json!("4"))), []);
    assert_eq!(nodes.see(node(&json!("3"))), fact(Some("3")));
    assert_eq!(nodes.see(bare), fact(None));
}

#[test]
fn an_unschedulable_pod_is_reported_once_for_each_reason() {
    let pod = |message: &str| -> Pod {
        let refusal = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        });
        let status = json!({ "phase": "Pending", "conditions": [refusal] });
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap()
    };
    let told = |message: &str| [PodChange::Unschedulable { message: message.into() }];
    assert_eq!(pod_changes(None, &pod("x")), told("x"));
    assert_eq!(pod_changes(Some(&pod("x")), &pod("x")), []);
    assert_eq!(pod_changes(Some(&pod("x")), &pod("y")), told("y"));
}

#[test]
fn only_what_is_new_about_a_pod_is_a_change() {
    let pod = |deletion: Value, phase| -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "deletionTimestamp": deletion, "deletionGracePeriodSeconds": 30 },
            "status": { "phase": phase },
        }))
        .unwrap()
    };
    let runs = pod(Value::Null, "Running");
    let ending = pod(json!("2026-08-01T12:00:00Z"), "Running");
    let through = pod(json!("2026-08-01T12:00:00Z"), "Succeeded");
    assert_eq!(pod_changes(None, &runs), [PodChange::Runs]);
    assert_eq!(pod_changes(Some(&runs), &ending), [PodChange::Ending { grace_seconds: 30 }]);
    assert_eq!(pod_changes(Some(&ending), &through), [PodChange::Through { phase: "Succeeded".into() }]);
    assert_eq!(pod_changes(Some(&through), &through), []);
}
