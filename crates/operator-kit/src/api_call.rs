//! Calls to the API server, each with a deadline.

use std::{fmt, time::Duration};

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    core::{
        Status,
        response::{StatusCause, reason::NOT_FOUND},
    },
};
use serde::de::DeserializeOwned;

use crate::{
    Message,
    text::{self, cut, non_empty},
};

/// How long [`bounded`] waits for an answer.
///
/// kube's own client retries for minutes if an API server is overloaded. A reconcile does not wait for that. Such a retry also hides why
/// the API server refuses an eviction: the clients of this crate retry the later pages of lists alone, and within this time.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How much of the API server's text about a quota or of a webhook is shown, in bytes.
const LONGEST_SHOWN: usize = 512;

/// kube's reason for an answer that is no `Status`, perhaps a proxy's page, and how much of that is shown, in bytes.
const NO_STATUS: &str = "Failed to parse error data";
const LONGEST_PAGE: usize = 200;

const UNAUTHORIZED: u16 = 401;

/// Why a call to the API server failed.
///
/// It has no source, and its `Debug` is its text: kube's own error may quote what an exec plugin of a kubeconfig printed, such as a token.
/// [`ApiError::cause`] gives that error.
#[derive(thiserror::Error)]
pub enum ApiError {
    /// It answered with an error, or could not be reached.
    #[error("the API server: {}", text(.0))]
    Failed(kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer within {DEADLINE:?}")]
    TimedOut,
    /// It changed a new object, so that the object is of no use.
    #[error("the API server changed the new object: look for a mutating webhook or policy that does so")]
    Altered,
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiError({:?})", self.to_string())
    }
}

/// Its answer, as a short text, or why there is none.
pub(crate) fn text(problem: &kube::Error) -> String {
    match problem {
        kube::Error::Api(status) => refusal(status),
        other => text::causes(other),
    }
}

/// The API server's answer, as a short text.
pub(crate) fn refusal(status: &Status) -> String {
    if is_unknown_kind(status) {
        return "it does not know this kind of object (404 page not found)".to_owned();
    }
    let said = || cut(&status.message.split_whitespace().collect::<Vec<_>>().join(" "), LONGEST_PAGE);
    if status.code == UNAUTHORIZED {
        let said = non_empty(Some(said())).unwrap_or_else(|| "Unauthorized".to_owned());
        return format!("it does not accept the credentials (401 {said}): they may have expired");
    }
    if status.reason == NO_STATUS {
        let said = said();
        let begin = if said.is_empty() { "" } else { ": " };
        return format!("HTTP {}{begin}{said}", status.code);
    }
    status.to_string()
}

/// Whether an answer means that the API server does not serve this kind. The answer about an absent object or namespace is a
/// `Status` with a reason, and that of a proxy has another text.
pub(crate) fn is_unknown_kind(status: &Status) -> bool {
    status.code == 404 && status.reason != "NotFound" && status.message == "404 page not found"
}

impl ApiError {
    /// The text in both versions. The API server's texts name objects of other namespaces, and its own address.
    pub fn message(&self) -> Message {
        let public = match self {
            Self::Failed(kube::Error::Api(status)) => {
                format!("the API server answered with the status {}", status.code)
            }
            Self::Failed(_) => {
                "the operator cannot reach the API server, or cannot read its answer".to_owned()
            }
            Self::TimedOut | Self::Altered => self.to_string(),
        };
        Message::new(public, self.to_string())
    }

    /// The call's own error, if it ended. Show it to no one: see [`ApiError`].
    pub fn cause(&self) -> Option<&kube::Error> {
        match self {
            Self::Failed(problem) => Some(problem),
            Self::TimedOut | Self::Altered => None,
        }
    }

    /// The HTTP status, if there was an answer.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Whether the API server says that the object of this name does not exist. A 404 alone does not say so: it may come from a
    /// proxy, or from an API server without the CRD.
    pub fn is_absence_of(&self, name: &str) -> bool {
        self.status().is_some_and(|status| is_absence(status, name))
    }

