use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const MANAGER: &str = "peerpod-operator";

/// A DaemonSet as an API server gives it after [`desired`] was applied: with defaults, and with what others set.
fn stored() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": "x",
            "namespace": "y",
            "uid": "1",
            "generation": 2,
            "labels": { "a": "b", "of": "others" },
            "annotations": { "deprecated.daemonset.template.generation": "1" },
            "finalizers": ["ours", "theirs"],
            "managedFields": [
                {
                    "manager": MANAGER, "operation": "Apply", "apiVersion": "apps/v1",
                    "fieldsType": "FieldsV1", "fieldsV1": owned(),
                },
                {
                    "manager": MANAGER, "operation": "Apply", "subresource": "status",
                    "fieldsV1": { "f:status": { "f:x": {} } },
                },
                {
                    "manager": MANAGER, "operation": "Update",
                    "fieldsV1": { "f:metadata": { "f:annotations": { "f:x": {} } } },
                },
                { "manager": "kubectl", "operation": "Apply", "fieldsV1": { "f:spec": { "f:paused": {} } } },
            ],
        },
        "spec": {
            "paused": true,
            "revisionHistoryLimit": 10,
            "selector": { "matchLabels": { "a": "b" } },
            "containers": [
                {
                    "name": "main",
                    "image": "i",
                    "terminationMessagePath": "/dev/termination-log",
                    "ports": [{ "containerPort": 1, "protocol": "TCP" }, { "containerPort": 1, "protocol": "UDP" }],
                    "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1" } },
                    "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                },
                { "name": "injected", "image": "j" },
            ],
            "tolerations": [{ "key": "k", "operator": "Exists", "effect": "NoSchedule" }],
            "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }],
        },
        "status": { "x": 1 },
    })
}

fn owned() -> Value {
    json!({
        "f:metadata": { "f:labels": { "f:a": {} }, "f:finalizers": { "v:\"ours\"": {} } },
        "f:spec": {
            "f:selector": {},
            "f:containers": { "k:{\"name\":\"main\"}": {
                ".": {},
                "f:name": {},
                "f:image": {},
                "f:ports": { "k:{\"containerPort\":1,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} } },
                "f:resources": { "f:limits": { "f:cpu": {}, "f:memory": {} } },
                "f:env": { "k:{\"name\":\"A\"}": { ".": {}, "f:name": {}, "f:value": {} } },
            } },
            "f:tolerations": {},
            "f:volumes": { "k:{\"name\":\"v\"}": { ".": {}, "f:name": {}, "f:emptyDir": {} } },
        },
    })
}

fn desired() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "x", "namespace": "y", "labels": { "a": "b" }, "finalizers": ["ours"] },
        "spec": {
            "selector": { "matchLabels": { "a": "b" } },
            "containers": [{
                "name": "main",
                "image": "i",
                "ports": [{ "containerPort": 1 }],
                "resources": { "limits": { "cpu": "1000m", "memory": "1024Mi" } },
                "env": [{ "name": "A", "value": "1" }],
            }],
            "tolerations": [{ "key": "k", "operator": "Exists", "effect": "NoSchedule" }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        },
    })
}

/// The object with the value at this pointer replaced, or removed.
fn with(mut object: Value, pointer: &str, value: Option<Value>) -> Value {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match (object.pointer_mut(parent).unwrap(), value) {
        (Value::Object(fields), Some(value)) => drop(fields.insert(name.to_owned(), value)),
        (Value::Object(fields), None) => drop(fields.remove(name).unwrap()),
        (Value::Array(items), Some(value)) if name == "-" => items.push(value),
        (Value::Array(items), Some(value)) => items[name.parse::<usize>().unwrap()] = value,
        (Value::Array(items), None) => drop(items.remove(name.parse().unwrap())),
        (other, _) => panic!("{pointer}: {other}"),
    }
    object
}

#[test]
fn defaults_and_what_others_set_are_no_difference() {
    assert!(!differs(&stored(), &desired(), MANAGER));
}

