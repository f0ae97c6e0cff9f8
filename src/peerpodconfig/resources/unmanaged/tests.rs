use serde_json::{Value, json};

use super::*;

fn found(daemon_set: &Value) -> Vec<Unmanaged> {
    let daemon_set: DaemonSet = serde_json::from_value(daemon_set.clone()).unwrap();
    let nodes: [(&str, &[(&str, &str)]); 3] = [
        ("b", &[("peer", "yes"), ("zone", "2")]),
        ("a", &[("peer", "yes"), ("zone", "1")]),
        ("c", &[("zone", "1")]),
    ];
    let nodes = nodes.map(|(name, labels)| {
        let label = move |key: &str| labels.iter().find(|(label, _)| *label == key).map(|(_, value)| *value);
        (name, label)
    });
    let config = serde_json::from_value(json!({
        "metadata": { "name": "config", "uid": "1-2-3" }, "spec": { "nodeSelector": { "peer": "yes" } },
    }));
    unmanaged_adaptors([&daemon_set], &config.unwrap(), nodes)
}

/// A DaemonSet with a Pod.
fn daemon_set(metadata: &Value, pod: &Value) -> Value {
    json!({
        "metadata": metadata,
        "spec": { "selector": {}, "template": { "spec": pod } },
        "status": { "currentNumberScheduled": 1 },
    })
}

fn names(daemon_set: &Value) -> Vec<String> {
    found(daemon_set).into_iter().flat_map(|it| it.nodes).collect()
}

#[test]
fn an_unmanaged_daemon_set_is_recognized_by_name_label_or_image() {
    let plain = json!({ "containers": [{ "name": "x", "image": "x" }] });
    let image = json!({ "containers": [{ "name": "x", "image": "r/org/cloud-api-adaptor:v1" }] });
    let on_host = json!({ "hostNetwork": true, "containers": image["containers"] });
    for (metadata, pod) in [
        (json!({ "name": "cloud-api-adaptor-daemonset" }), &plain),
        (json!({ "name": "peerpodconfig-ctrl-caa-daemon" }), &plain),
        (json!({ "name": "x", "labels": { "app": "cloud-api-adaptor" } }), &plain),
        (json!({ "name": "x" }), &image),
        (json!({ "name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z" }), &image),
        (json!({ "name": "older-cloud-api-adaptor", "labels": { CONFIG_LABEL: "older" } }), &plain),
        (json!({ "name": "config-cloud-api-adaptor", "namespace": "elsewhere" }), &on_host),
    ] {
        assert_eq!(names(&daemon_set(&metadata, pod)), ["a", "b"]);
    }
    for (metadata, pod) in [
        (json!({ "name": "x", "labels": { "app": "y" } }), &plain),
        (json!({ "name": "config-cloud-api-adaptor", "labels": { CONFIG_LABEL: "config" } }), &image),
        (json!({ "name": "config-cloud-api-adaptor" }), &image),
    ] {
        assert_eq!(names(&daemon_set(&metadata, pod)), [""; 0]);
    }
}

