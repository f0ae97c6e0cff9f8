//! Calls to the API server, each with a deadline.

use std::time::Duration;

use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{
        Status,
        response::{StatusCause, reason::NOT_FOUND},
    },
};
use serde::de::DeserializeOwned;

use super::message::Message;
use crate::api::v1alpha1::PeerPod;

/// The client itself retries for minutes where an API server is overloaded; a reconcile does not wait for that.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// It answered with an error, or could not be reached.
    #[error("the API server: {}", told(.0))]
    Failed(#[from] kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer within {DEADLINE:?}")]
    TimedOut,
}

/// What it answered, without all that comes with it.
fn told(problem: &kube::Error) -> String {
    match problem {
        kube::Error::Api(status) if is_unknown_kind(status) => {
            "it does not know this kind of object (404 page not found)".to_owned()
        }
        kube::Error::Api(status) => status.to_string(),
        other => other.to_string(),
    }
}

/// Whether an answer means that the API server serves no such kind. That of an object or a namespace that is absent is a
/// `Status` with a reason, and that of a proxy has another text.
fn is_unknown_kind(status: &Status) -> bool {
    status.code == 404 && status.reason != "NotFound" && status.message == "404 page not found"
}

/// What to do where a watch, a list or a write of `K` failed because its CRD is not installed. `None`: it failed otherwise, or
/// it is no kind of this operator's.
pub(crate) fn missing_crd<K: Resource<DynamicType = ()>>(problem: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = problem else { return None };
    let missing = K::group(&()) == PeerPod::group(&()) && is_unknown_kind(status);
    missing.then(|| format!("the CRD {} is not installed: kubectl apply -f manifests/crd", crd_name::<K>()))
}

/// The name of a kind's CRD.
pub(crate) fn crd_name<K: Resource<DynamicType = ()>>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

impl ApiError {
    /// The text in both versions. What the API server says names objects of other namespaces, and its own address.
    pub(crate) fn message(&self) -> Message {
        let public = match self {
            Self::Failed(kube::Error::Api(status)) => {
                format!("the API server answered with the status {}", status.code)
            }
            Self::Failed(_) => {
                "the operator cannot reach the API server, or cannot read its answer".to_owned()
            }
            Self::TimedOut => self.to_string(),
        };
        Message::new(public, self.to_string())
    }

    /// The HTTP status, where there was an answer.
    pub(crate) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Whether the API server says that the object of this name does not exist. A 404 alone does not: it may be a proxy's, or
    /// that of an API server without the definition.
    pub(crate) fn is_absence_of(&self, name: &str) -> bool {
        self.status().is_some_and(|status| is_absence(status, name))
    }

    /// Whether the API server says that the object of this name does not exist, or is not as the request has it.
    pub(crate) fn is_gone_or_changed(&self, name: &str) -> bool {
        self.is_absence_of(name) || self.code() == Some(409)
    }

    /// See [`missing_crd`].
    #[cfg(feature = "cli")]
    pub(crate) fn missing_crd<K: Resource<DynamicType = ()>>(&self) -> Option<String> {
        match self {
            Self::Failed(problem) => missing_crd::<K>(problem),
            Self::TimedOut => None,
        }
    }

