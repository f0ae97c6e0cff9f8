//! The tests' Alibaba Cloud refuses what Alibaba Cloud's own libraries would not send, and callers that Alibaba Cloud would refuse.

use anyhow::Result;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use peers::alibaba::{Alibaba, Instance, KEY, OTHER_ACCOUNT, OTHER_REGION, REGION, SECRET};
use ring::{digest, hmac};
use serde_json::Value;
use tempfile::TempDir;

const POLICY: &str = r#"{"Statement":[{"Action":["ecs:DescribeInstances","ecs:DeleteInstance"]}]}"#;

/// A server and its caller.
struct Caller {
    peer: Alibaba,
    client: Client<HttpConnector, Full<Bytes>>,
    _dir: TempDir,
}

/// A request as it is signed, and how it is changed afterwards.
#[derive(Clone)]
struct Asked {
    action: &'static str,
    version: &'static str,
    query: String,
    /// The query that is sent instead of the signed one.
    sent: Option<String>,
    date: String,
    nonce: String,
    secret: &'static str,
    body: &'static str,
    region: &'static str,
}

impl Asked {
    fn new(action: &'static str, query: &str) -> Self {
        Self {
            action,
            version: "2014-05-26",
            query: query.to_owned(),
            sent: None,
            date: now(),
            nonce: format!("{:x}", fastrand::u128(..)),
            secret: SECRET,
            body: "",
            region: REGION,
        }
    }
}

/// The current time in the format of the signature.
fn now() -> String {
    let output = std::process::Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    String::from_utf8_lossy(&output.unwrap_or_else(|error| panic!("{error}")).stdout).trim().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn hash(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

impl Caller {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Alibaba::start(dir.path(), POLICY).await?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { peer, client, _dir: dir })
    }

    /// The status, the code and the body of the answer.
    async fn ask(&self, asked: &Asked) -> Result<(u16, String, Value)> {
        let url = self.peer.endpoint(asked.region);
        let host = url.trim_start_matches("http://").to_owned();
        let headers = [
            ("host", host),
            ("x-acs-action", asked.action.to_owned()),
            ("x-acs-content-sha256", hash("")),
            ("x-acs-date", asked.date.clone()),
            ("x-acs-signature-nonce", asked.nonce.clone()),
            ("x-acs-version", asked.version.to_owned()),
        ];
        let canonical = headers.each_ref().map(|(name, value)| format!("{name}:{value}\n")).concat();
        let signed = headers.each_ref().map(|(name, _)| *name).join(";");
        let request = format!("POST\n/\n{}\n{canonical}\n{signed}\n{}", asked.query, hash(""));
        let key = hmac::Key::new(hmac::HMAC_SHA256, asked.secret.as_bytes());
        let text = format!("ACS3-HMAC-SHA256\n{}", hash(&request));
        let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
        let mut request = Request::post(format!("{url}/?{}", asked.sent.as_ref().unwrap_or(&asked.query)))
            .header(
                "authorization",
                format!("ACS3-HMAC-SHA256 Credential={KEY},SignedHeaders={signed},Signature={signature}"),
            );
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.header("accept", "application/json").header("user-agent", "a test");
        let answer = self.client.request(request.body(Full::new(Bytes::from(asked.body)))?).await?;
        let status = answer.status().as_u16();
        let body: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        Ok((status, body["Code"].as_str().unwrap_or_default().to_owned(), body))
    }
}

