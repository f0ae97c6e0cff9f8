//! What the VPC API answers, and what it means *(no client)*.
//!
//! | answer | meaning |
//! |---|---|
//! | 404 `not_found` | there is no such instance in the region, or the credentials may not see it |
//! | 404 of any other shape | nothing: it is no answer of VPC |
//! | 409 | the instance is in a state in which it is not deleted |

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;

use crate::provider::{Error, ErrorClass, Listed, PowerState, Resource, http::Reply};

/// The codes by which VPC says that it has no such instance.
const NOT_FOUND: [&str; 2] = ["not_found", "instance_not_found"];

/// A VM.
#[derive(Debug, Deserialize)]
pub(super) struct Instance {
    pub(super) id: String,
    pub(super) name: String,
    /// Its name in all of IBM Cloud. Lists alone need it.
    #[serde(default)]
    pub(super) crn: String,
    #[serde(default)]
    pub(super) created_at: Option<Timestamp>,
    status: String,
    #[serde(default)]
    lifecycle_state: String,
    #[serde(default)]
    resource_group: Option<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    id: String,
}

/// A page of the list of all instances of a region.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) instances: Vec<Instance>,
    next: Option<Next>,
}

#[derive(Debug, Deserialize)]
struct Next {
    href: String,
}

#[derive(Default, Deserialize)]
struct Problems {
    #[serde(default)]
    errors: Vec<Problem>,
    #[serde(default)]
    trace: String,
}

#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Instance {
    /// The identifier of its resource group.
    pub(super) fn group(&self) -> Option<&str> {
        self.resource_group.as_ref().map(|group| group.id.as_str())
    }

    /// Whether VPC is deleting it.
    pub(super) fn is_leaving(&self) -> bool {
        self.status == "deleting" || self.lifecycle_state == "deleting"
    }

    /// Whether it runs, as far as its status says.
    pub(super) fn power(&self) -> PowerState {
        match self.status.as_str() {
            _ if self.is_leaving() => PowerState::Leaving,
            "pending" | "starting" | "running" | "restarting" | "resuming" => PowerState::Running,
            "stopping" | "stopped" | "pausing" | "paused" => PowerState::Stopped,
            _ => PowerState::Unknown,
        }
    }

    /// What is known of it, with these tags.
    pub(super) fn listed(self, tags: Vec<(String, String)>) -> Listed {
        let (created, state) = (self.created_at, self.power());
        Listed { created, state, tags, ..Listed::new(Resource::Vm, self.id, self.name) }
    }
}

impl Page {
    /// The parameter for the next page. `Err` if there is a next page but no parameter for it.
    pub(super) fn next(&self) -> Result<Option<String>, &'static str> {
        let Some(Next { href }) = &self.next else { return Ok(None) };
        let query = href.split_once('?').map(|(_, query)| query).unwrap_or_default();
        let start = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "start");
        start.map(|(_, start)| Some(start.into_owned())).ok_or("its next page has no start")
    }
}

/// The reply if it is a success, else what it means.
pub(super) fn accepted(reply: Reply) -> Result<Reply, Error> {
    reply.success_or(|reply| {
        let (code, message) = problem(reply);
        let is_absence = reply.status == StatusCode::NOT_FOUND && NOT_FOUND.contains(&&*code);
        reply.error(&code, &message, is_absence.then_some(ErrorClass::NotFound))
    })
}

/// The code and the message of an answer that is no success.
pub(super) fn problem(reply: &Reply) -> (String, String) {
    let Problems { errors, trace } = serde_json::from_slice(&reply.body).unwrap_or_default();
    let Problem { code, message } = errors.into_iter().next().unwrap_or_default();
    (code, if trace.is_empty() { message } else { format!("{message} (trace {trace})") })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_instance_that_is_being_deleted_says_so_in_either_way() {
        let leaves = |status: &str, lifecycle: Value| {
            let mut instance = json!({ "id": "0717_1", "name": "a", "status": status });
            instance["lifecycle_state"] = lifecycle;
            serde_json::from_value::<Instance>(instance).unwrap().is_leaving()
        };
        assert!(leaves("deleting", json!("stable")) && leaves("running", json!("deleting")));
        assert!(!leaves("failed", json!("failed")) && !leaves("running", json!("")));
    }

    #[test]
    fn a_status_says_whether_an_instance_runs_as_long_as_it_is_known() {
        for (statuses, expected) in [
            (&["pending", "starting", "running", "restarting", "resuming"][..], PowerState::Running),
            (&["stopping", "stopped", "pausing", "paused"], PowerState::Stopped),
            (&["deleting"], PowerState::Leaving),
            (&["failed", "something-new", ""], PowerState::Unknown),
        ] {
            for status in statuses {
                let instance = json!({ "id": "0717_1", "name": "a", "status": status });
                let instance: Instance = serde_json::from_value(instance).unwrap();
                assert_eq!(instance.power(), expected, "{status}");
            }
        }
    }

    #[test]
    fn a_page_says_where_the_next_one_begins() {
        let next = |next: Value| {
            let page: Page = serde_json::from_value(json!({ "instances": [], "next": next })).unwrap();
            page.next()
        };
        assert_eq!(next(Value::Null), Ok(None));
        let href = "https://eu-de.iaas.cloud.ibm.com/v1/instances?limit=50&start=a%2Bb";
        assert_eq!(next(json!({ "href": href })), Ok(Some("a+b".to_owned())));
        assert!(next(json!({ "href": "https://eu-de.iaas.cloud.ibm.com/v1/instances" })).is_err());
        assert!(serde_json::from_value::<Page>(json!({})).is_err(), "any other JSON is no list of nothing");
    }
}
