use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::{
    testing::{Answer, ApiServer, Call, not_of},
    widget::{Widget, WidgetSpec},
};

#[tokio::test]
async fn only_a_not_found_answer_about_that_object_is_absence() {
    let asked = async |answer: &Answer| {
        let call = Call::get("/api/v1/namespaces/shop/pods/a").answer(answer.clone());
        let server = ApiServer::expecting([call]);
        get_opt(&Api::<Pod>::namespaced(server.client(), "shop"), "a").await
    };
    assert!(matches!(asked(&Answer::not_found("pods", "a")).await, Ok(None)));
    for other in not_of("a") {
        let answer = asked(&other).await;
        assert!(matches!(&answer, Err(error) if error.code() == Some(404)), "{other:?}: {answer:?}");
    }
}

#[test]
fn an_api_server_with_too_much_to_do_refuses_nothing() {
    let failed = |code| ApiError::from(kube::Error::Api(Status::failure("", "").with_code(code).boxed()));
    for (code, is_refusal) in
        [(400, true), (403, true), (408, false), (409, true), (422, true), (429, false), (500, false)]
    {
        assert_eq!(failed(code).is_refusal(), is_refusal, "{code}");
    }
    assert!(!ApiError::TimedOut.is_refusal());
}

#[test]
fn an_object_is_refused_for_what_it_says_or_by_a_quota_and_not_for_want_of_rights() {
    let refused = |code, message: &str| {
        let status = Status::failure(message, "").with_code(code);
        ApiError::from(kube::Error::Api(status.boxed())).is_refusal_of_object()
    };
    assert!(refused(422, "Deployment.apps \"a\" is invalid"));
    assert!(refused(403, "deployments.apps \"a\" is forbidden: exceeded quota: b, requested: count=1"));
    assert!(refused(403, "pods \"a\" is forbidden: failed quota: b: must specify limits.cpu for: a"));
    assert!(refused(400, "admission webhook \"a.example.com\" denied the request: no"));
    assert!(!refused(403, "deployments.apps is forbidden: User \"a\" cannot create resource"));
    assert!(!refused(500, "Internal error occurred: failed calling webhook \"a.example.com\""));
    assert!(!ApiError::TimedOut.is_refusal_of_object());
}

#[test]
fn a_write_is_done_outdated_or_needless_and_any_other_answer_is_an_error() {
    let answered_with = |code: u16, reason: &str, name: &str, causes: Value| {
        let details = json!({ "name": name, "causes": causes });
        let status = json!({ "status": "Failure", "code": code, "reason": reason, "details": details });
        let status = serde_json::from_value(status).unwrap();
        Written::by::<()>("a", Err(ApiError::Failed(kube::Error::Api(Box::new(status))))).ok()
    };
    let answered = |code, causes| answered_with(code, "", "a", causes);
    let none = || json!([]);
    assert_eq!(Written::by("a", Ok(())).ok(), Some(Written::Done));
    assert_eq!(answered_with(404, "NotFound", "a", none()), Some(Written::Gone));
    assert_eq!(answered_with(404, "NotFound", "b", none()), None, "of another object");
    assert_eq!(answered(404, none()), None, "a proxy's");
    assert_eq!(answered(409, none()), Some(Written::Outdated));
    assert_eq!(answered(422, none()), Some(Written::Outdated), "a failed test");
    let refused = json!([{ "reason": "FieldValueInvalid", "message": "", "field": "spec" }]);
    assert_eq!(answered(422, refused), None, "the schema refuses it");
    for code in [403, 429, 500] {
        assert_eq!(answered(code, none()), None, "{code}");
    }
    assert_eq!(Written::by::<()>("a", Err(ApiError::TimedOut)).ok(), None);
}

