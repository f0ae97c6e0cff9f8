//! The tests' IBM Cloud refuses what IBM's own libraries would not send, and callers that IBM Cloud would refuse.

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use peers::ibm::{
    ACCOUNT, Ibm, Instance, KEY, OTHER_ACCOUNT, OTHER_REGION, OTHER_WORKSPACE, Principal, REGION, Server,
    WORKSPACE, ZONE,
};
use serde_json::Value;
use tempfile::TempDir;

const ACTIONS: [&str; 4] = [
    "is.instance.instance.read",
    "is.instance.instance.list",
    "is.instance.instance.delete",
    "global-search-tagging.resource.read",
];

/// A server and its caller.
struct Caller {
    peer: Ibm,
    client: Client<HttpConnector, Full<Bytes>>,
    _dir: TempDir,
}

impl Caller {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Ibm::start(dir.path(), &ACTIONS).await?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { peer, client, _dir: dir })
    }

    /// The status and the answer.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<(u16, Value)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.peer.relay().address()))
            .header("User-Agent", "a test")
            .header("Accept", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.client.request(request.body(Full::new(Bytes::from(body.to_owned())))?).await?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn token(&self, form: &str) -> Result<(u16, Value)> {
        let form_type = [("Content-Type", "application/x-www-form-urlencoded")];
        self.ask(Method::POST, "/identity/token", &form_type, form).await
    }

    /// The header with a token for this API key.
    async fn bearer(&self, key: &str) -> Result<String> {
        let grant = "urn%3Aibm%3Aparams%3Aoauth%3Agrant-type%3Aapikey";
        let form = format!("apikey={key}&grant_type={grant}&response_type=cloud_iam");
        let (status, answer) = self.token(&form).await?;
        let token = answer["access_token"].as_str().with_context(|| format!("{status}: {answer}"))?;
        Ok(format!("Bearer {token}"))
    }
}

fn code(answer: &Value) -> &str {
    answer["errors"][0]["code"].as_str().or(answer["errorCode"].as_str()).unwrap_or_default()
}

