use operator_kit::testing::read_and_projected;
use serde_json::{Value, json};

use super::*;

/// A node from the JSON of its labels, capacity and so on.
pub(in super::super) fn view(name: &str, fields: &Value) -> NodeView {
    let version = fields["version"].as_u64().map(|version| version.to_string());
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "uid": fields["uid"].as_str().unwrap_or(name),
            "resourceVersion": version,
            "labels": fields["labels"],
            "annotations": fields["mark"].as_str().map(|mark| json!({ MARK: mark })),
        },
        "spec": { "taints": fields.get("taints").cloned().unwrap_or(json!([])) },
        "status": {
            "capacity": fields.get("capacity").cloned().unwrap_or(json!({})),
            "allocatable": fields.get("allocatable").or(fields.get("capacity")).cloned().unwrap_or(json!({})),
            "conditions": [{ "type": "Ready", "status": fields["ready"].as_str().unwrap_or("True") }],
        },
    }))
    .unwrap()
}

#[test]
fn all_that_is_kept_of_a_node_is_read_of_it() {
    let node = json!({
        "metadata": {
            "name": "a", "uid": "u", "resourceVersion": "7", "labels": { "zone": "x" },
            "annotations": { (MARK): "x.y/vm", "fat": "x" },
        },
        "spec": { "taints": [{ "key": "t", "value": "v", "effect": "NoSchedule", "timeAdded": "9999-12-31T00:00:00Z" }], "podCIDR": "x" },
        "status": {
            "capacity": { "cpu": "4", "x.y/vm": "3" }, "allocatable": { "cpu": "4", "x.y/vm": "2" },
            "conditions": [{ "type": "Ready", "status": "True", "message": "m" }], "images": [{ "names": ["i"] }],
        },
    });
    let kept = read_and_projected(&NODE, &node).map(|view| Node::new(&view, &mut Texts::default()));
    let [all, projected] = kept.map(|node| format!("{node:?}"));
    assert_eq!(projected, all);
    for text in ["zone=x", "x.y/vm", "NoSchedule", "is_ready: true"] {
        assert!(all.contains(text), "{text} of {all}");
    }
}

#[test]
fn quantities_are_read_as_the_api_server_writes_them() {
    for (text, number) in [
        ("0", 0),
        ("7", 7),
        ("1k", 1000),
        ("12k", 12_000),
        ("1M", 1_000_000),
        ("1Ki", 1024),
        ("1e3", 1000),
        ("2E2", 200),
        ("4294967295", u32::MAX),
        ("4294967296", u32::MAX),
        ("5G", u32::MAX),
        ("1e99", u32::MAX),
        ("-1", u32::MAX),
        ("ten", u32::MAX),
        // Rounded up, as Kubernetes does. An API server accepts no such number of an extended resource.
        ("1500m", 2),
        ("", u32::MAX),
    ] {
        assert_eq!(whole(&Quantity(text.into())), number, "{text}");
    }
}

#[test]
fn extended_resources_are_recognized_as_kubernetes_does() {
    let (domain, name) = ("d".repeat(LONGEST_DOMAIN), "n".repeat(qualified::LONGEST_NAME));
    for (resource, extended) in [
        ("kata.peerpods.io/vm", true),
        ("a/b", true),
        ("x.y/V_m.1-z", true),
        (&format!("{domain}/{name}"), true),
        (&format!("{domain}d/{name}"), false),
        (&format!("{domain}/{name}n"), false),
        ("vm", false),
        ("kubernetes.io/vm", false),
        ("batch.kubernetes.io/vm", false),
        ("requests.x.y/vm", false),
        ("x..y/vm", false),
        ("x.y-/vm", false),
        ("X.y/vm", false),
        ("x.y/", false),
        ("/vm", false),
        ("x.y/_vm", false),
        ("x.y/v/m", false),
    ] {
        assert_eq!(is_extended(resource), extended, "{resource}");
    }
}

#[test]
fn a_node_is_read_from_its_full_self() {
    let view: NodeView = serde_json::from_value(json!({
        "metadata": {
            "name": "a", "uid": "u", "resourceVersion": "12",
            "labels": { "zone": "x", "zone2": "y", "empty": "" },
            "annotations": { MARK: "x.y/vm", "other": "z" },
        },
        "spec": {
            "unschedulable": true,
            "taints": [
                { "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" },
                { "key": "for", "value": "db", "effect": "NoSchedule" },
            ],
        },
        "status": {
            "capacity": { "cpu": "4", "x.y/vm": "3", "kubernetes.io/z": "1" },
            "allocatable": { "cpu": "3900m", "x.y/vm": "2" },
            "conditions": [
                { "type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure" },
                { "type": "Ready", "status": "True" },
            ],
            "images": [{ "names": ["n"] }],
        },
    }))
    .unwrap();
    let node = Node::new(&view, &mut Texts::default());
    assert_eq!((node.name().as_ref(), node.uid(), node.version), ("a", "u", Some(12)));
    assert_eq!((node.label("zone"), node.label("empty"), node.label("zon")), (Some("x"), Some(""), None));
    assert_eq!(node.level("x.y/vm"), Level { capacity: Some(3), allocatable: Some(2) });
    assert_eq!((node.level("cpu"), node.resources.len()), (Level::default(), 1));
    assert_eq!(node.mark(), Some("x.y/vm"));
    assert_eq!(node.taints(), ["for=db:NoSchedule".into()]);
    assert!(node.is_ready());
    let bare = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    let bare = Node::new(&bare, &mut Texts::default());
    assert_eq!((bare.label("zone"), bare.is_ready()), (None, false));
}

#[test]
fn a_node_is_ready_when_its_kubelet_says_so() {
    for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
        let node = Node::new(&view("a", &json!({ "ready": status })), &mut Texts::default());
        assert_eq!(node.is_ready(), ready, "{status}");
    }
}

#[test]
fn a_mark_that_names_a_resource_of_the_node_itself_is_not_believed() {
    for mark in ["cpu", "memory", "kubernetes.io/batch"] {
        assert_eq!(Node::new(&view("a", &json!({ "mark": mark })), &mut Texts::default()).mark(), None);
    }
}

#[test]
fn labels_are_stored_once_and_freed_with_their_nodes() {
    let mut texts = Texts::default();
    let labels = |name: &str| view(name, &json!({ "labels": { "host": name, "os": "linux" } }));
    let first = Node::new(&labels("first"), &mut texts);
    let second = Node::new(&labels("second"), &mut texts);
    assert!(Arc::ptr_eq(&first.labels[1], &second.labels[1]));
    for number in 0..1000 {
        drop(Node::new(&labels(&number.to_string()), &mut texts));
    }
    assert!(texts.all.len() < 200, "{}", texts.all.len());
    assert!(Arc::ptr_eq(&texts.share("host=first"), &first.labels[0]));
}

#[test]
fn nodes_that_a_former_version_marked_are_recognised() {
    assert_eq!(MARK, "peerpods.confidentialcontainers.org/advertises");
}