#[tokio::test]
async fn a_kind_is_served_if_the_api_servers_list_of_what_they_serve_has_it() {
    const GROUP: &str = "example.com";
    let asked = async |group: &str, version: &str, plural: &str| {
        let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
        let groups = json!({ "groups": [{ "name": group, "versions": [version] }] });
        let resource =
            json!({ "name": plural, "singularName": "", "namespaced": true, "kind": "X", "verbs": [] });
        let resources = json!({ "groupVersion": "x", "resources": [resource] });
        let mut calls = vec![Call::get("/apis").answer(Answer::object(&groups))];
        if version["groupVersion"] == "example.com/v1" {
            calls.push(Call::get("/apis/example.com/v1").answer(Answer::object(&resources)));
        }
        is_served::<Widget>(&ApiServer::expecting(calls).client()).await.unwrap()
    };
    assert!(asked(GROUP, "v1", "widgets").await);
    assert!(!asked("example.org", "v1", "widgets").await);
    assert!(!asked(GROUP, "v2", "widgets").await);
    assert!(!asked(GROUP, "v1", "gadgets").await);
    let proxy = ApiServer::expecting([Call::get("/apis").answer(Answer::page_not_found())]);
    assert!(is_served::<Widget>(&proxy.client()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_answered_ends_with_the_deadline() {
    let answers = [Answer::hang(), Answer::dropped(), Answer::error(403, "Forbidden", "no")];
    let path = "/api/v1/namespaces/shop/pods/a";
    let server = ApiServer::expecting(answers.map(|answer| Call::get(path).answer(answer)));
    let pods: Api<Pod> = Api::namespaced(server.client(), "shop");
    assert!(matches!(bounded(pods.get("a")).await, Err(ApiError::TimedOut)));
    assert!(matches!(bounded(pods.get("a")).await, Err(error) if error.code().is_none()));
    assert!(matches!(bounded(pods.get("a")).await, Err(error) if error.code() == Some(403)));
}

#[tokio::test(start_paused = true)]
async fn an_object_is_deleted_only_as_it_was_read() {
    let mut widget = Widget::new("a", WidgetSpec::default());
    widget.metadata.uid = Some("u-1".into());
    widget.metadata.resource_version = Some("17".into());
    let sent = json!({
        "preconditions": { "uid": "u-1", "resourceVersion": "17" }, "propagationPolicy": "Background",
    });
    let answers = [
        Answer::object(&widget),
        Answer::conflict("widgets", "a"),
        Answer::not_found("widgets", "a"),
        Answer::hang(),
    ];
    let path = "/apis/example.com/v1/namespaces/shop/widgets/a";
    let calls = answers.map(|answer| Call::delete(path).body(sent.clone()).answer(answer));
    let server = ApiServer::expecting(calls);
    let widgets: Api<Widget> = Api::namespaced(server.client(), "shop");
    let deleted = async || delete_as_read(&widgets, &widget).await;
    assert!(deleted().await.is_ok());
    assert!(deleted().await.is_err_and(|error| error.is_conflict()));
    assert!(deleted().await.is_err_and(|error| error.is_absence_of("a")));
    assert!(matches!(deleted().await, Err(ApiError::TimedOut)));
}

#[tokio::test]
async fn a_long_list_comes_page_by_page() {
    let page = |next: &str, name: &str| {
        let pod = json!({ "metadata": { "name": name } });
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "continue": next }, "items": [pod] });
        Answer::object(&list)
    };
    let server = ApiServer::expecting([
        Call::get("/api/v1/pods?limit=100").answer(page("more", "a")),
        Call::get("/api/v1/pods?limit=100&continue=more").answer(page("", "b")),
    ]);
    let mut names = Vec::new();
    let pods: Api<Pod> = Api::all(server.client());
    for_each(&pods, &ListParams::default(), |pod| names.extend(pod.metadata.name)).await.unwrap();
    assert_eq!(names, ["a", "b"]);
    let server = ApiServer::expecting([Call::get("/api/v1/pods?limit=7").answer(page("", "c"))]);
    let pods: Api<Pod> = Api::all(server.client());
    for_each(&pods, &ListParams::default().limit(7), |pod| names.extend(pod.metadata.name)).await.unwrap();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn an_api_server_that_cannot_be_reached_is_reported_with_the_reason() {
    // Nobody listens at this port.
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let pods: Api<Pod> = Api::default_namespaced(Client::try_from(config).unwrap());
    let problem = bounded(pods.get("web")).await.unwrap_err();
    let text = problem.to_string();
    assert!(text.to_lowercase().contains("connection refused"), "{text}");
    assert_eq!(text.matches("efused").count(), 1, "{text}");
    assert!(!problem.message().for_status().contains("127.0.0.1"), "{problem}");
}

#[test]
fn of_a_proxys_page_only_the_beginning_is_shown() {
    let page = format!("<html>\n  <h1>Bad Gateway</h1>\n{}", "<p>long</p>".repeat(200));
    let status = Status::failure(&page, NO_STATUS).with_code(502);
    let said = ApiError::from(kube::Error::Api(status.boxed())).to_string();
    assert!(said.starts_with("the API server: HTTP 502: <html> <h1>Bad Gateway</h1> <p>"), "{said}");
    assert!(said.len() < 300, "{}", said.len());
}
