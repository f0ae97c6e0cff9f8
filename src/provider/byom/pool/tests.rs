use serde_json::json;

use super::*;

const CREATED: i64 = 1_790_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(CREATED + second).unwrap()
}

fn entry(ip: &str, pod: &str, since: i64) -> Value {
    json!({
        "allocationID": format!("{pod}-0123abcd"), "ip": ip, "nodeName": "a", "podName": pod,
        "allocatedAt": at(since).to_string(),
    })
}

fn state(allocated: &Value, available: &Value) -> Value {
    json!({
        "allocatedIPs": allocated, "availableIPs": available, "lastUpdated": at(0).to_string(), "version": 7,
    })
}

fn pool(allocated: &Value, available: &Value) -> Pool {
    Pool::parse(&state(allocated, available).to_string()).unwrap()
}

fn claim(pod: &str) -> Claim {
    Claim {
        pod: Some(pod.to_owned()),
        recorded: at(-500),
        created: at(0),
        deleted: Some(at(60)),
        contested: false,
    }
}

/// The class of the error for the Pod `web`, none if it has the machine 10.0.0.1.
fn class(allocated: &Value, available: &Value) -> Option<ErrorClass> {
    let (pool, address) = (pool(allocated, available), "10.0.0.1".parse().unwrap());
    pool.held(address, &claim("web")).err().map(|error| error.class)
}

#[test]
fn a_later_allocation_is_another_pods_only_if_another_peerpod_records_it() {
    let refused = Some(ErrorClass::Refused);
    for (since, expected, if_contested) in [
        (-100_000, None, None),
        (-1, None, None),
        (0, None, None),
        (10, None, None),
        (11, refused, refused),
        (120, refused, refused),
        (121, refused, Some(ErrorClass::NotFound)),
        (100_000, refused, Some(ErrorClass::NotFound)),
    ] {
        let pool = pool(&json!({ "web-0123abcd": entry("10.0.0.1", "web", since) }), &json!([]));
        let class = |contested| {
            let claim = Claim { contested, ..claim("web") };
            pool.held("10.0.0.1".parse().unwrap(), &claim).err().map(|error| error.class)
        };
        assert_eq!([class(false), class(true)], [expected, if_contested], "{since}");
    }
}

#[test]
fn only_a_clear_answer_of_the_pool_is_absence() {
    let (none, absent) = (json!({}), Some(ErrorClass::NotFound));
    assert_eq!(class(&none, &json!(["10.0.0.2", "10.0.0.1"])), absent, "it is available");
    let other = json!({ "db-0123abcd": entry("10.0.0.1", "db", -1) });
    assert_eq!(class(&other, &json!([])), absent, "it is another Pod's");
    let like = json!({ "web-0-0123abcd": entry("10.0.0.1", "web-0", -1) });
    assert_eq!(class(&like, &json!([])), absent, "it is the Pod's of a longer name");

    assert_eq!(class(&none, &json!(["10.0.0.2"])), Some(ErrorClass::Invalid), "the pool does not know it");
    assert_eq!(class(&json!(null), &json!(null)), Some(ErrorClass::Invalid), "the pool is empty");
    assert_eq!(class(&other, &json!(["10.0.0.1"])), Some(ErrorClass::Refused), "it is there twice");
    let twice =
        json!({ "db-0123abcd": entry("10.0.0.1", "db", -1), "web-0123abcd": entry("10.0.0.1", "web", -1) });
    assert_eq!(class(&twice, &json!([])), Some(ErrorClass::Refused), "two Pods have it");
}

#[test]
fn an_address_is_the_same_however_it_is_spelled() {
    let allocated = json!({ "web-0123abcd": entry("fd00:0:0::1", "web", -1) });
    let pool = pool(&allocated, &json!(["10.0.0.1"]));
    assert!(pool.held("fd00::1".parse().unwrap(), &claim("web")).is_ok());
}

#[test]
fn without_a_pod_the_sandbox_is_the_rest_of_the_allocations_key() {
    let allocated =
        json!({ "web-0123abcd": entry("10.0.0.1", "web", 500), "odd": entry("10.0.0.2", "web", 0) });
    let pool = pool(&allocated, &json!([]));
    let held = |address: &str| pool.held(address.parse().unwrap(), &Claim::default()).unwrap();
    assert_eq!(held("10.0.0.1").sandbox(), Some("0123abcd"));
    assert_eq!(held("10.0.0.2").sandbox(), None);
}

#[test]
fn an_incomplete_or_malformed_pool_is_an_error_and_not_empty() {
    let whole = state(&json!({}), &json!([]));
    assert!(Pool::parse(&whole.to_string()).is_ok());
    for missing in [ALLOCATED, AVAILABLE, VERSION] {
        let mut part = whole.clone();
        part.as_object_mut().unwrap().remove(missing);
        assert!(Pool::parse(&part.to_string()).is_err(), "{missing}");
    }
    let unreadable = [
        state(&json!({ "a": { "ip": "10.0.0.1" } }), &json!([])),
        state(&json!({ "a": entry("nowhere", "web", 0) }), &json!([])),
        state(&json!({}), &json!(["nowhere"])),
        json!([]),
        json!("x"),
        json!(null),
    ];
    for text in unreadable.map(|it| it.to_string()).into_iter().chain([String::new(), "{".to_owned()]) {
        assert!(Pool::parse(&text).is_err(), "{text}");
    }
}

#[test]
fn a_machine_that_returns_changes_nothing_else() {
    let mut web = entry("10.0.0.1", "web", 0);
    web["podNamespace"] = json!("shop");
    let mut before =
        state(&json!({ "web-0123abcd": web, "db-0123abcd": entry("10.0.0.2", "db", 0) }), &json!([]));
    before["further"] = json!({ "a": 1 });
    let pool = Pool::parse(&before.to_string()).unwrap();
    let web = pool.held("10.0.0.1".parse().unwrap(), &claim("web")).unwrap();
    let text = pool.without(web, at(70)).unwrap();
    let mut after = before.clone();
    after["allocatedIPs"].as_object_mut().unwrap().remove("web-0123abcd");
    after["availableIPs"] = json!(["10.0.0.1"]);
    after["version"] = json!(8);
    after["lastUpdated"] = json!(at(70).to_string());
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), after);
    assert!(text.starts_with("{\n  \"allocatedIPs\": {\n    \"db-0123abcd\""), "{text}");

    let nothing = state(&before["allocatedIPs"], &json!(null));
    let pool = Pool::parse(&nothing.to_string()).unwrap();
    let text = pool.without(&pool.allocations[0], at(70)).unwrap();
    assert_eq!(Pool::parse(&text).unwrap().available.len(), 1);
}
