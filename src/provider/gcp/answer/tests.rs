use serde_json::json;

use super::*;

const PATH: &str = "projects/peer-pods/zones/europe-west4-a/instances/podvm-web-1a2b3c4d";

/// The class that an answer to a request for the VM has, if the status does not say it.
fn judged(status: u16, code: &str, message: &str) -> Option<ErrorClass> {
    meaning(status, code, message, Some(PATH)).0
}

#[test]
fn only_a_404_that_names_the_very_vm_is_absence() {
    let not_found =
        |resource: &str| judged(404, "notFound", &format!("The resource '{resource}' was not found"));
    assert_eq!(not_found(PATH), Some(ErrorClass::NotFound));
    for other in [
        "projects/peer-pods",
        "projects/peer-pods/zones/europe-west4-a",
        "projects/peer-pods/zones/europe-west4-a/instances/podvm-web-1a2b3c4",
        "projects/elsewhere/zones/europe-west4-a/instances/podvm-web-1a2b3c4d",
        "",
    ] {
        assert_eq!(not_found(other), None, "{other}");
    }
    let message = format!("The resource '{PATH}' was not found");
    assert_eq!(judged(404, "", &message), None, "no answer of Compute Engine");
    for status in [400, 403, 410, 500] {
        assert_eq!(judged(status, "notFound", &message), None, "{status}");
    }
    assert_eq!(meaning(404, "notFound", &message, None).0, None, "a list");
}

#[test]
fn codes_that_say_more_than_their_status_have_a_class() {
    let throttled = Some(ErrorClass::Throttled { retry_after: Some(RETRY_AFTER) });
    for (status, code, expected) in [
        (403, "rateLimitExceeded", throttled),
        (403, "userRateLimitExceeded", throttled),
        (403, "accessNotConfigured", Some(ErrorClass::Invalid)),
        (403, "forbidden", None),
        (403, "insufficientPermissions", None),
        (401, "authError", None),
        (400, "resourceNotReady", Some(ErrorClass::Refused)),
        (400, "resourceInUseByAnotherResource", Some(ErrorClass::Refused)),
        (400, "invalidResourceUsage", Some(ErrorClass::Refused)),
        (412, "conditionNotMet", Some(ErrorClass::Refused)),
        (400, "invalid", None),
        (503, "backendError", None),
    ] {
        assert_eq!(judged(status, code, "no"), expected, "{status} {code}");
    }
}

fn page(answer: &Value) -> Result<Page, serde_json::Error> {
    serde_json::from_value(answer.clone())
}

fn list(items: &Value) -> Value {
    json!({ "kind": "compute#instanceAggregatedList", "items": items })
}

#[test]
fn a_whole_list_is_one_that_says_nothing_else() {
    let empty = json!({ "zones/a": { "warning": { "code": "NO_RESULTS_ON_PAGE" } } });
    assert_eq!(page(&list(&empty)).unwrap().gap(), None);
    let mut warned = list(&empty);
    warned["warning"] = json!({ "code": "NO_RESULTS_ON_PAGE" });
    assert_eq!(page(&warned).unwrap().gap(), None);
}

#[test]
fn a_list_that_lacks_a_zone_proves_nothing() {
    for code in ["UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED", "SOMETHING_NEW"] {
        let scoped = list(&json!({ "zones/a": {}, "zones/b": { "warning": { "code": code } } }));
        assert_eq!(page(&scoped).unwrap().gap(), Some(format!("{code} in zones/b")));
        let mut whole = list(&json!({ "zones/a": {} }));
        whole["warning"] = json!({ "code": code });
        assert_eq!(page(&whole).unwrap().gap(), Some(format!("{code} in all zones")));
    }
    let mut unreachable = list(&json!({}));
    unreachable["unreachables"] = json!(["zones/c"]);
    assert_eq!(page(&unreachable).unwrap().gap(), Some("zones/c is unreachable".to_owned()));
}

#[test]
fn other_json_is_no_empty_list() {
    for other in [json!({}), json!({ "items": {} }), json!([]), json!("ok"), json!(null)] {
        assert!(page(&other).is_err(), "{other}");
    }
    let of_another_kind = json!({ "kind": "compute#instanceList", "items": {} });
    assert!(page(&of_another_kind).unwrap().gap().is_some());
    let warning_without_code = list(&json!({ "zones/a": { "warning": {} } }));
    assert!(page(&warning_without_code).is_err());
}

#[test]
fn a_vm_is_read_with_its_zone_and_the_time_of_its_creation() {
    let vm = json!({
        "name": "podvm-web-1a2b3c4d",
        "status": "RUNNING",
        "creationTimestamp": "2026-11-22T13:02:44.502-08:00",
    });
    let items = list(&json!({ "zones/a": { "instances": [vm] } }));
    let vm = page(&items).unwrap().into_instances("peer-pods").next().unwrap();
    let path = "projects/peer-pods/zones/a/instances/podvm-web-1a2b3c4d";
    assert_eq!((&*vm.path, &*vm.name), (path, "podvm-web-1a2b3c4d"));
    assert!(vm.creation_timestamp.parse::<jiff::Timestamp>().is_ok());
}

#[test]
fn a_status_says_whether_a_vm_runs_as_long_as_it_is_known() {
    let power = |status: &str| Instance { status: status.to_owned(), ..Instance::default() }.power();
    for (statuses, expected) in [
        (&["PROVISIONING", "STAGING", "RUNNING", "REPAIRING"][..], PowerState::Running),
        (&["SUSPENDING", "SUSPENDED", "TERMINATED", "STOPPED"], PowerState::Stopped),
        (&["STOPPING", "DEPROVISIONING", "PENDING_STOP"], PowerState::Leaving),
        (&["", "running", "SOMETHING_NEW"], PowerState::Unknown),
    ] {
        for status in statuses {
            assert_eq!(power(status), expected, "{status}");
        }
    }
}

#[test]
fn a_vm_is_leaving_while_it_is_being_stopped_and_not_once_it_is_stopped() {
    let is_leaving = |status: &str| {
        Instance { status: status.to_owned(), ..Instance::default() }.power() == PowerState::Leaving
    };
    for status in ["STOPPING", "DEPROVISIONING", "PENDING_STOP"] {
        assert!(is_leaving(status), "{status}");
    }
    for status in
        ["PROVISIONING", "STAGING", "RUNNING", "SUSPENDING", "SUSPENDED", "TERMINATED", "STOPPED", ""]
    {
        assert!(!is_leaving(status), "{status}");
    }
}