#[test]
fn drift_in_any_field_that_is_ours_is_a_difference() {
    for (pointer, value) in [
        ("/metadata/labels/a", Some(json!("c"))),
        ("/metadata/labels/a", None),
        ("/metadata/labels", None),
        ("/metadata/finalizers", Some(json!(["theirs"]))),
        ("/spec/selector/matchLabels/c", Some(json!("d"))),
        ("/spec/containers/0/image", Some(json!("k"))),
        ("/spec/containers/0", None),
        ("/spec/containers/0/ports/0", None),
        ("/spec/containers/0/ports/0/protocol", Some(json!("UDP"))),
        ("/spec/containers/0/env/0/value", Some(json!("3"))),
        ("/spec/containers/0/resources/limits/cpu", Some(json!("2"))),
        ("/spec/tolerations/0/effect", None),
        ("/spec/tolerations/0/tolerationSeconds", Some(json!(5))),
        ("/spec/tolerations/-", Some(json!({ "operator": "Exists" }))),
        ("/spec/volumes/0", None),
        ("/spec", None),
    ] {
        assert!(differs(&with(stored(), pointer, value), &desired(), MANAGER), "{pointer}");
    }
}

#[test]
fn drift_in_fields_of_others_is_no_difference() {
    for (pointer, value) in [
        ("/metadata/labels/of", None),
        ("/metadata/annotations/new", Some(json!("x"))),
        ("/metadata/finalizers/1", None),
        ("/spec/paused", Some(json!(false))),
        ("/spec/containers/1", None),
        ("/spec/containers/0/ports/1", None),
        ("/spec/containers/0/env/1/value", Some(json!("3"))),
        ("/spec/containers/0/resources/requests", None),
        ("/spec/volumes/0/emptyDir/medium", None),
        ("/status", None),
    ] {
        assert!(!differs(&with(stored(), pointer, value), &desired(), MANAGER), "{pointer}");
    }
}

#[test]
fn fields_added_to_or_removed_from_the_desired_object_are_differences() {
    for (pointer, value) in [
        ("/metadata/labels", Some(json!({}))),
        ("/metadata/labels", None),
        ("/metadata/labels/new", Some(json!("x"))),
        ("/metadata/finalizers", Some(json!([]))),
        ("/metadata/finalizers/-", Some(json!("more"))),
        ("/spec/containers/0/env", None),
        ("/spec/containers/0/env/0", None),
        ("/spec/containers/0/env/0", Some(json!({ "name": "C", "value": "1" }))),
        ("/spec/containers/0/env/-", Some(json!({ "name": "C", "value": "1" }))),
        ("/spec/containers/0/resources/limits/cpu", None),
        ("/spec/containers/0/resources/limits/cpu", Some(json!("1001m"))),
        ("/spec/containers/0/resources/limits/gpu", Some(json!("0"))),
        ("/spec/containers/-", Some(json!({ "name": "second" }))),
        ("/spec/selector", None),
        ("/spec/tolerations", None),
        ("/spec/tolerations/0/key", None),
        ("/spec/volumes/0/name", Some(json!("w"))),
        ("/spec/volumes/0/hostPath", Some(json!({ "path": "/" }))),
    ] {
        assert!(differs(&stored(), &with(desired(), pointer, value), MANAGER), "{pointer}");
    }
}

#[test]
fn an_object_of_another_manager_differs_unless_nothing_is_desired() {
    let foreign = with(stored(), "/metadata/managedFields", Some(json!([])));
    assert!(differs(&foreign, &desired(), MANAGER));
    assert!(differs(&stored(), &desired(), "another-manager"));
    let identity = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "x" } });
    assert!(!differs(&foreign, &identity, MANAGER));
    assert!(differs(&Value::Null, &desired(), MANAGER));
}

