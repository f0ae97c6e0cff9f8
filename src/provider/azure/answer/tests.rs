use serde_json::json;

use super::*;

fn answer(status: u16, body: &str) -> Reply {
    Reply::of(status.try_into().unwrap(), body)
}

fn resource_manager(status: u16, code: &str) -> Reply {
    answer(status, &json!({ "error": { "code": code, "message": "no" } }).to_string())
}

/// The same, by Compute.
fn compute(status: u16, code: &str, message: &str) -> Reply {
    let mut reply = answer(status, &json!({ "code": code, "message": message }).to_string());
    reply.headers.insert(OF_COMPUTE, "Microsoft.Compute/GetVM;0".parse().unwrap());
    reply
}

#[test]
fn only_resource_not_found_is_absence() {
    assert!(is_absent(&resource_manager(404, "ResourceNotFound")));
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
        assert!(!is_absent(&resource_manager(404, code)), "{code}");
    }
    for status in [200, 204, 400, 401, 403, 409, 410, 500] {
        assert!(!is_absent(&resource_manager(status, "ResourceNotFound")), "{status}");
    }
    for body in
        ["", "ResourceNotFound", "<html>ResourceNotFound", "{}", "[]", r#"{"error":"ResourceNotFound"}"#]
    {
        assert!(!is_absent(&answer(404, body)), "{body}");
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
        assert_eq!(class(&resource_manager(status, code), code, "no"), expected, "{status} {code}");
    }
}

#[test]
fn the_errors_of_all_who_answer_have_a_code() {
    for (reply, says) in [
        (compute(409, "RetryableError", "no"), "the cloud answered 409 RetryableError: no"),
        (resource_manager(409, "ScopeLocked"), "the cloud answered 409 ScopeLocked: no"),
        (answer(409, "<html>"), "the cloud answered 409: it begins with \"<html>\""),
    ] {
        let (_, error) = meaning(&reply);
        assert!(error.message.for_log().ends_with(says), "{says}: {error:?}");
    }
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
    const CODE: &str = "OperationNotAllowed";
    let all =
        "The server rejected the request because too many requests have been received for this subscription.";
    for (reply, message, expected) in [
        (compute(429, CODE, "no"), "too many requests for this VM", Some(ErrorClass::Refused)),
        (compute(429, CODE, "no"), all, None),
        (resource_manager(429, CODE), "Resource Manager's own limit", None),
        (compute(409, CODE, "no"), "", None),
    ] {
        assert_eq!(class(&reply, CODE, message), expected, "{message}");
    }
    for (code, class_of_one) in [
        ("TooManyRequests", ErrorClass::Refused),
        ("OperationNotAllowed", ErrorClass::Refused),
        ("RetryableError", ErrorClass::Transient),
    ] {
        assert_eq!(meaning(&compute(429, code, "no")).1.class, class_of_one, "{code}");
    }
}

#[test]
fn a_group_that_azure_does_not_find_is_corrected_in_the_settings_or_given_up_with_its_vm() {
    for (status, code, setting) in [
        (404, "ResourceGroupNotFound", "AZURE_RESOURCE_GROUP"),
        (404, "SubscriptionNotFound", "AZURE_TENANT_ID"),
        (401, "InvalidAuthenticationTokenTenant", "AZURE_AUTHORITY_HOST"),
    ] {
        let text = |outcome: Result<Reply, Error>| outcome.unwrap_err().message.for_log().to_owned();
        let of_settings = text(accepted_of_settings(resource_manager(status, code)));
        assert!(of_settings.contains(setting), "{of_settings}");
        assert!(!of_settings.contains("abandon") && !of_settings.contains("VM"), "{of_settings}");
        let of_vm = text(accepted(resource_manager(status, code)));
        assert!(of_vm.contains("of the VM") || of_vm.contains("the VM's"), "{of_vm}");
    }
}
