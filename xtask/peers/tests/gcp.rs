//! The tests' Compute Engine refuses what Google's own types do not know.

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use peers::gcp::{ComputeEngine, Instance, NODE_ACCOUNT, PERMISSIONS, State};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A server and its caller.
struct Caller {
    peer: ComputeEngine,
    client: Client<HttpConnector, Full<Bytes>>,
    token: String,
    _dir: TempDir,
}

impl Caller {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = ComputeEngine::start(dir.path()).await?;
        peer.account(NODE_ACCOUNT, &PERMISSIONS, peer.address()).await?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut caller = Self { peer, client, token: String::new(), _dir: dir };
        let path = "computeMetadata/v1/instance/service-accounts/default/token";
        let (_, answer) = caller.ask(Method::GET, path, "").await?;
        answer["access_token"].as_str().context("no token")?.clone_into(&mut caller.token);
        Ok(caller)
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> Result<(StatusCode, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}/{path}", self.peer.address()))
            .header("User-Agent", "a test")
            .header("Metadata-Flavor", "Google")
            .header("Authorization", format!("Bearer {}", self.token))
            .body(Full::new(Bytes::from(body.to_owned())))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

#[tokio::test]
async fn requests_unknown_to_googles_types_are_refused() -> Result<()> {
    let caller = Caller::start().await?;
    let vm = Instance::running("podvm-web-1a2b3c4d");
    caller.peer.make(&vm).await?;
    let vm = format!("compute/v1/{}", vm.path());
    let list = "compute/v1/projects/peer-pods/aggregated/instances";
    let question = json!({ "permissions": PERMISSIONS }).to_string();
    for (method, path, body, status) in [
        (Method::GET, vm.clone(), "", 200),
        (Method::GET, format!("{list}?includeAllScopes=true"), "", 200),
        (Method::GET, format!("{vm}?veiw=FULL"), "", 400),
        (Method::GET, format!("{vm}/disks"), "", 404),
        (Method::PATCH, vm.clone(), "", 404),
        (Method::DELETE, vm.clone(), "{}", 400),
        (Method::GET, format!("{list}?maxResults=20&filter=name%20%3D%20%22a%22"), "", 200),
        (Method::GET, format!("{list}?maxResults=many"), "", 400),
        (Method::GET, format!("{list}?max_results=20"), "", 400),
        (Method::GET, format!("{list}?filter=name"), "", 400),
        (Method::GET, format!("{list}?pageToken=a"), "", 400),
        (Method::GET, format!("{list}?fields=items/*/instances/nmae"), "", 400),
        (Method::GET, format!("{list}?fields=items/instances"), "", 400),
        (Method::GET, format!("{list}?fields=items/*/instances(name"), "", 400),
        (Method::GET, format!("{list}?fields=kind,"), "", 400),
        (Method::POST, format!("{vm}/testIamPermissions"), &question, 200),
        (Method::POST, format!("{vm}/testIamPermissions"), "{\"permission\":[]}", 400),
        (Method::POST, format!("{vm}/testIamPermissions"), "", 400),
    ] {
        let (answered, text) = caller.ask(method.clone(), &path, body).await?;
        assert_eq!(answered, status, "{method} {path} {body}: {text}");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_has_the_selected_fields_and_no_others() -> Result<()> {
    let caller = Caller::start().await?;
    caller.peer.make(&Instance::running("a")).await?;
    let list = "compute/v1/projects/peer-pods/aggregated/instances";
    for (fields, expected) in [
        ("kind", json!({ "kind": "compute#instanceAggregatedList" })),
        (
            "items/*/instances(name,disks/autoDelete)",
            json!({ "items": {
                "zones/europe-west4-a": { "instances": [{ "name": "a", "disks": [{ "autoDelete": true }] }] },
                "zones/europe-west4-b": {},
                "zones/us-central1-a": {},
            }}),
        ),
        (
            "items/*/warning/code,items/*/instances/labels",
            json!({ "items": {
                "zones/europe-west4-a": { "instances": [{ "labels": { "cluster": "test" } }] },
                "zones/europe-west4-b": { "warning": { "code": "NO_RESULTS_ON_PAGE" } },
                "zones/us-central1-a": { "warning": { "code": "NO_RESULTS_ON_PAGE" } },
            }}),
        ),
    ] {
        let (status, answer) = caller.ask(Method::GET, &format!("{list}?fields={fields}"), "").await?;
        assert_eq!((status, answer), (StatusCode::OK, expected), "{fields}");
    }
    Ok(())
}

#[tokio::test]
async fn a_deletion_is_an_operation_after_which_the_users_disk_is_left() -> Result<()> {
    let caller = Caller::start().await?;
    let vm = Instance { user_disk: true, ..Instance::running("podvm-web-1a2b3c4d") };
    caller.peer.make(&vm).await?;
    let path = format!("compute/v1/{}", vm.path());
    let (_, mut operation) = caller.ask(Method::DELETE, &path, "").await?;
    assert_eq!(operation["status"], "RUNNING");
    assert_eq!(caller.ask(Method::GET, &path, "").await?.1["status"], "STOPPING");
    assert_eq!(caller.ask(Method::DELETE, &path, "").await?.0, 400, "a second time");

    let reads = [&PERMISSIONS[..], &["compute.zoneOperations.get"]].concat();
    caller.peer.account(NODE_ACCOUNT, &reads, caller.peer.address()).await?;
    let zone = path.split("/instances/").next().context("a path without instances")?;
    let name = operation["name"].as_str().context("an operation without name")?;
    let looked_up = format!("{zone}/operations/{name}");
    cluster::wait::eventually("the operation ends", std::time::Duration::from_secs(10), async || {
        operation = caller.ask(Method::GET, &looked_up, "").await?.1;
        anyhow::ensure!(operation["status"] == "DONE", "{operation}");
        Ok(())
    })
    .await?;
    assert_eq!(caller.ask(Method::GET, &path, "").await?.0, 404);
    assert_eq!(caller.peer.state(&vm).await?, State { instance: false, disk: false, user_disk: true });
    Ok(())
}

#[tokio::test]
async fn a_request_without_a_user_agent_is_refused() -> Result<()> {
    let caller = Caller::start().await?;
    let request = Request::get(format!("http://{}/", caller.peer.address()));
    let unnamed = caller.client.request(request.body(Full::default())?).await?;
    assert_eq!(unnamed.status(), StatusCode::FORBIDDEN);
    assert_eq!(caller.ask(Method::GET, "", "").await?.0, StatusCode::NOT_FOUND, "with one");
    Ok(())
}

#[tokio::test]
async fn a_request_with_a_wrong_token_is_refused() -> Result<()> {
    let mut caller = Caller::start().await?;
    let list = "compute/v1/projects/peer-pods/aggregated/instances";
    assert_eq!(caller.ask(Method::GET, list, "").await?.0, 200);
    caller.token.push('x');
    assert_eq!(caller.ask(Method::GET, list, "").await?.0, 401);
    Ok(())
}
