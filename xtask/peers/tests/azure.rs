//! The tests' Azure refuses what Microsoft's own client would not send, and callers that Azure would refuse.

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use peers::azure::{Azure, CLIENT, SECRET, TENANT, Vm};
use serde_json::Value;
use tempfile::TempDir;

/// A server and its caller.
struct Caller {
    peer: Azure,
    client: Client<HttpConnector, Full<Bytes>>,
    _dir: TempDir,
}

impl Caller {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Azure::start(dir.path()).await?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { peer, client, _dir: dir })
    }

    /// The status of the answer, and its code or else its body.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        header: (&str, &str),
        body: &str,
    ) -> Result<(u16, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.peer.url()))
            .header("User-Agent", "a test")
            .header(header.0, header.1)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(body.to_owned())))?;
        let answer = self.client.request(request).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        Ok((status, if body["error"].is_object() { body["error"]["code"].clone() } else { body }))
    }

    /// Asks the endpoint for tokens with this form. `URL` in it is replaced by the server's URL.
    async fn token(&self, form: &str) -> Result<(u16, Value)> {
        let form = form.replace("URL", &self.peer.url());
        self.ask(Method::POST, &format!("/{TENANT}/oauth2/v2.0/token"), ("Accept", "*/*"), &form).await
    }
}

#[tokio::test]
async fn requests_unlike_microsofts_client_or_without_a_token_are_refused() -> Result<()> {
    let caller = Caller::start().await?;
    let secret = SECRET.replace(' ', "+");
    let form = |scope: &str| {
        format!(
            "grant_type=client_credentials&client_id={CLIENT}&client_secret={secret}&scope={scope}/.default"
        )
    };
    let mut tokens = Vec::new();
    for scope in ["URL", "https://another.example"] {
        let (status, answer) = caller.token(&form(scope)).await?;
        assert_eq!(status, 200, "{answer}");
        tokens.push(format!("Bearer {}", answer["access_token"].as_str().context("no token")?));
    }
    for (form, status) in [
        (form("URL").replace(&secret, "another"), 401),
        (form("URL").replace(CLIENT, "another"), 400),
        (form("URL").replace("/.default", ""), 400),
        (form("URL").replace("client_credentials", "password"), 400),
    ] {
        assert_eq!(caller.token(&form).await?.0, status, "{form}");
    }

    let vm = caller.peer.make(&Vm::named("podvm-web-1a2b3c4d")).await?;
    let (good, version) = (("Authorization", &*tokens[0]), "api-version=2025-04-01");
    for (method, path, header, status, code) in [
        (Method::GET, format!("{vm}?{version}"), ("Accept", "*/*"), 401, "AuthenticationFailed"),
        (
            Method::GET,
            format!("{vm}?{version}"),
            ("Authorization", "Bearer x"),
            401,
            "InvalidAuthenticationToken",
        ),
        (
            Method::GET,
            format!("{vm}?{version}"),
            ("Authorization", &*tokens[1]),
            401,
            "InvalidAuthenticationTokenAudience",
        ),
        (Method::GET, vm.clone(), good, 400, "MissingApiVersionParameter"),
        (Method::GET, format!("{vm}?api-version=2015-01-01"), good, 400, "InvalidApiVersionParameter"),
        (Method::GET, format!("{vm}?{version}&expnad=x"), good, 400, "InvalidQueryParameter"),
        (Method::PUT, format!("{vm}?{version}"), good, 404, "InvalidResourceType"),
        (Method::GET, format!("{vm}s/x/y?{version}"), good, 404, "InvalidResourceType"),
        (Method::GET, format!("{vm}5?{version}"), good, 404, "ResourceNotFound"),
    ] {
        assert_eq!(caller.ask(method, &path, header, "").await?, (status, code.into()), "{path}");
    }
    let (status, machine) =
        caller.ask(Method::GET, &format!("{}?{version}", vm.to_lowercase()), good, "").await?;
    assert_eq!((status, &machine["id"]), (200, &vm.clone().into()), "identifiers have no case");
    assert_eq!(caller.ask(Method::DELETE, &format!("{vm}?{version}"), good, "").await?.0, 202);
    Ok(())
}
