use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest},
};
use serde_json::{Map, Value, json};

use super::*;

const FEW: &[(&str, Part)] =
    &[("a", Part::All), ("b", Part::Only(&[("a", Part::All), ("c", Part::Only(&[]))]))];

static ALL: Projection = Projection { metadata: FEW, rest: FEW, most: usize::MAX };

/// The same in another way: from a whole document.
fn expected(projection: &Projection, place: &str, value: &Value) -> Value {
    if let Value::Array(elements) = value {
        return elements.iter().map(|it| expected(projection, place, it)).collect();
    }
    let Value::Object(members) = value else { return value.clone() };
    let of_object = |name: &str, value: &Value| match name {
        "metadata" => Some(expected(projection, "metadata", value)),
        name if ALWAYS.contains(&name) => Some(value.clone()),
        name => part(projection.rest, name, value),
    };
    let kept = members.iter().filter_map(|(name, value)| {
        let kept = match (place, name.as_str()) {
            ("answer", "items" | "object") => Some(expected(projection, "object", value)),
            ("answer", "type") => Some(value.clone()),
            ("metadata", name) if IDENTITY.contains(&name) => Some(value.clone()),
            ("metadata", name) => part(projection.metadata, name, value),
            (_, name) => of_object(name, value),
        };
        Some((name.clone(), kept?))
    });
    kept.collect::<Map<_, _>>().into()
}

fn part(members: &[(&str, Part)], name: &str, value: &Value) -> Option<Value> {
    let (_, part) = members.iter().find(|(it, _)| *it == name)?;
    Some(only(part, value))
}

fn only(read: &Part, value: &Value) -> Value {
    match (read, value) {
        (Part::Only(_) | Part::Apart(_), Value::Array(elements)) => {
            elements.iter().map(|it| only(read, it)).collect()
        }
        (Part::Only(members) | Part::Apart(members), Value::Object(object)) => {
            let kept = object.iter().filter_map(|(name, it)| Some((name.clone(), part(members, name, it)?)));
            kept.collect::<Map<_, _>>().into()
        }
        _ => value.clone(),
    }
}

fn json() -> impl Strategy<Value = Value> {
    const NAMES: &[&str] = &["a", "b", "c", "items", "object", "type", "metadata", "kind", "name", "}\"\\"];
    let text = prop_oneof![Just("\\\"{}[],:\n\u{1}é\u{1f600}".to_owned()), any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        let name = proptest::sample::select(NAMES).prop_map(str::to_owned);
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((name, inner), 0..8).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn only_named_fields_pass_in_any_formatting_and_chunk_size(document in json(), piece in 1..40_usize) {
        let expected = expected(&ALL, "answer", &document);
        for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
            let filtered: Value = serde_json::from_str(&filtered(&ALL, &text, piece)).unwrap();
            prop_assert_eq!(&filtered, &expected);
        }
    }
}

#[test]
fn events_of_a_watch_stay_lines() {
    let event = |name: &str| json!({ "type": "ADDED", "object": { "metadata": { "name": name, "x": [1, "}"] }, "x": {} } });
    let line = |name: &str| json!({ "type": "ADDED", "object": { "metadata": { "name": name } } });
    let text = format!("{}\n{}\n", event("a"), event("b"));
    let filtered = filtered(&ALL, &text, 3);
    let lines: Vec<Value> = filtered.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [line("a"), line("b")]);
    assert!(filtered.ends_with('\n'));
}

#[test]
fn the_error_event_that_ends_a_watch_is_read() {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410 });
    let text = json!({ "type": "ERROR", "object": status }).to_string() + "\n";
    let event = serde_json::from_str::<kube::core::WatchEvent<Value>>(&filtered(&ALL, &text, 5)).unwrap();
    let kube::core::WatchEvent::Error(status) = event else { panic!("{event:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

/// An API server writes the type first.
#[test]
fn the_bookmark_that_ends_a_streamed_list_is_read() {
    let annotations = json!({ "k8s.io/initial-events-end": "true", "x": "y" });
    let object = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "resourceVersion": "7", "annotations": annotations } });
    let event = |type_: &str| format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n");
    let filtered = filtered(&ALL, &(event("BOOKMARK") + &event("ADDED")), 5);
    let events = filtered.lines().map(|line| serde_json::from_str(line).unwrap());
    let events: Vec<kube::core::WatchEvent<Value>> = events.collect();
    let [kube::core::WatchEvent::Bookmark(bookmark), kube::core::WatchEvent::Added(pod)] = events.as_slice()
    else {
        panic!("{filtered}")
    };
    let annotations: Vec<_> = bookmark.metadata.annotations.keys().collect();
    assert_eq!(annotations, ["k8s.io/initial-events-end"]);
    assert_eq!(pod["metadata"], json!({ "resourceVersion": "7" }));
}