#[test]
fn in_another_namespace_only_one_that_uses_the_node_conflicts() {
    let of = |labels: &Value| json!({ "name": "x", "namespace": "shop", "labels": labels });
    let with = |further: Value| {
        let mut pod = json!({ "containers": [{ "name": "x", "image": "cloud-api-adaptor" }] });
        pod.as_object_mut().unwrap().append(&mut further.as_object().unwrap().clone());
        pod
    };
    for labels in [json!({ "app": "cloud-api-adaptor" }), json!({ CONFIG_LABEL: "older" })] {
        for harmless in [
            json!({}),
            json!({ "hostNetwork": false, "volumes": [] }),
            json!({ "volumes": [{ "name": "a", "emptyDir": {} }] }),
        ] {
            assert_eq!(names(&daemon_set(&of(&labels), &with(harmless))), [""; 0]);
        }
        for host in [
            json!({ "hostNetwork": true }),
            json!({ "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "hostPath": { "path": "/run" } }] }),
        ] {
            assert_eq!(names(&daemon_set(&of(&labels), &with(host))), ["a", "b"]);
        }
    }
}

#[test]
fn in_another_namespace_one_that_gets_no_pods_does_not_conflict() {
    let pod = json!({ "containers": [], "hostNetwork": true });
    let with_status = |namespace: &str, status: Value| {
        let labels = json!({ "app": "cloud-api-adaptor" });
        let mut it = daemon_set(&json!({ "name": "x", "namespace": namespace, "labels": labels }), &pod);
        it["status"] = status;
        let it: DaemonSet = serde_json::from_value(it).unwrap();
        may_conflict(&it, Some("own"))
    };
    for none in [
        json!(null),
        json!({}),
        json!({ "currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 3 }),
    ] {
        assert!(!with_status("shop", none.clone()), "{none}");
        assert!(with_status("own", none.clone()), "{none}");
    }
    for some in [
        json!({ "currentNumberScheduled": 1 }),
        json!({ "numberMisscheduled": 1 }),
        json!({ "currentNumberScheduled": i32::MAX, "numberMisscheduled": 1 }),
    ] {
        assert!(with_status("shop", some.clone()), "{some}");
    }
}

#[test]
fn only_selected_nodes_that_it_runs_on_count() {
    let on = |placement: Value| {
        let mut pod = json!({ "containers": [{ "name": "x", "image": "cloud-api-adaptor" }] });
        pod.as_object_mut().unwrap().append(&mut placement.as_object().unwrap().clone());
        names(&daemon_set(&json!({ "name": "x" }), &pod))
    };
    let term = |term: Value| {
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": term,
        } } } })
    };
    assert_eq!(on(json!({ "nodeSelector": { "zone": "1" } })), ["a"]);
    assert_eq!(on(json!({ "nodeSelector": { "zone": "3" } })), [""; 0]);
    let zone = json!({ "key": "zone", "operator": "In", "values": ["2"] });
    assert_eq!(on(term(json!([{ "matchExpressions": [zone] }]))), ["b"]);
    let name = json!({ "key": "metadata.name", "operator": "In", "values": ["a"] });
    assert_eq!(on(term(json!([{ "matchFields": [name] }, { "matchExpressions": [zone] }]))), ["a", "b"]);
    assert_eq!(on(term(json!([{ "matchFields": [name], "matchExpressions": [zone] }]))), [""; 0]);
    assert_eq!(on(term(json!([{}]))), [""; 0]);
}

#[test]
fn the_message_says_how_to_take_over() {
    let unmanaged = found(&daemon_set(
        &json!({ "name": "cloud-api-adaptor-daemonset", "namespace": "caa" }),
        &json!({ "containers": [], "hostNetwork": true }),
    ));
    let text = unmanaged[0].to_string();
    assert!(text.contains("caa/cloud-api-adaptor-daemonset"), "{text}");
    assert!(text.contains("2 selected nodes, a among them"), "{text}");
    assert!(text.ends_with("kubectl --namespace caa delete daemonset cloud-api-adaptor-daemonset"), "{text}");
    assert!(!text.contains("limit"), "{text}");
}

#[test]
fn the_message_names_the_configuration_of_another_daemon_set() {
    let metadata = json!({ "name": "a", "namespace": "own", "labels": { CONFIG_LABEL: "older" } });
    let text =
        found(&daemon_set(&metadata, &json!({ "containers": [], "hostNetwork": true })))[0].to_string();
    assert!(text.contains("own/a of PeerPodConfig older runs") && text.contains("selectors"), "{text}");
}

#[test]
fn the_message_names_the_controller_that_made_it_for_this_configuration() {
    let owned_by = |uid: &str| {
        let owner = json!({ "apiVersion": "x/v1", "kind": "PeerPodConfig", "name": "config", "uid": uid });
        let metadata = json!({
            "name": "peerpodconfig-ctrl-caa-daemon", "namespace": "caa", "ownerReferences": [owner],
        });
        found(&daemon_set(&metadata, &json!({ "containers": [], "hostNetwork": true }))).remove(0)
    };
    let (own, of_another) = (owned_by("1-2-3"), owned_by("4"));
    assert!(own.for_this && !of_another.for_this);
    let text = own.to_string();
    assert!(text.contains("since its v0.8.0") && text.contains("stop that controller"), "{text}");
    assert!(
        text.ends_with("kubectl --namespace caa delete daemonset peerpodconfig-ctrl-caa-daemon"),
        "{text}"
    );
}
