//! What Azure answers, and what it means *(no client)*.
//!
//! | answer | meaning |
//! |---|---|
//! | 404 `ResourceNotFound` for the VM, or for its disk | it does not exist |
//! | 404 `ResourceGroupNotFound` | the group was deleted, with the VM or after the VM was moved |
//! | 404 `SubscriptionNotFound` | the credentials are another tenant's, or the cloud is another one |
//! | 404 `AuthorizationFailed` | a right is missing |
//! | 404 `NotFound` | the VM's region does not know what Resource Manager still lists; it is asked again |
//! | any other 404 | unknown |
//! | 400 or 429 `RetryableError` | another operation locks the resource |
//! | any other 429 with [`OF_COMPUTE`], not [`OF_SUBSCRIPTION`] | that VM was asked for too often: 12 times a minute are allowed |

use std::collections::BTreeMap;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;

use crate::provider::{Error, ErrorClass, Listed, PowerState, Resource, error::release_advice, http::Reply};

/// A header of Compute's answers. Compute counts the requests for each VM, too. A tenant can exhaust those of one VM by many PeerPods that
/// name it, so such a refusal must not delay requests for other VMs, and those PeerPods count as stuck.
const OF_COMPUTE: &str = "x-ms-ratelimit-remaining-resource";

/// What Compute says if there were too many requests for all VMs together.
const OF_SUBSCRIPTION: &str = "received for this subscription";

/// The state of what Azure is deleting.
const DELETING: &str = "Deleting";

/// A page of a list. `value` distinguishes it from any other JSON, which would be an empty list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<T> {
    pub(super) value: Vec<T>,
    pub(super) next_link: Option<String>,
}

/// A resource of any type: what a list says of it, or what it says itself.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ArmResource {
    pub(super) id: String,
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) managed_by: Option<String>,
    tags: Option<BTreeMap<String, Option<String>>>,
    /// Of a list.
    created_time: Option<Timestamp>,
    /// Of a list.
    provisioning_state: Option<String>,
    /// Of the resource itself.
    properties: Option<Properties>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Properties {
    provisioning_state: String,
    time_created: Option<Timestamp>,
}

/// What one of the caller's roles allows.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Permission {
    actions: Vec<String>,
    not_actions: Vec<String>,
}

impl ArmResource {
    /// What is known of it, which is of this kind. It does not have the power state, and no list of a resource group has it. Azure
    /// lists it for a whole subscription, to users with that right, or gives it for one VM at a time.
    pub(super) fn listed(self, kind: Resource) -> Listed {
        let Properties { provisioning_state, time_created } = self.properties.unwrap_or_default();
        let state = self.provisioning_state.unwrap_or(provisioning_state);
        let is_leaving = kind == Resource::Vm && state == DELETING;
        let tags = self.tags.into_iter().flatten().map(|(key, value)| (key, value.unwrap_or_default()));
        Listed {
            created: self.created_time.or(time_created),
            state: if is_leaving { PowerState::Leaving } else { PowerState::Unknown },
            tags: tags.collect(),
            ..Listed::new(kind, self.id.to_lowercase(), self.name)
        }
    }
}

impl Permission {
    /// Whether the role has this right.
    pub(super) fn allows(&self, action: &str) -> bool {
        let action = action.to_lowercase();
        let has = |patterns: &[String]| patterns.iter().any(|it| matches(&it.to_lowercase(), &action));
        has(&self.actions) && !has(&self.not_actions)
    }
}

/// Whether the text matches the pattern, in which a star matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The first place of each part leaves the most for those after it.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(end)
}

/// The reply, or the error that it means. That is never [`ErrorClass::NotFound`]: see [`is_absent`].
pub(super) fn accepted(reply: Reply) -> Result<Reply, Error> {
    reply.success_or(|reply| {
        let (code, error) = meaning(reply);
        advise_on_vm(&code, error)
    })
}

/// The same for an answer about the group of the settings.
pub(super) fn accepted_of_settings(reply: Reply) -> Result<Reply, Error> {
    reply.success_or(|reply| match meaning(reply) {
        (code, error) if code == "ResourceGroupNotFound" => {
            error.advising("correct AZURE_RESOURCE_GROUP, or AZURE_SUBSCRIPTION_ID")
        }
        (code, error) if OF_TENANT.contains(&&*code) => {
            error.advising("correct AZURE_SUBSCRIPTION_ID, AZURE_TENANT_ID or AZURE_AUTHORITY_HOST")
        }
        (_, error) => error,
    })
}

/// The codes for a subscription that the tenant does not have.
const OF_TENANT: [&str; 2] = ["SubscriptionNotFound", "InvalidAuthenticationTokenTenant"];

/// Azure's code, and the error that a reply means.
fn meaning(reply: &Reply) -> (String, Error) {
    // Resource Manager's shape, and Compute's.
    let [code, message] = reply.texts([&["/error/code", "/code"], &["/error/message", "/message"]]);
    let error = reply.error(&code, &message, class(reply, &code, &message));
    (code, error)
}

/// The error with advice for the VM of a PeerPod.
fn advise_on_vm(code: &str, error: Error) -> Error {
    match code {
        "ResourceGroupNotFound" => error.advising(&format!(
            "the resource group of the VM is gone: if the VM is, too, {}",
            release_advice()
        )),
        "NotFound" => error.advising(&format!(
            "Resource Manager may still list a resource that its region does not know: if this lasts and the resource is gone, {}",
            release_advice()
        )),
        _ if OF_TENANT.contains(&code) => error.advising(
            "the credentials are for another tenant than that of the VM's subscription, or the subscription is in another \
             cloud (AZURE_AUTHORITY_HOST)",
        ),
        _ => error,
    }
}

/// The class of an error, where the status alone does not say it.
fn class(reply: &Reply, code: &str, message: &str) -> Option<ErrorClass> {
    let of_one_vm = reply.headers.contains_key(OF_COMPUTE) && !message.contains(OF_SUBSCRIPTION);
    Some(match (reply.status.as_u16(), code) {
        (404, "AuthorizationFailed" | "SubscriptionNotFound") => ErrorClass::Unauthorized,
        (404, "NotFound") | (400 | 429, "RetryableError" | "RetryableErrorDueToAnotherOperation") => {
            ErrorClass::Transient
        }
        (429, _) if of_one_vm => ErrorClass::Refused,
        _ => return None,
    })
}

/// Whether the access token is refused, and a new one may help. The token may also be good, and the subscription that a PeerPod
/// names be another tenant's.
pub(super) fn is_of_token(reply: &Reply) -> bool {
    let [code] = reply.texts([&["/error/code"]]);
    reply.status == StatusCode::UNAUTHORIZED && code != "InvalidAuthenticationTokenTenant"
}

/// Whether Resource Manager says that the resource that it was asked for does not exist.
pub(super) fn is_absent(reply: &Reply) -> bool {
    let [code] = reply.texts([&["/error/code"]]);
    reply.status == StatusCode::NOT_FOUND && code == "ResourceNotFound"
}

#[cfg(test)]
mod tests;