#[test]
fn others_may_add_expressions_to_a_namespace_selector() {
    let own = json!({ "key": "name", "operator": "NotIn", "values": ["a", "b"] });
    let theirs = json!({ "key": "control-plane", "operator": "NotIn", "values": ["true"] });
    let selector = |expressions: &[&Value]| json!({ "matchExpressions": expressions });
    let object = |selector: &Value| json!({ "webhooks": [{ "name": "w", "namespaceSelector": selector }, { "name": "v" }] });
    for owned in [json!({ "f:name": {} }), json!({ "f:name": {}, "f:namespaceSelector": {} })] {
        let differs = |current: &Value, desired: &Value| {
            let owned = json!({ "f:webhooks": { "k:{\"name\":\"w\"}": owned } });
            let entry = json!({ "manager": MANAGER, "operation": "Apply", "fieldsV1": owned });
            let mut stored = object(current);
            stored["metadata"] = json!({ "managedFields": [entry] });
            differs(&stored, &json!({ "webhooks": [{ "name": "w", "namespaceSelector": desired }] }), MANAGER)
        };
        let desired = selector(&[&own]);
        for same in [&[&own][..], &[&own, &theirs], &[&theirs, &own]] {
            assert!(!differs(&selector(same), &desired), "{same:?}");
        }
        let mut widened = own.clone();
        widened["values"] = json!(["a"]);
        let narrowed = json!({ "key": "name", "operator": "In", "values": ["c"] });
        let by_label = json!({ "matchExpressions": [own], "matchLabels": { "a": "b" } });
        for other in [
            json!({}),
            selector(&[]),
            selector(&[&theirs]),
            selector(&[&widened, &theirs]),
            selector(&[&own, &narrowed]),
            by_label,
        ] {
            assert!(differs(&other, &desired), "{other}");
        }
    }
}

#[test]
fn an_empty_desired_object_or_list_is_no_difference() {
    for (pointer, value) in [
        ("/spec/none", json!({})),
        ("/spec/none", json!([])),
        ("/spec/none", json!(null)),
        ("/spec/selector", json!({})),
    ] {
        assert!(!differs(&stored(), &with(desired(), pointer, Some(value)), MANAGER));
    }
}

/// Any object of plain fields, and the set which says that its manager applied all of them.
fn applied() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Value::from),
        "[a-z]{1,4}".prop_map(Value::from),
        proptest::collection::vec(any::<bool>(), 1..3).prop_map(Value::from),
    ];
    let leaf = leaf.prop_map(|value| (value, json!({})));
    leaf.prop_recursive(4, 24, 4, |inner| {
        proptest::collection::btree_map("[a-z]{1,3}", inner, 1..4).prop_map(|fields| {
            let values = fields.iter().map(|(name, (value, _))| (name.clone(), value.clone()));
            let owned = fields.iter().map(|(name, (_, owned))| (format!("f:{name}"), owned.clone()));
            (Value::Object(values.collect()), Value::Object(owned.collect()))
        })
    })
    .prop_filter("an object", |(value, _)| value.is_object())
}

/// Every pointer to a field below this value.
fn pointers(value: &Value, prefix: &str) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    fields
        .flat_map(|(name, value)| {
            let pointer = format!("{prefix}/{name}");
            [pointers(value, &pointer), vec![pointer]].concat()
        })
        .collect()
}

fn current(spec: &Value, owned: &Value) -> Value {
    let fields = json!({ "f:spec": owned });
    let entry = json!({ "manager": MANAGER, "operation": "Apply", "fieldsV1": fields });
    json!({ "metadata": { "managedFields": [entry] }, "spec": spec })
}

proptest! {
    #[test]
    fn an_applied_object_does_not_differ_and_any_change_of_it_does(
        (spec, owned) in applied(),
        choice in any::<prop::sample::Index>(),
    ) {
        let desired = json!({ "spec": spec });
        let stored = current(&spec, &owned);
        prop_assert!(!differs(&stored, &desired, MANAGER));
        let pointers = pointers(&spec, "");
        let pointer = format!("/spec{}", choice.get(&pointers));
        let other = Some(json!("Other"));
        prop_assert!(differs(&with(stored.clone(), &pointer, other.clone()), &desired, MANAGER));
        prop_assert!(differs(&with(stored.clone(), &pointer, None), &desired, MANAGER));
        prop_assert!(differs(&stored, &with(desired.clone(), &pointer, other), MANAGER));
        prop_assert!(differs(&stored, &with(desired.clone(), &pointer, None), MANAGER));
        // A field beside it is another's.
        let (parent, _) = pointer.rsplit_once('/').unwrap();
        let beside = with(stored, &format!("{parent}/beside"), Some(json!(1)));
        prop_assert!(!differs(&beside, &desired, MANAGER));
    }
}

#[test]
fn a_whole_number_is_the_same_with_and_without_a_fraction() {
    let same = |a: Value, b: Value| same(&json!({ "maximum": a }), &json!({ "maximum": b }), false);
    assert!(same(json!(10), json!(10.0)) && same(json!(-1.0), json!(-1)));
    assert!(
        !same(json!(10), json!(10.5))
            && !same(json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992_i64))
    );
}
