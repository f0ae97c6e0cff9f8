//! The scripted API server itself.

use std::{collections::VecDeque, io, sync::Arc, thread};

use hyper::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use parking_lot::{Mutex, MutexGuard};
use tower::{BoxError, service_fn};

use super::{
    answer::Kind,
    call::{Arrived, Call},
};

/// An API server that expects calls in this order and checks at its end that all of them came.
#[derive(Debug)]
pub struct ApiServer(Arc<Mutex<Script>>);

#[derive(Debug)]
struct Script {
    calls: VecDeque<Call>,
    /// How many of the calls came.
    came: usize,
    problems: Vec<String>,
}

impl ApiServer {
    /// A server that expects these calls and no others.
    pub fn expecting(calls: impl IntoIterator<Item = Call>) -> Self {
        let calls = calls.into_iter().collect();
        Self(Arc::new(Mutex::new(Script { calls, came: 0, problems: Vec::new() })))
    }

    /// A client of this server, whose default namespace is `default`. To be called within tokio's runtime.
    pub fn client(&self) -> Client {
        let script = Arc::clone(&self.0);
        Client::new(service_fn(move |request| respond(Arc::clone(&script), request)), "default")
    }

    /// The problems: unexpected calls, and expected calls that did not come.
    fn problems(&self) -> Vec<String> {
        let script = lock(&self.0);
        let missing = script.calls.iter().map(|call| format!("missing call: {call}"));
        script.problems.iter().cloned().chain(missing).collect()
    }
}

impl Drop for ApiServer {
    /// Fails the test if a call was unexpected, or is missing.
    fn drop(&mut self) {
        let problems = self.problems();
        // A second panic would end the process and hide the first.
        assert!(
            problems.is_empty() || thread::panicking(),
            "the API server's script:\n{}",
            problems.join("\n")
        );
    }
}

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock()
}

async fn respond(script: Arc<Mutex<Script>>, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let (parts, body) = request.into_parts();
    let arrived =
        Arrived { method: parts.method, uri: parts.uri, body: body.collect_bytes().await?.to_vec() };
    let kind = lock(&script).next(&arrived)?;
    let sent = arrived.body;
    match kind {
        Kind::Response(code, text) => {
            let mut response = Response::new(Body::from(text.into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code)?;
            Ok(response)
        }
        Kind::AsSent => Ok(Response::new(Body::from(sent))),
        Kind::Hang => std::future::pending().await,
        Kind::Dropped => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
    }
}

impl Script {
    /// The answer to a call, if it is the next one. Otherwise the next one is still expected.
    fn next(&mut self, arrived: &Arrived) -> Result<Kind, String> {
        let Some(call) = self.calls.pop_front() else {
            return Err(self.refuse(&format!("unexpected call: {arrived}\n   expected now: none")));
        };
        if let Err(problem) = call.check(arrived) {
            self.calls.push_front(call);
            return Err(self.refuse(&problem));
        }
        self.came += 1;
        Ok(call.answer.0)
    }

    fn refuse(&mut self, problem: &str) -> String {
        let problem = format!("call {}: {problem}", self.came + 1);
        self.problems.push(problem.clone());
        problem
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DeleteParams, ListParams, Patch, PatchParams},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::Answer;

    const A: &str = "/api/v1/namespaces/default/configmaps/a";

    fn config_maps(server: &ApiServer) -> Api<ConfigMap> {
        Api::default_namespaced(server.client())
    }

    /// What the test of this server fails with.
    fn failure(server: ApiServer) -> String {
        let failed = catch_unwind(AssertUnwindSafe(|| drop(server))).unwrap_err();
        failed.downcast_ref::<String>().unwrap().clone()
    }

    #[tokio::test]
    async fn calls_in_order_get_their_answers() {
        let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        let patch = json!([{ "op": "remove", "path": "/data" }]);
        let server = ApiServer::expecting([
            Call::get(A).answer(Answer::object(&map)),
            Call::patch(format!("{A}?force=true&fieldManager=me")).body_with(json!({ "data": { "x": "1" } })),
            Call::patch(A).body(patch.clone()).answer(Answer::conflict("configmaps", "a")),
            Call::delete(A).answer(Answer::not_found("configmaps", "a")),
            Call::get("/api/v1/namespaces/default/configmaps?labelSelector=b")
                .answer(Answer::page_not_found()),
        ]);
        let api = config_maps(&server);
        assert_eq!(api.get("a").await.unwrap(), map);
        let apply = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "x": "1", "y": "2" } });
        api.patch("a", &PatchParams::apply("me").force(), &Patch::Apply(apply)).await.unwrap();
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
        let code = |error: kube::Error| match error {
            kube::Error::Api(status) => (status.code, status.reason),
            other => panic!("{other}"),
        };
        let conflict = api.patch("a", &PatchParams::default(), &patch).await.unwrap_err();
        assert_eq!(code(conflict), (409, "Conflict".to_owned()));
        let gone = api.delete("a", &DeleteParams::default()).await.unwrap_err();
        assert_eq!(code(gone), (404, "NotFound".to_owned()));
        let unknown = api.list(&ListParams::default().labels("b")).await.unwrap_err();
        assert_eq!(code(unknown).0, 404);
    }

    #[tokio::test]
    async fn an_unexpected_call_fails_at_once_and_at_the_end() {
        let server = ApiServer::expecting([Call::get(A), Call::delete(A)]);
        let api = config_maps(&server);
        api.get("a").await.unwrap();
        let at_once = api.get("b").await.unwrap_err().to_string();
        let expected =
            "call 2: unexpected call: GET /api/v1/namespaces/default/configmaps/b\n   expected now: DELETE";
        assert!(at_once.contains(expected), "{at_once}");
        api.delete("a", &DeleteParams::default()).await.unwrap();
        let at_the_end = failure(server);
        assert!(at_the_end.contains(expected) && !at_the_end.contains("missing"), "{at_the_end}");
    }

    #[tokio::test]
    async fn a_body_or_query_that_differs_is_shown() {
        let server =
            ApiServer::expecting([Call::patch(format!("{A}?fieldManager=me")).body(json!({ "data": {} }))]);
        let api = config_maps(&server);
        let patch = Patch::Merge(json!({ "data": { "x": "1" } }));
        for manager in ["you", "me"] {
            let params = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
            api.patch("a", &params, &patch).await.unwrap_err();
        }
        let text = failure(server);
        for part in [
            "unexpected call: PATCH /api/v1/namespaces/default/configmaps/a?&fieldManager=you {\"data\":{\"x\":\"1\"}}",
            "is: {\"data\":{\"x\":\"1\"}}\n    must be: {\"data\":{}}",
            "missing call: PATCH /api/v1/namespaces/default/configmaps/a?fieldManager=me",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }

    #[tokio::test]
    async fn a_call_too_many_or_too_few_fails() {
        let server = ApiServer::expecting([]);
        config_maps(&server).get("a").await.unwrap_err();
        assert!(failure(server).contains("expected now: none"));
        assert!(failure(ApiServer::expecting([Call::get(A)])).contains("missing call: GET /api"));
    }
}
