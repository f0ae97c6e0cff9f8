//! What Compute Engine answers, and what it means *(no client)*.
//!
//! | answer | meaning |
//! |---|---|
//! | 404 `notFound` that names the very VM | it does not exist |
//! | 404 that names the project or the zone, or nothing | the project or the zone is unknown, or the credentials may not see it |
//! | 403 `accessNotConfigured` | the API is off in the project |
//! | 403 `rateLimitExceeded` | too many requests |
//! | a whole list without the VM | it does not exist in the project |
//! | a list with a warning other than `NO_RESULTS_ON_PAGE` | part of the project is missing in it |

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use crate::provider::{Error, ErrorClass, Listed, PowerState, Resource, http::Reply};

/// The least time to leave Compute Engine alone. Its quotas are by the minute.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A VM.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Instance {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) creation_timestamp: String,
    pub(super) labels: BTreeMap<String, String>,
    /// As `projects/PROJECT/zones/ZONE/instances/NAME`.
    #[serde(skip)]
    pub(super) path: String,
}

/// A page of a list of all zones. `kind` distinguishes it from any other JSON, which would be an empty list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    kind: String,
    #[serde(default)]
    items: BTreeMap<String, Scoped>,
    #[serde(default)]
    unreachables: Vec<String>,
    warning: Option<Warning>,
    #[serde(default)]
    pub(super) next_page_token: String,
}

#[derive(Debug, Deserialize)]
struct Scoped {
    #[serde(default)]
    instances: Vec<Instance>,
    warning: Option<Warning>,
}

#[derive(Debug, Deserialize)]
struct Warning {
    code: String,
}

/// What is said of an operation that was begun.
#[derive(Debug, Deserialize)]
pub(super) struct Operation {
    pub(super) error: Option<Value>,
}

impl Instance {
    /// Whether it runs, as far as its status says. Its deletion begins with a stop. One that is being repaired runs again by itself.
    pub(super) fn power(&self) -> PowerState {
        match self.status.as_str() {
            "STOPPING" | "DEPROVISIONING" | "PENDING_STOP" => PowerState::Leaving,
            "PENDING" | "PROVISIONING" | "STAGING" | "RUNNING" | "REPAIRING" => PowerState::Running,
            "SUSPENDING" | "SUSPENDED" | "STOPPED" | "TERMINATED" => PowerState::Stopped,
            _ => PowerState::Unknown,
        }
    }

    /// What is known of it, under this identifier.
    pub(super) fn listed(&self, id: &str) -> Listed {
        Listed {
            created: self.creation_timestamp.parse().ok(),
            state: self.power(),
            tags: self.labels.clone().into_iter().collect(),
            ..Listed::new(Resource::Vm, id, &*self.name)
        }
    }
}

impl Page {
    /// Why this page may lack VMs, if so.
    pub(super) fn gap(&self) -> Option<String> {
        if self.kind != "compute#instanceAggregatedList" {
            return Some(format!("it is a {:?}", self.kind));
        }
        let scoped = self.items.iter().filter_map(|(scope, it)| Some((scope.as_str(), it.warning.as_ref()?)));
        let warnings = self.warning.iter().map(|warning| ("all zones", warning)).chain(scoped);
        let mut gaps = warnings.filter(|(_, warning)| warning.code != "NO_RESULTS_ON_PAGE");
        let gap = gaps.next().map(|(scope, warning)| format!("{} in {scope}", warning.code));
        gap.or_else(|| self.unreachables.first().map(|scope| format!("{scope} is unreachable")))
    }

    /// Its VMs, which are in this project.
    pub(super) fn into_instances(self, project: &str) -> impl Iterator<Item = Instance> {
        self.items.into_iter().flat_map(move |(zone, scoped)| {
            let zone = format!("projects/{project}/{zone}");
            let at = move |vm: Instance| Instance { path: format!("{zone}/instances/{}", vm.name), ..vm };
            scoped.instances.into_iter().map(at)
        })
    }
}

/// The reply if it is a success, else what it means. A reply that says that the VM at `path` does not exist is
/// [`ErrorClass::NotFound`].
pub(super) fn accepted(reply: Reply, path: Option<&str>) -> Result<Reply, Error> {
    reply.success_or(|reply| {
        // Compute Engine's shape, and that of other Google APIs.
        let codes = ["/error/errors/0/reason", "/error/status"];
        let [code, message] = reply.texts([&codes, &["/error/message"]]);
        let (class, advice) = meaning(reply.status.as_u16(), &code, &message, path);
        let error = reply.error(&code, &message, class);
        if advice.is_empty() { error } else { error.advising(advice) }
    })
}

/// The class for a status with a code, and what to do about it. `None`: the status alone decides. Absence requires a message that
/// names the VM at `path`.
fn meaning(status: u16, code: &str, message: &str, path: Option<&str>) -> (Option<ErrorClass>, &'static str) {
    use ErrorClass::{Invalid, NotFound, Refused, Throttled};
    let names = |path: &str| message.contains(&format!("'{path}'"));
    match (status, code) {
        (404, "notFound") if path.is_some_and(names) => (Some(NotFound), ""),
        (404, "notFound") => (None, "the project or the zone is unknown, or the credentials may not see it"),
        (412, _) | (_, "resourceInUseByAnotherResource" | "resourceNotReady") => (Some(Refused), ""),
        (_, "invalidResourceUsage") => (Some(Refused), "the VM may be protected against deletion"),
        (_, "accessNotConfigured") => (Some(Invalid), "enable the Compute Engine API in the project"),
        (_, "rateLimitExceeded" | "userRateLimitExceeded") => {
            (Some(Throttled { retry_after: Some(RETRY_AFTER) }), "")
        }
        _ => (None, ""),
    }
}

#[cfg(test)]
mod tests;