    /// Whether the object exists already, or differs from the precondition of the request.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) && !self.is_of_webhook()
    }

    /// Whether nothing can be created in the namespace because it is being deleted.
    pub fn is_of_terminating_namespace(&self) -> bool {
        self.status().is_some_and(is_of_terminating_namespace)
    }

    /// Whether a JSON patch was refused because one of its tests failed. An object that the schema refuses is answered
    /// by the same code, but with causes.
    fn is_failed_test(&self) -> bool {
        self.code() == Some(422) && self.causes().is_empty() && !self.is_of_webhook()
    }

    /// Whether an admission webhook refused the call. The API server passes the webhook's code on, whatever it is.
    fn is_of_webhook(&self) -> bool {
        self.status().is_some_and(|status| status.message.starts_with("admission webhook "))
    }

    /// The API server's text about an object that it rejects as invalid.
    pub fn invalid(&self) -> Option<&str> {
        self.status().filter(|status| status.code == 422).map(|status| status.message.as_str())
    }

    /// Why it failed, for the status of an object in the namespace of the call: the API server's text about a quota, or that of an
    /// admission webhook, which users of the namespace get for their own objects, too. Or else what [`Self::message`] says in a status.
    /// At most 512 bytes.
    pub fn in_namespace(&self) -> String {
        let of_webhook =
            || self.status().filter(|_| self.is_of_webhook()).map(|status| status.message.as_str());
        let shown = self.of_quota().or_else(of_webhook);
        shown.map_or_else(|| self.message().for_status().to_owned(), |text| cut(text, LONGEST_SHOWN))
    }

    /// The API server's text about a quota that refuses the object: it is exceeded, or needs a request or limit that the object lacks.
    fn of_quota(&self) -> Option<&str> {
        let refused = self.status().filter(|status| status.code == 403)?;
        let begins = ["exceeded quota: ", "failed quota: "];
        begins.iter().find_map(|begin| refused.message.find(begin)).map(|at| &refused.message[at..])
    }

    /// Whether the API server refuses this object: it is invalid, an admission webhook or policy denies it, or a quota does. Without
    /// rights, and from an API server that starts, every object is refused: that is another matter.
    pub fn is_refusal_of_object(&self) -> bool {
        self.invalid().is_some() || self.is_of_webhook() || self.of_quota().is_some()
    }

    /// Whether the API server refused the call itself. Any other failure may be an outage, also that the API server took too long
    /// (408) or has too much to do (429).
    pub fn is_refusal(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code) && code != 408 && code != 429)
    }

    /// Whether this field was refused.
    pub fn is_of_field(&self, field: &str) -> bool {
        self.causes().iter().any(|cause| cause.field == field)
    }

    fn status(&self) -> Option<&Status> {
        match self.cause() {
            Some(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    fn causes(&self) -> &[StatusCause] {
        self.status().map(causes).unwrap_or_default()
    }
}

fn causes(status: &Status) -> &[StatusCause] {
    status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default()
}

/// How a write ended.
#[must_use = "an outdated object must be reconciled again"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It took place.
    Done,
    /// The object was gone already, which is a success, too.
    Gone,
    /// The object is no longer as it was read.
    Outdated,
}

impl Written {
    /// How the write to the object of this name ended. A failed test or precondition (409) means that the object changed;
    /// any other refusal is an error.
    pub fn by<T>(name: &str, answer: Result<T, ApiError>) -> Result<Self, ApiError> {
        match answer {
            Ok(_) => Ok(Self::Done),
            Err(error) if error.is_absence_of(name) => Ok(Self::Gone),
            Err(error) if error.is_conflict() || error.is_failed_test() => Ok(Self::Outdated),
            Err(error) => Err(error),
        }
    }
}

/// The answer to a write; `None` if the object of this name does not exist, or differs from the precondition of the request.
pub fn if_unchanged<T>(name: &str, answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
    match answer {
        Err(error) if error.is_absence_of(name) || error.is_conflict() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether this answer means that nothing can be created in the namespace because it is being deleted.
pub(crate) fn is_of_terminating_namespace(status: &Status) -> bool {
    causes(status).iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// Whether this answer means that the object of this name does not exist.
pub fn is_absence(status: &Status, name: &str) -> bool {
    status.reason == NOT_FOUND && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// The object of this name; `None` if it does not exist. `Api::get_opt` takes any 404 for that.
pub async fn get_opt<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    match bounded(api.get(name)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_absence_of(name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes an object, and in the background what it owns, if it is still exactly what was read: not a successor of the same name, and
/// not changed since. Otherwise the answer is a [conflict](ApiError::is_conflict), or [absence](ApiError::is_absence_of).
///
/// It needs the right to `delete` these objects.
pub async fn delete_as_read<K>(api: &Api<K>, object: &impl Resource) -> Result<(), ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    bounded(api.delete(&object.name_any(), &params)).await.map(drop)
}

/// Whether API servers have objects of this kind. It asks for the served resources, because a 404 to a list may come from a
/// proxy. It has no deadline of its own.
pub async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> kube::Result<bool> {
    let (group, version) = (K::group(&()), K::api_version(&()));
    let groups = client.list_api_groups().await?.groups;
    let group = groups.into_iter().find(|it| it.name == group);
    if !group.is_some_and(|group| group.versions.iter().any(|it| it.group_version == version)) {
        return Ok(false);
    }
    let resources = client.list_api_group_resources(&version).await?.resources;
    Ok(resources.iter().any(|it| it.name == K::plural(&())))
}

/// Waits for a call for at most 20 s, then fails with [`ApiError::TimedOut`].
pub async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    tokio::time::timeout(DEADLINE, call).await.map_err(|_| ApiError::TimedOut)?.map_err(ApiError::from)
}

/// The number of objects on one page of a list, unless the parameters have another limit.
const PAGE: u32 = 100;

/// Yields every object of a list that may be long, page by page: 100 objects, or `params.limit`. Each page has 20 s. It never holds
/// more than one page in memory. After an error the earlier pages have been yielded.
pub async fn for_each<K>(api: &Api<K>, params: &ListParams, mut take: impl FnMut(K)) -> Result<(), ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut params = params.clone().limit(params.limit.unwrap_or(PAGE));
    loop {
        let page = bounded(api.list(&params)).await?;
        page.items.into_iter().for_each(&mut take);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
