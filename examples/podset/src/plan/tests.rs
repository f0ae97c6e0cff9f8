use serde_json::{Value, json};

use super::*;

fn podset(replicas: i32) -> PodSet {
    let metadata = json!({ "name": "web", "namespace": "shop", "uid": "podset" });
    let spec = json!({ "replicas": replicas });
    let object = json!({
        "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet", "metadata": metadata, "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

/// A ready Pod of the PodSet, `age` seconds old, with these changes.
fn pod_with(name: &str, age: u32, changes: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": name,
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", 59 - age),
            "labels": { "app": "web", "version": "v0.1" },
            "ownerReferences": [{
                "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet", "name": "web", "uid": "podset", "controller": true,
            }],
        },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    for (path, value) in changes.as_object().into_iter().flatten() {
        *pod.pointer_mut(path).unwrap() = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

fn ready(name: &str, age: u32) -> Pod {
    pod_with(name, age, &json!({}))
}

#[test]
fn missing_pods_are_created() {
    assert_eq!(Plan::of(&podset(3), []), Plan { create: 3, ..Plan::default() });
    let plan = Plan::of(&podset(3), &[ready("b", 1), ready("a", 2)]);
    assert_eq!(plan, Plan { keep: vec!["a".into(), "b".into()], create: 1, delete: vec![] });
}

#[test]
fn nothing_is_done_for_the_right_number() {
    let plan = Plan::of(&podset(1), &[ready("a", 1)]);
    assert!(plan.is_done());
    assert_eq!(plan.keep, ["a"]);
}

#[test]
fn unready_pods_are_deleted_first_and_then_the_newest() {
    let pods = [
        ready("newest", 1),
        pod_with("starting", 50, &json!({ "/status": { "phase": "Pending" } })),
        ready("oldest", 9),
        ready("old", 5),
    ];
    assert_eq!(Plan::of(&podset(3), &pods).delete, ["starting"]);
    assert_eq!(Plan::of(&podset(2), &pods).delete, ["newest", "starting"]);
    let plan = Plan::of(&podset(1), &pods);
    assert_eq!(plan.delete, ["old", "newest", "starting"]);
    assert_eq!(plan.keep, ["oldest"]);
}

#[test]
fn only_living_pods_of_this_podset_count() {
    let owner = |changes: &Value| {
        let mut owner = json!({ "apiVersion": "v1", "kind": "PodSet", "name": "web", "uid": "podset", "controller": true });
        owner.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        json!({ "/metadata/ownerReferences": [owner] })
    };
    for (what, changes) in [
        ("nobody's", json!({ "/metadata/ownerReferences": [] })),
        ("another PodSet's of the same name", owner(&json!({ "uid": "other" }))),
        ("not controlled by it", owner(&json!({ "controller": false }))),
        ("of another label", json!({ "/metadata/labels/app": "debugged" })),
        ("succeeded", json!({ "/status/phase": "Succeeded" })),
        ("failed", json!({ "/status/phase": "Failed" })),
        ("lost", json!({ "/status/phase": "Unknown" })),
    ] {
        let plan = Plan::of(&podset(1), &[pod_with("a", 1, &changes)]);
        assert_eq!(plan, Plan { create: 1, ..Plan::default() }, "{what}");
    }
    let mut deleted = ready("a", 1);
    deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
    assert_eq!(Plan::of(&podset(1), &[deleted]).create, 1);
}

#[test]
fn a_new_pod_counts_as_soon_as_the_api_server_has_it() {
    let mut new = pod(&podset(1));
    assert_eq!(new.metadata.generate_name.as_deref(), Some("web-pod"));
    assert_eq!(new.owner_references()[0].block_owner_deletion, Some(true));
    new.metadata.name = Some("web-podabcde".into());
    new.status = serde_json::from_value(json!({ "phase": "Pending" })).unwrap();
    assert_eq!(Plan::of(&podset(1), &[new]).keep, ["web-podabcde"]);
}

#[test]
fn the_selector_has_the_labels() {
    assert_eq!(selector(&podset(1)), "app=web,version=v0.1");
}
