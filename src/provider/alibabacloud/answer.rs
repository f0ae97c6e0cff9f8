//! What the services answer, and what it means *(no client)*.

use std::time::Duration;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::provider::{
    Error, ErrorClass, Stage,
    http::{AccessKey, Failure, Fresh, Reply, SignedAnswer, TemporaryKey},
};

/// The least time to leave the services alone. Most of their quotas are by the minute.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An answer to an action.
pub(super) struct Answer {
    reply: Reply,
    json: Value,
}

/// A VM.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Instance {
    #[serde(rename = "InstanceId")]
    pub(super) id: String,
    #[serde(rename = "InstanceName")]
    pub(super) name: String,
    pub(super) status: String,
    #[serde(default)]
    creation_time: String,
    #[serde(default)]
    pub(super) tags: Value,
    #[serde(default)]
    network_interfaces: Value,
    #[serde(default)]
    operation_locks: Value,
}

/// A network interface.
#[derive(Debug, Deserialize)]
pub(super) struct Interface {
    #[serde(rename = "NetworkInterfaceId")]
    pub(super) id: String,
    #[serde(rename = "NetworkInterfaceName", default)]
    pub(super) name: String,
    #[serde(rename = "CreationTime", default)]
    pub(super) creation_time: String,
    #[serde(rename = "Tags", default)]
    pub(super) tags: Value,
}

/// An elastic address.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Address {
    #[serde(rename = "AllocationId")]
    pub(super) id: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    charge_type: String,
    pub(super) status: String,
    #[serde(default)]
    pub(super) allocation_time: String,
    #[serde(default)]
    pub(super) tags: Value,
    /// What it is associated with.
    #[serde(rename = "InstanceId", default)]
    pub(super) user: String,
}

/// An error.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Problem {
    code: String,
    message: String,
    request_id: String,
}

/// A role that was assumed.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Assumed {
    credentials: TemporaryKey,
}

impl SignedAnswer for Answer {
    fn read(_: &str, reply: Reply) -> Result<Self, Failure> {
        let reply = reply.success_or(failure)?;
        Ok(Self { json: reply.json()?, reply })
    }

    /// 403 is for want of a right.
    fn is_refusal(status: StatusCode, failure: &Failure) -> bool {
        failure.error.class == ErrorClass::Unauthorized && status != StatusCode::FORBIDDEN
    }

    fn names_nothing(failure: &Failure) -> bool {
        failure.error.class == ErrorClass::NotFound
    }

    fn account(&self) -> Result<String, Error> {
        let account = self.json["AccountId"].as_str().map(str::to_owned);
        account.ok_or_else(|| self.reply.unreadable("JSON", "it names no account"))
    }

    /// ECS gives a token, VPC counts.
    fn next(&self) -> Option<(&'static str, String)> {
        let page = &self.json;
        let count = |name: &str| page[name].as_u64().unwrap_or_default();
        if let Some(token) = page["NextToken"].as_str().filter(|token| !token.is_empty()) {
            return Some(("NextToken", token.to_owned()));
        }
        let is_counted = page.get("EipAddresses").is_some();
        let is_last = count("PageNumber").saturating_mul(count("PageSize")) >= count("TotalCount");
        (is_counted && !is_last).then(|| ("PageNumber", (count("PageNumber") + 1).to_string()))
    }
}

impl Answer {
    /// The list at this path. An answer without it is half an answer.
    pub(super) fn list<T: DeserializeOwned>(mut self, path: &str) -> Result<Vec<T>, Error> {
        let items = self.json.pointer_mut(path).map(Value::take).unwrap_or_default();
        serde_json::from_value(items).map_err(|problem| self.reply.unreadable("list", &problem.to_string()))
    }
}

impl Instance {
    pub(super) fn created(&self) -> Option<Timestamp> {
        self.creation_time.parse().ok()
    }

    /// ECS has no state of its own for an instance that is being deleted: it is stopped first.
    pub(super) fn stage(&self) -> Stage {
        if self.status == "Stopping" { Stage::Leaving } else { Stage::Present }
    }

    /// Whether it may have an interface that cloud-api-adaptor added.
    pub(super) fn has_further_interfaces(&self) -> bool {
        let interfaces = self.network_interfaces["NetworkInterface"].as_array();
        interfaces.into_iter().flatten().any(|interface| interface["Type"] == "Secondary")
    }

    /// Whether its deletion would delete disks that are to stay.
    pub(super) fn is_locked_for_security(&self) -> bool {
        let locks = self.operation_locks["LockReason"].as_array();
        locks.into_iter().flatten().any(|lock| lock["LockReason"] == "security")
    }
}

impl Address {
    /// Whether cloud-api-adaptor made it: all of its addresses have this description, and none is paid in advance.
    pub(super) fn is_adaptors(&self) -> bool {
        self.description == "Peerpod External Network EIP" && self.charge_type == "PostPaid"
    }
}