#[tokio::test]
async fn requests_unlike_alibabas_library_or_without_rights_are_refused() -> Result<()> {
    let caller = Caller::start().await?;
    let id = caller.peer.make(&Instance::named("podvm-web-1a2b3c4d")).await?;
    let query = format!("InstanceIds=%5B%22{id}%22%5D&RegionId={REGION}");
    let good = Asked::new("DescribeInstances", &query);
    let list = |query: &str| Asked::new("DescribeInstances", query);
    let (status, _, answer) = caller.ask(&good).await?;
    assert_eq!((status, answer["Instances"]["Instance"][0]["InstanceId"].as_str()), (200, Some(&*id)));
    let force = format!("Force=true&InstanceId={id}");
    for (what, asked, expected) in [
        ("a nonce again", good.clone(), (400, "SignatureNonceUsed")),
        ("another key", Asked { secret: "x", ..list(&query) }, (400, "SignatureDoesNotMatch")),
        (
            "a query that is not signed",
            Asked { sent: Some(query.replace(REGION, "us-east-1")), ..list(&query) },
            (400, "SignatureDoesNotMatch"),
        ),
        (
            "another order",
            list(&format!("RegionId={REGION}&InstanceIds=%5B%5D")),
            (400, "SignatureDoesNotMatch"),
        ),
        ("a parameter that there is not", list(&format!("A=b&{query}")), (400, "SignatureDoesNotMatch")),
        ("a body", Asked { body: "a=b", ..list(&query) }, (400, "SignatureDoesNotMatch")),
        (
            "an old date",
            Asked { date: "2020-01-01T00:00:00Z".into(), ..list(&query) },
            (400, "InvalidTimeStamp.Expired"),
        ),
        ("another version", Asked { version: "2016-04-28", ..list(&query) }, (404, "InvalidAction.NotFound")),
        ("no action", Asked::new("DeleteInstances", &force), (404, "InvalidAction.NotFound")),
        (
            "another region's address",
            Asked { region: OTHER_REGION, ..list(&query) },
            (404, "InvalidRegionId.NotFound"),
        ),
        (
            "no right",
            Asked::new("DescribeNetworkInterfaces", &format!("RegionId={REGION}")),
            (403, "Forbidden.RAM"),
        ),
        (
            "no force",
            Asked::new("DeleteInstance", &format!("InstanceId={id}")),
            (403, "IncorrectInstanceStatus"),
        ),
        ("a deletion", Asked::new("DeleteInstance", &force), (200, "")),
        ("a second one", Asked::new("DeleteInstance", &force), (403, "IncorrectInstanceStatus")),
        (
            "no instance",
            Asked::new("DeleteInstance", "Force=true&InstanceId=i-1"),
            (404, "InvalidInstanceId.NotFound"),
        ),
    ] {
        let (status, code, answer) = caller.ask(&asked).await?;
        assert_eq!((status, &*code), expected, "{what}: {answer}");
    }
    // The list still has it once while it is being deleted.
    let (_, _, shown) = caller.ask(&list(&query)).await?;
    assert_eq!(shown["Instances"]["Instance"][0]["Status"], "Stopping");
    let (status, _, shown) = caller.ask(&list(&query)).await?;
    assert_eq!((status, shown["Instances"]["Instance"].as_array().map(Vec::len)), (200, Some(0)));
    Ok(())
}

#[tokio::test]
async fn an_account_sees_its_own_instances_of_a_region_alone_page_by_page() -> Result<()> {
    let caller = Caller::start().await?;
    for name in ["a", "b", "c"] {
        caller.peer.make(&Instance::named(name)).await?;
    }
    caller.peer.make(&Instance { account: OTHER_ACCOUNT, ..Instance::named("d") }).await?;
    caller.peer.make(&Instance { region: OTHER_REGION, ..Instance::named("e") }).await?;
    let (mut names, mut next) = (Vec::new(), String::new());
    loop {
        let token = if next.is_empty() { String::new() } else { format!("NextToken={next}&") };
        let asked = Asked::new("DescribeInstances", &format!("MaxResults=2&{token}RegionId={REGION}"));
        let (_, _, page) = caller.ask(&asked).await?;
        let all = page["Instances"]["Instance"].as_array().cloned().unwrap_or_default();
        names.extend(all.into_iter().filter_map(|it| it["InstanceName"].as_str().map(str::to_owned)));
        next = page["NextToken"].as_str().unwrap_or_default().to_owned();
        if next.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
    Ok(())
}