#[test]
fn each_field_is_read_up_to_a_limit_of_its_own() {
    static LITTLE: Projection = Projection { metadata: FEW, rest: FEW, most: 5000 };
    let many: Vec<_> = (0..10_000).collect();
    let members: Map<_, _> = many.iter().map(|it| (it.to_string(), json!(it))).collect();
    let fat = json!({ "metadata": { "a": many, "uid": "u" }, "a": members, "b": [{ "a": "x" }] });
    let list = json!({ "metadata": { "continue": "next" }, "items": [fat, { "a": [1, 2] }, fat] });
    let filtered = filtered(&LITTLE, &list.to_string(), 100);
    assert!(filtered.len() < 5000, "{}", filtered.len());
    let filtered: Value = serde_json::from_str(&filtered).unwrap();
    let [first, small, third] = [0, 1, 2].map(|index| &filtered["items"][index]);
    assert_eq!(first, third);
    assert_eq!(
        (first["metadata"]["uid"].as_str(), filtered["metadata"]["continue"].as_str()),
        (Some("u"), Some("next"))
    );
    assert!(
        first["a"].as_object().unwrap().len() > 50 && first["metadata"]["a"].as_array().unwrap().len() > 50
    );
    assert_eq!((&first["b"], small), (&fat["b"], &json!({ "a": [1, 2] })));
}

#[test]
fn members_that_are_read_apart_have_separate_limits() {
    static APART: Projection = Projection {
        metadata: &[],
        rest: &[("a", Part::Apart(&[("b", Part::All), ("c", Part::All), ("d", Part::All)]))],
        most: 5000,
    };
    let many: Vec<_> = (0..10_000).collect();
    let document = json!({ "a": { "b": many, "c": [1, 2], "d": many, "e": many } });
    let filtered: Value = serde_json::from_str(&filtered(&APART, &document.to_string(), 100)).unwrap();
    let [first, small, last] = ["b", "c", "d"].map(|name| filtered["a"][name].as_array().unwrap());
    assert!((50..100).contains(&first.len()) && first == last, "{} and {}", first.len(), last.len());
    assert_eq!((small.len(), &filtered["a"]["e"]), (2, &Value::Null));
}

#[test]
fn an_oversized_text_is_read_as_empty_and_an_oversized_name_is_dropped() {
    let (long, longest) = ("\u{1}".repeat(40_000), "x".repeat(32 << 10));
    let document =
        json!({ "a": [long, longest], "b": { "a": { &long: 1, "x": 2 } }, "metadata": { "name": "n" } });
    let expected = json!({ "a": ["", longest], "b": { "a": { "x": 2 } }, "metadata": { "name": "n" } });
    let filtered: Value = serde_json::from_str(&filtered(&ALL, &document.to_string(), 4096)).unwrap();
    assert_eq!(filtered, expected);
}

static FIELD: Projection = Projection { metadata: FEW, rest: FEW, most: MOST };

#[test]
fn the_texts_of_a_field_share_its_limit_and_short_ones_are_always_read() {
    static ANNOTATIONS: Projection = Projection {
        metadata: &[(
            "annotations",
            Part::Only(&[("a", Part::All), ("b", Part::All), ("c", Part::All), ("d", Part::All)]),
        )],
        rest: &[],
        most: MOST,
    };
    let kept = |bytes: usize| {
        let long = "x".repeat(bytes);
        let document =
            json!({ "metadata": { "annotations": { "a": long, "b": long, "c": long, "d": "short" } } });
        let filtered = filtered(&ANNOTATIONS, &document.to_string(), 4096);
        let filtered: Value = serde_json::from_str(&filtered).unwrap();
        ["a", "b", "c", "d"].map(|name| filtered["metadata"]["annotations"][name].as_str().map(str::len))
    };
    assert_eq!(kept(30 << 10), [Some(0), Some(0), Some(0), Some(5)]);
    assert_eq!(kept(10 << 10), [Some(10 << 10), Some(0), Some(0), Some(5)]);
    assert_eq!(kept(100), [Some(100), Some(100), Some(100), Some(5)]);
}

#[test]
fn many_small_values_count_as_what_they_take_once_they_are_decoded() {
    let empty = vec![json!({}); 10_000];
    let short = vec![json!(""); 10_000];
    let members: Map<_, _> = (0..10_000).map(|it| (it.to_string(), json!(""))).collect();
    for many in [json!(empty), json!(short), json!(members), json!([members]), json!({ "x": empty })] {
        let document = json!({ "a": many, "b": { "a": many }, "kind": "k" });
        let filtered: Value = serde_json::from_str(&filtered(&FIELD, &document.to_string(), 4096)).unwrap();
        for part in [&filtered["a"], &filtered["b"]["a"]] {
            let count = count(part);
            assert!((150..300).contains(&count), "{count}");
        }
        assert_eq!(filtered["kind"], "k");
    }
}

/// The values in a value.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(elements) => elements.iter().map(|it| 1 + count(it)).sum(),
        Value::Object(members) => members.values().map(|it| 1 + count(it)).sum(),
        _ => 0,
    }
}