    /// Whether nothing can be made in the namespace because it is being deleted.
    pub(crate) fn is_of_terminating_namespace(&self) -> bool {
        self.causes().iter().any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Whether a JSON patch was refused because one of its tests failed. An object that the schema refuses is answered
    /// by the same code, but with causes.
    pub(crate) fn is_failed_test(&self) -> bool {
        self.code() == Some(422) && self.causes().is_empty()
    }

    /// What the API server says of an object that it takes for invalid.
    pub(crate) fn invalid(&self) -> Option<&str> {
        self.status().filter(|status| status.code == 422).map(|status| status.message.as_str())
    }

    /// Whether this field was refused.
    pub(crate) fn is_of_field(&self, field: &str) -> bool {
        self.causes().iter().any(|cause| cause.field == field)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Failed(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    fn causes(&self) -> &[StatusCause] {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.map(|details| details.causes.as_slice()).unwrap_or_default()
    }
}

/// Whether this answer means that the object of this name does not exist.
pub(crate) fn is_absence(status: &Status, name: &str) -> bool {
    status.reason == NOT_FOUND && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// The object of this name, `None` where it does not exist. `Api::get_opt` takes any 404 for that.
pub(crate) async fn get_opt<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    match bounded(api.get(name)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_absence_of(name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether API servers have objects of this kind: by what they say that they serve, as their 404 to a list is a proxy's, too.
pub(crate) async fn is_served<K: Resource<DynamicType = ()>>(client: &Client) -> kube::Result<bool> {
    let (group, version) = (K::group(&()), K::api_version(&()));
    let groups = client.list_api_groups().await?.groups;
    let group = groups.into_iter().find(|it| it.name == group);
    if !group.is_some_and(|group| group.versions.iter().any(|it| it.group_version == version)) {
        return Ok(false);
    }
    let resources = client.list_api_group_resources(&version).await?.resources;
    Ok(resources.iter().any(|it| it.name == K::plural(&())))
}

/// Waits for a call no longer than the deadline.
pub(crate) async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    tokio::time::timeout(DEADLINE, call).await.map_err(|_| ApiError::TimedOut)?.map_err(ApiError::from)
}

/// How many objects one page of a list brings.
const PAGE: u32 = 100;

/// Takes every object of a list that may be long, page by page: there are never more in memory than those of one.
pub(crate) async fn for_each<K>(
    api: &Api<K>,
    params: &ListParams,
    mut take: impl FnMut(K),
) -> Result<(), ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut params = params.clone().limit(PAGE);
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
pub(crate) mod tests {
    use std::convert::Infallible;

    use hyper::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::v1alpha1::PeerPodConfig;

    fn answer(code: u16, message: &str, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, reason).with_code(code).boxed())
    }

    #[test]
    fn only_a_bare_404_means_that_a_crd_is_not_installed() {
        let bare = || answer(404, "404 page not found", "Failed to parse error data");
        assert_eq!(
            missing_crd::<PeerPodConfig>(&bare()).as_deref(),
            Some(
                "the CRD peerpodconfigs.confidentialcontainers.org is not installed: kubectl apply -f manifests/crd"
            )
        );
        assert!(
            missing_crd::<PeerPod>(&bare())
                .unwrap()
                .starts_with("the CRD peerpods.confidentialcontainers.org ")
        );
        assert!(!ApiError::from(bare()).to_string().contains("Failed to parse"));
        for other in [
            answer(404, "namespaces \"a\" not found", "NotFound"),
            answer(404, "404 page not found", "NotFound"),
            answer(404, "<html>nothing here</html>", "Failed to parse error data"),
            answer(503, "404 page not found", "Failed to parse error data"),
            kube::Error::Service("connection refused".into()),
        ] {
            assert_eq!(missing_crd::<PeerPod>(&other), None, "{other}");
        }
        assert_eq!(
            missing_crd::<k8s_openapi::api::core::v1::Pod>(&bare()),
            None,
            "not a kind of this operator's"
        );
    }

    /// An API server, or what stands before it, that answers a path so.
    pub(crate) fn answering(answer: impl Fn(&str) -> (u16, String) + Clone + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, text) = answer(request.uri().path());
            let mut response = Response::new(Body::from(text.into_bytes()));
            *response.status_mut() = code.try_into().expect("it is a status code");
            async { Ok::<_, Infallible>(response) }
        });
        Client::new(service, "default")
    }

    /// 404s that tell nothing of an object of the name `a`.
    pub(crate) fn no_absence() -> [String; 4] {
        let status = |reason: &str, details: Value| {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404 });
            let mut status = status;
            status["reason"] = json!(reason);
            status["details"] = details;
            status.to_string()
        };
        [
            "404 page not found\n".to_owned(),
            status("NotFound", json!({ "name": "b", "kind": "pods" })),
            status("NotFound", json!({})),
            status("", json!({ "name": "a" })),
        ]
    }

    /// What an API server answers where there is no object of the name `a`.
    pub(crate) fn absence() -> String {
        let details = json!({ "name": "a", "kind": "pods" });
        json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "details": details, "code": 404 }).to_string()
    }

    #[tokio::test]
    async fn only_what_the_api_server_says_of_that_object_is_its_absence() {
        let asked = async |text: String| {
            let api: Api<Pod> = Api::namespaced(answering(move |_| (404, text.clone())), "shop");
            get_opt(&api, "a").await
        };
        assert!(matches!(asked(absence()).await, Ok(None)));
        for text in no_absence() {
            let answer = asked(text.clone()).await;
            assert!(matches!(&answer, Err(error) if error.code() == Some(404)), "{text}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn a_kind_is_served_if_the_api_servers_list_of_what_they_serve_has_it() {
        const GROUP: &str = "confidentialcontainers.org";
        let asked = async |group: &'static str, version: &'static str, plural: &'static str| {
            let client = answering(move |path| {
                let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
                let groups = json!({ "groups": [{ "name": group, "versions": [version] }] });
                let resource = json!({ "name": plural, "singularName": "", "namespaced": true, "kind": "X", "verbs": [] });
                let resources = json!({ "groupVersion": "x", "resources": [resource] });
                match path {
                    "/apis" => (200, groups.to_string()),
                    "/apis/confidentialcontainers.org/v1alpha1" => (200, resources.to_string()),
                    _ => (404, "404 page not found".to_owned()),
                }
            });
            is_served::<PeerPod>(&client).await.unwrap()
        };
        assert!(asked(GROUP, "v1alpha1", "peerpods").await);
        assert!(!asked("example.com", "v1alpha1", "peerpods").await);
        assert!(!asked(GROUP, "v1", "peerpods").await);
        assert!(!asked(GROUP, "v1alpha1", "peerpodconfigs").await);
        let proxy = answering(|_| (404, "404 page not found".to_owned()));
        assert!(is_served::<PeerPod>(&proxy).await.is_err());
    }
}