/// Tags, which ECS and VPC spell differently.
pub(super) fn tags(tags: &Value) -> Vec<(String, String)> {
    let text = |tag: &Value, names: [&str; 2]| {
        let text = names.into_iter().find_map(|name| tag[name].as_str());
        text.unwrap_or_default().to_owned()
    };
    let tags = tags["Tag"].as_array().into_iter().flatten();
    tags.map(|tag| (text(tag, ["TagKey", "Key"]), text(tag, ["TagValue", "Value"]))).collect()
}

/// The key of the role that was assumed. An error quotes nothing of the answer.
pub(super) fn assumed(reply: Reply) -> Result<Fresh<AccessKey>, Error> {
    let Assumed { credentials } = reply.success_or(failure)?.credential()?;
    Ok(credentials.into())
}

/// What an answer that is no success says.
fn failure(reply: &Reply) -> Failure {
    let Problem { code, message, request_id } = serde_json::from_slice(&reply.body).unwrap_or_default();
    let message = if request_id.is_empty() { message } else { format!("{message} (request {request_id})") };
    let error = reply.error(&code, &message, class(reply.status, &code));
    let is_of_clock = code.starts_with("InvalidTimeStamp");
    let error = if is_of_clock { error.advising("correct the clock of the operator's node") } else { error };
    Failure { code, error }
}

/// The codes of an absence of what was asked for.
const ABSENT: [&str; 3] =
    ["InvalidInstanceId.NotFound", "InvalidEniId.NotFound", "InvalidAllocationId.NotFound"];

/// The classes of all codes that begin so, as the documents have them. The first row counts that has the beginning of a code: states
/// that pass by themselves come before other refusals.
const CLASSES: [(ErrorClass, &str); 4] = [
    (ErrorClass::Throttled { retry_after: Some(RETRY_AFTER) }, "Throttling"),
    (
        ErrorClass::Transient,
        "Incorrect InternalError InvalidBindInstance.NotFound InvalidBindingStatus InvalidOperation.Conflict \
         InvalidOperation.InvalidEcsState InvalidOperation.InvalidEniState InvalidStatus LastTokenProcessing \
         OperationConflict OperationFailed.LastTokenProcessing OperationFailed.SystemBusy SystemBusy TaskConflict",
    ),
    (
        ErrorClass::Refused,
        "ChargeType Dependency Forbidden.ChargeType Forbidden.FinancialLocked InstanceLockedForSecurity \
         InvalidOperation Operation",
    ),
    (
        ErrorClass::Unauthorized,
        "Authentication Forbidden InvalidAccessKey InvalidSecurityToken InvalidTimeStamp Signature",
    ),
];