#[tokio::test]
async fn requests_unlike_ibms_library_or_without_a_token_are_refused() -> Result<()> {
    let caller = Caller::start().await?;
    let key = KEY.replace('+', "%2B").replace('/', "%2F");
    let bearer = caller.bearer(&key).await?;
    let grant = "urn%3Aibm%3Aparams%3Aoauth%3Agrant-type%3Aapikey";
    for (form, expected) in [
        (format!("apikey=another&grant_type={grant}&response_type=cloud_iam"), "BXNIM0415E"),
        (format!("apikey={key}&grant_type={grant}"), "BXNIM0109E"),
        (format!("grant_type={grant}&apikey={key}&response_type=cloud_iam"), "BXNIM0109E"),
        ("nothing".to_owned(), "BXNIM0109E"),
    ] {
        let (status, answer) = caller.token(&form).await?;
        assert_eq!((status, code(&answer)), (400, expected), "{form}: {answer}");
    }

    let id = caller.peer.make(&Instance::named("podvm-web-1a2b3c4d")).await?;
    let (all, version) = (format!("/vpc/{REGION}/v1/instances"), "generation=2&version=2025-01-07");
    let vm = format!("{all}/{id}");
    for (method, path, authorization, status, expected) in [
        (Method::GET, format!("{vm}?{version}"), "Bearer x", 401, "not_authorized"),
        (Method::GET, format!("{vm}?version=2025-01-07"), &*bearer, 400, "bad_request"),
        (Method::GET, format!("{vm}?version=2025-01-07&generation=2"), &bearer, 400, "bad_request"),
        (Method::GET, format!("{vm}?{version}&x=y"), &bearer, 400, "bad_request"),
        (Method::GET, format!("{vm}?generation=2&version=2999-01-01"), &bearer, 400, "invalid_version_range"),
        (
            Method::GET,
            format!("{all}?generation=2&limit=1000&version=2025-01-07"),
            &bearer,
            400,
            "invalid_value",
        ),
        (Method::GET, format!("{vm}5?{version}"), &bearer, 404, "not_found"),
        (Method::GET, format!("{}?{version}", vm.replace(REGION, OTHER_REGION)), &bearer, 404, "not_found"),
        (Method::GET, format!("{vm}?{version}"), &bearer, 200, ""),
        (Method::DELETE, format!("{vm}?{version}"), &bearer, 204, ""),
        (Method::DELETE, format!("{vm}?{version}"), &bearer, 409, "instance_status_conflict"),
    ] {
        let (got, answer) = caller.ask(method, &path, &[("Authorization", authorization)], "").await?;
        assert_eq!((got, code(&answer)), (status, expected), "{path}: {answer}");
    }
    // The list still has it once while it is being deleted.
    let authorization = [("Authorization", &*bearer)];
    let (_, shown) = caller.ask(Method::GET, &format!("{vm}?{version}"), &authorization, "").await?;
    assert_eq!(shown["status"], "deleting", "{shown}");
    assert_eq!(caller.ask(Method::GET, &format!("{vm}?{version}"), &authorization, "").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn an_account_sees_its_own_instances_alone_page_by_page() -> Result<()> {
    let caller = Caller::start().await?;
    for name in ["a", "b", "c"] {
        caller.peer.make(&Instance::named(name)).await?;
    }
    let other = Instance { account: OTHER_ACCOUNT, ..Instance::named("d") };
    let id = caller.peer.make(&other).await?;
    caller
        .peer
        .principal(&Principal { key: "another", account: ACCOUNT, actions: &[], ..Principal::default() })
        .await?;
    let list = format!("/vpc/{REGION}/v1/instances?generation=2&limit=2");
    let bearer = caller.bearer(&KEY.replace('+', "%2B").replace('/', "%2F")).await?;
    let authorization = [("Authorization", &*bearer)];
    let (_, first) =
        caller.ask(Method::GET, &format!("{list}&version=2025-01-07"), &authorization, "").await?;
    let next = first["next"]["href"].as_str().context("one page")?;
    let start = next.split_once("start=").context("no start")?.1;
    let (_, second) = caller
        .ask(Method::GET, &format!("{list}&start={start}&version=2025-01-07"), &authorization, "")
        .await?;
    let names = |page: &Value| -> Vec<String> {
        let all = page["instances"].as_array().into_iter().flatten();
        all.map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!([names(&first), names(&second)].concat(), ["a", "b", "c"]);
    assert!(second["next"].is_null(), "{second}");
    let path = format!("/vpc/{REGION}/v1/instances/{id}?generation=2&version=2025-01-07");
    assert_eq!(caller.ask(Method::GET, &path, &authorization, "").await?.0, 404);
    // Without rights the list is empty.
    let bearer = caller.bearer("another").await?;
    let authorization = [("Authorization", &*bearer)];
    let (status, none) =
        caller.ask(Method::GET, &format!("{list}&version=2025-01-07"), &authorization, "").await?;
    assert_eq!((status, names(&none).len()), (200, 0));
    Ok(())
}

#[tokio::test]
async fn a_search_shows_the_accounts_instances_with_their_tags_page_by_page() -> Result<()> {
    let caller = Caller::start().await?;
    let tagged = Instance { tags: &["cluster:test"], ..Instance::named("a") };
    for instance in [tagged, Instance { region: OTHER_REGION, ..Instance::named("b") }] {
        caller.peer.make(&instance).await?;
    }
    caller.peer.make(&Instance { account: OTHER_ACCOUNT, ..Instance::named("c") }).await?;
    caller.peer.page_size(1).await?;
    let bearer = caller.bearer(&KEY.replace('+', "%2B").replace('/', "%2F")).await?;
    let search = async |authorization: &str, query: &str, body: &str| {
        let headers = [("Authorization", authorization), ("Content-Type", "application/json")];
        caller.ask(Method::POST, &format!("/v3/resources/search{query}"), &headers, body).await
    };
    // First as IBM's library for Python sends it, then as that for Go does.
    let spaced = r#"{"query": "family:is AND type:instance", "fields": ["crn", "tags"]}"#;
    for (authorization, query, body, status) in [
        ("Bearer x", "?limit=100", spaced, 401),
        (&*bearer, "?limit=100&x=y", spaced, 400),
        (&bearer, "?limit=0", spaced, 400),
        (&bearer, "", r#"{"query":"*","sort":"name"}"#, 400),
        (&bearer, "", r#"{"search_cursor":"another"}"#, 400),
        (&bearer, "", "*", 400),
        (&bearer, "?limit=100", &spaced.replace(": ", ":"), 200),
    ] {
        let (got, answer) = search(authorization, query, body).await?;
        assert_eq!(got, status, "{query} {body}: {answer}");
    }
    let (_, none) = search(&bearer, "", r#"{"query":"family:is AND type:volume"}"#).await?;
    assert_eq!(none["items"].as_array().map(Vec::len), Some(0), "{none}");

    let (_, first) = search(&bearer, "?limit=100", spaced).await?;
    assert_eq!(first["items"][0]["tags"][0], "cluster:test", "{first}");
    assert!(first["items"][0]["name"].is_null(), "{first}");
    let mut page = first;
    for region in [OTHER_REGION, ""] {
        let cursor = page["search_cursor"].as_str().context("no cursor")?;
        let body = serde_json::json!({ "search_cursor": cursor }).to_string();
        page = search(&bearer, "?limit=100", &body).await?.1;
        let crn = page["items"][0]["crn"].as_str().unwrap_or_default();
        assert!(crn.contains(region) && crn.is_empty() == region.is_empty(), "{page}");
    }
    assert!(page["search_cursor"].is_null(), "{page}");
    // Without the right the list is empty.
    caller.peer.principal(&Principal::operator(&ACTIONS[..3])).await?;
    let bearer = caller.bearer(&KEY.replace('+', "%2B").replace('/', "%2F")).await?;
    let (status, none) = search(&bearer, "?limit=100", spaced).await?;
    assert_eq!((status, none["items"].as_array().map(Vec::len)), (200, Some(0)), "{none}");
    Ok(())
}

#[tokio::test]
async fn a_call_about_a_server_names_its_account_zone_and_workspace() -> Result<()> {
    let caller = Caller::start().await?;
    let actions = ["cloud-instance.read", "pvm-instance.read", "pvm-instance.list", "pvm-instance.delete"]
        .map(|action| format!("power-iaas.{action}"));
    let actions: Vec<_> = actions.iter().map(String::as_str).collect();
    caller.peer.principal(&Principal::operator(&actions)).await?;
    let bearer = caller.bearer(&KEY.replace('+', "%2B").replace('/', "%2F")).await?;
    let crn = |zone: &str, account: &str, workspace: &str| {
        format!("crn:v1:bluemix:public:power-iaas:{zone}:a/{account}:{workspace}::")
    };
    let good = crn(ZONE, ACCOUNT, WORKSPACE);
    let all = |workspace: &str| format!("/pcloud/v1/cloud-instances/{workspace}/pvm-instances");
    let id = caller.peer.make_server(&Server::named("podvm-web-1a2b3c4d")).await?;
    let server = format!("{}/{id}", all(WORKSPACE));
    for (method, path, crn, status) in [
        (Method::GET, server.clone(), good.clone(), 200),
        (Method::GET, all(WORKSPACE), good.clone(), 200),
        (Method::GET, format!("{server}?x=y"), good.clone(), 400),
        (Method::GET, server.clone(), crn("us-south", ACCOUNT, WORKSPACE), 400),
        (Method::GET, server.clone(), crn(ZONE, OTHER_ACCOUNT, WORKSPACE), 400),
        (Method::GET, server.clone(), crn(ZONE, ACCOUNT, OTHER_WORKSPACE), 400),
        (Method::GET, format!("{}/{id}", all(OTHER_WORKSPACE)), crn(ZONE, ACCOUNT, OTHER_WORKSPACE), 404),
        (Method::GET, all(&id), crn(ZONE, ACCOUNT, &id), 404),
        (Method::DELETE, format!("{server}?delete_data_volumes=true"), good.clone(), 400),
        (Method::DELETE, server.clone(), good.clone(), 200),
        (Method::DELETE, server.clone(), good.clone(), 409),
        (Method::GET, server.clone(), good.clone(), 200),
        (Method::GET, server.clone(), good.clone(), 404),
    ] {
        let headers = [("Authorization", &*bearer), ("CRN", &*crn)];
        let (got, answer) = caller.ask(method.clone(), &path, &headers, "").await?;
        assert_eq!(got, status, "{method} {path} {crn}: {answer}");
    }
    Ok(())
}
