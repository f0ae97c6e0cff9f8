use serde_json::json;

use super::*;

fn resource_manager(code: &str) -> Vec<u8> {
    json!({ "error": { "code": code, "message": "no" } }).to_string().into_bytes()
}

#[test]
fn only_resource_not_found_is_absence() {
    assert!(is_absence(404, &resource_manager("ResourceNotFound")));
    for code in [
        "ResourceGroupNotFound",
        "SubscriptionNotFound",
        "AuthorizationFailed",
        "InvalidResourceType",
        "InvalidAuthenticationTokenTenant",
        "NotFound",
        "ParentResourceNotFound",
        "resourcenotfound",
        "",
    ] {
        assert!(!is_absence(404, &resource_manager(code)), "{code}");
    }
    for status in [200, 204, 400, 401, 403, 409, 410, 500] {
        assert!(!is_absence(status, &resource_manager("ResourceNotFound")), "{status}");
    }
    for body in
        ["", "ResourceNotFound", "<html>ResourceNotFound", "{}", "[]", r#"{"error":"ResourceNotFound"}"#]
    {
        assert!(!is_absence(404, body.as_bytes()), "{body}");
    }
}

#[test]
fn codes_that_say_more_than_their_status_have_a_class() {
    for (status, code, expected) in [
        (404, "SubscriptionNotFound", Some(ErrorClass::Unauthorized)),
        (404, "AuthorizationFailed", Some(ErrorClass::Unauthorized)),
        (404, "ResourceGroupNotFound", None),
        (404, "ResourceNotFound", None),
        (401, "InvalidAuthenticationTokenTenant", None),
        (403, "AuthorizationFailed", None),
        (400, "RetryableError", Some(ErrorClass::Transient)),
        (429, "RetryableError", Some(ErrorClass::Transient)),
        (429, "RetryableErrorDueToAnotherOperation", Some(ErrorClass::Transient)),
        (404, "NotFound", Some(ErrorClass::Transient)),
        (400, "InvalidApiVersionParameter", None),
        (409, "ScopeLocked", None),
        (409, "OperationNotAllowed", None),
        (429, "TooManyRequests", None),
        (404, "", None),
        (410, "", None),
    ] {
        assert_eq!(class(status, code), expected, "{status} {code}");
    }
}

#[test]
fn the_errors_of_all_who_answer_have_a_code() {
    let compute = json!({ "code": "RetryableError", "message": "no" }).to_string();
    assert_eq!(failure(compute.as_bytes()), ["RetryableError", "no"]);
    assert_eq!(failure(&resource_manager("ScopeLocked")), ["ScopeLocked", "no"]);
    assert_eq!(failure(b"<html>"), ["", ""]);
}

#[test]
fn a_vm_is_read_with_the_time_when_it_was_made_if_azure_says_so() {
    let created = "2026-11-22T23:32:56.808885875+00:00";
    let vm = |properties: serde_json::Value| {
        let vm = json!({ "id": "/X", "name": "a", "type": "vm", "properties": properties });
        serde_json::from_value::<ArmResource>(vm).unwrap().listed(Resource::Vm)
    };
    assert!(vm(json!({ "timeCreated": created })).created.is_some());
    assert_eq!(vm(json!({ "provisioningState": "Deleting" })).state, PowerState::Leaving);
    let bare: ArmResource = serde_json::from_value(json!({ "id": "/x", "name": "a", "type": "vm" })).unwrap();
    let bare = bare.listed(Resource::Vm);
    assert_eq!((bare.created, bare.state), (None, PowerState::Unknown));
}

#[test]
fn a_list_says_when_a_vm_was_made_and_whether_it_is_being_deleted() {
    let listed = |kind: Resource| {
        let listed = json!({
            "id": "/X", "name": "a", "type": "vm", "createdTime": "2026-11-22T23:32:56Z", "provisioningState": "Deleting",
        });
        serde_json::from_value::<ArmResource>(listed).unwrap().listed(kind)
    };
    let vm = listed(Resource::Vm);
    assert_eq!((&*vm.id, vm.created.is_some(), vm.state), ("/x", true, PowerState::Leaving));
    assert_eq!(listed(Resource::Disk).state, PowerState::Unknown, "it is no VM");
}

#[test]
fn a_page_that_is_no_list_is_not_empty() {
    assert!(serde_json::from_value::<Page<ArmResource>>(json!({})).is_err());
    assert!(serde_json::from_value::<Page<ArmResource>>(json!({ "value": [{ "name": "a" }] })).is_err());
    assert!(serde_json::from_value::<Page<ArmResource>>(json!({ "value": [] })).is_ok());
}

#[test]
fn a_role_allows_what_its_patterns_do_and_not_what_it_excepts() {
    let allows = |actions: &[&str], except: &[&str]| {
        let role = json!({ "actions": actions, "notActions": except });
        serde_json::from_value::<Permission>(role).unwrap().allows("Microsoft.Compute/disks/delete")
    };
    for actions in
        ["*", "microsoft.compute/DISKS/delete", "Microsoft.Compute/*", "*/delete", "Microsoft.*/disks/*"]
    {
        assert!(allows(&[actions], &[]), "{actions}");
        assert!(!allows(&["*"], &[actions]), "{actions}");
    }
    for actions in
        ["", "*/read", "Microsoft.Compute/disks", "Microsoft.Compute/disks/delete/action", "*/deletes"]
    {
        assert!(!allows(&[actions], &[]), "{actions}");
    }
    assert!(allows(&["*"], &["*/write"]));
    assert!(allows(&["*compute*/*disks*/*"], &[]));
    assert!(!allows(&["Microsoft.Compute/disks/*/delete"], &[]), "one slash is not two");
    assert!(!allows(&[&format!("{}!", "*".repeat(64))], &[]), "without trying all ways");
}

#[test]
fn compute_refuses_requests_for_one_vm_or_for_all() {
    let all =
        "The server rejected the request because too many requests have been received for this subscription.";
    let compute =
        HeaderMap::from_iter([(OF_COMPUTE.parse().unwrap(), "Microsoft.Compute/GetVM;0".parse().unwrap())]);
    let too_many = StatusCode::TOO_MANY_REQUESTS;
    assert!(is_of_one_vm(too_many, &compute, "too many requests for this VM"));
    assert!(!is_of_one_vm(too_many, &compute, all));
    assert!(!is_of_one_vm(too_many, &HeaderMap::new(), "Resource Manager's own limit"));
    assert!(!is_of_one_vm(StatusCode::CONFLICT, &compute, ""));
    for (code, class_of_one) in [
        ("TooManyRequests", ErrorClass::Refused),
        ("OperationNotAllowed", ErrorClass::Refused),
        ("RetryableError", ErrorClass::Transient),
    ] {
        let body = json!({ "error": { "code": code, "message": "no" } }).to_string();
        let mut reply = Reply::of(too_many, &body);
        reply.headers.clone_from(&compute);
        assert_eq!(meaning(&reply).class, class_of_one, "{code}");
    }
}