/// The class of a code. For codes of no class the status decides.
fn class(status: StatusCode, code: &str) -> Option<ErrorClass> {
    if status == StatusCode::NOT_FOUND && ABSENT.contains(&code) {
        return Some(ErrorClass::NotFound);
    }
    let fits = |starts: &str| starts.split_ascii_whitespace().any(|start| code.starts_with(start));
    CLASSES.iter().find(|(_, starts)| fits(starts)).map(|(class, _)| *class)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(fields: &[(&str, Value)]) -> Instance {
        let mut instance = json!({ "InstanceId": "i-1", "InstanceName": "a", "Status": "Running" });
        for (name, value) in fields {
            instance[name] = value.clone();
        }
        serde_json::from_value(instance).unwrap()
    }

    #[test]
    fn an_instance_says_when_it_was_made_and_whether_it_is_locked() {
        let made = instance(&[("CreationTime", json!("2017-12-10T04:04Z"))]).created();
        assert_eq!(made.unwrap().to_string(), "2017-12-10T04:04:00Z");
        assert_eq!(instance(&[("CreationTime", json!("soon"))]).created(), None);
        let locked = |reason: &str| {
            let locks = json!({ "LockReason": [{ "LockReason": reason }] });
            instance(&[("OperationLocks", locks)]).is_locked_for_security()
        };
        assert!(locked("security") && !locked("financial"));
        assert!(!instance(&[]).is_locked_for_security() && !instance(&[]).has_further_interfaces());
    }

    #[test]
    fn tags_of_both_services_are_read() {
        let read = |tag: Value| tags(&json!({ "Tag": [tag] }));
        let expected = [("cluster".to_owned(), "a".to_owned())];
        assert_eq!(read(json!({ "TagKey": "cluster", "TagValue": "a" })), expected);
        assert_eq!(read(json!({ "Key": "cluster", "Value": "a" })), expected);
        assert_eq!(read(json!({ "TagKey": "cluster" })), [("cluster".to_owned(), String::new())]);
        assert!(tags(&Value::Null).is_empty());
    }

    fn read(status: u16, body: &Value) -> Result<Answer, Failure> {
        Answer::read("Describe", Reply::of(status.try_into().unwrap(), &body.to_string()))
    }

    #[test]
    fn a_page_says_where_the_next_one_begins() {
        let next = |page: Value| read(200, &page).ok().unwrap().next();
        let instances = |token: Value| {
            let list = json!({ "Instance": [] });
            next(json!({ "Instances": list, "NextToken": token, "TotalCount": 1000, "PageSize": 1 }))
        };
        assert_eq!([instances(json!("")), instances(Value::Null)], [None, None]);
        assert_eq!(instances(json!("x")), Some(("NextToken", "x".to_owned())));
        let addresses = |number: u32, total: u32| {
            let list = json!({ "EipAddress": [] });
            next(json!({ "EipAddresses": list, "PageNumber": number, "PageSize": 50, "TotalCount": total }))
        };
        assert_eq!([addresses(1, 0), addresses(2, 100)], [None, None]);
        assert_eq!(addresses(2, 101), Some(("PageNumber", "3".to_owned())));
    }

    #[test]
    fn half_an_answer_is_an_error_and_no_empty_list() {
        let ids = |page: Value| {
            let list = read(200, &page).ok().unwrap().list::<Instance>("/Instances/Instance");
            list.map(|all| all.into_iter().map(|it| it.id).collect::<Vec<_>>()).map_err(|error| error.class)
        };
        let instance = json!({ "InstanceId": "i-1", "InstanceName": "a", "Status": "Running" });
        assert_eq!(ids(json!({ "Instances": { "Instance": [instance] } })), Ok(vec!["i-1".to_owned()]));
        assert_eq!(ids(json!({ "Instances": { "Instance": [] } })), Ok(Vec::new()));
        for half in [
            json!({}),
            json!([]),
            json!({ "Instances": {} }),
            json!({ "Instances": { "Instance": null } }),
            json!({ "Instances": { "Instance": [{ "InstanceId": "i-1" }] } }),
        ] {
            assert_eq!(ids(half.clone()), Err(ErrorClass::Transient), "{half}");
        }
    }

    #[test]
    fn only_a_refused_key_is_replaced() {
        for (status, code, is_refused) in [
            (404, "InvalidAccessKeyId.NotFound", true),
            (400, "InvalidSecurityToken.Expired", true),
            (400, "InvalidTimeStamp.Expired", true),
            (403, "Forbidden.RAM", false),
            (404, "InvalidInstanceId.NotFound", false),
        ] {
            let failure = read(status, &json!({ "Code": code })).err().unwrap();
            assert_eq!(Answer::is_refusal(status.try_into().unwrap(), &failure), is_refused, "{code}");
        }
    }

    #[test]
    fn only_a_postpaid_address_with_the_adaptors_description_is_the_adaptors() {
        let address = |description: &str, charge: &str| {
            let address = json!({
                "AllocationId": "eip-1", "Status": "InUse", "Description": description, "ChargeType": charge,
            });
            serde_json::from_value::<Address>(address).unwrap().is_adaptors()
        };
        let adaptors = "Peerpod External Network EIP";
        assert!(address(adaptors, "PostPaid"));
        assert!(!address(adaptors, "PrePaid") && !address(adaptors, "") && !address("", "PostPaid"));
    }

    #[test]
    fn codes_mean_what_the_documents_say() {
        for (status, code, expected) in [
            (404, "InvalidInstanceId.NotFound", Some(ErrorClass::NotFound)),
            (403, "InvalidInstanceId.NotFound", None),
            (404, "InvalidRegionId.NotFound", None),
            (404, "InvalidAccessKeyId.NotFound", Some(ErrorClass::Unauthorized)),
            (403, "IncorrectInstanceStatus.Initializing", Some(ErrorClass::Transient)),
            (400, "InvalidStatus.EniStatusNotSupport", Some(ErrorClass::Transient)),
            (400, "InvalidBindingStatus", Some(ErrorClass::Transient)),
            (400, "SystemBusy", Some(ErrorClass::Transient)),
            (404, "InvalidBindInstance.NotFound", Some(ErrorClass::Transient)),
            (400, "InvalidOperation.InvalidEniState", Some(ErrorClass::Transient)),
            (400, "InvalidOperation.InvalidEcsState", Some(ErrorClass::Transient)),
            (400, "InvalidOperation.Conflict", Some(ErrorClass::Transient)),
            (409, "OperationConflict", Some(ErrorClass::Transient)),
            (400, "OperationFailed.SystemBusy", Some(ErrorClass::Transient)),
            (400, "OperationFailed.LastTokenProcessing", Some(ErrorClass::Transient)),
            (403, "InvalidOperation.DeletionProtection", Some(ErrorClass::Refused)),
            (403, "OperationDenied.InvalidStatus", Some(ErrorClass::Refused)),
            (403, "InstanceLockedForSecurity", Some(ErrorClass::Refused)),
            (400, "Forbidden.FinancialLocked", Some(ErrorClass::Refused)),
            (400, "Forbidden.ChargeTypeIsPrepaid", Some(ErrorClass::Refused)),
            (403, "Forbidden.RAM", Some(ErrorClass::Unauthorized)),
            (400, "Throttling.User", Some(ErrorClass::Throttled { retry_after: Some(RETRY_AFTER) })),
        ] {
            assert_eq!(class(status.try_into().unwrap(), code), expected, "{code}");
        }
    }
}
