//! The tests' vCenter refuses what govmomi would not send, and hides objects that a user may not see.

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes, header};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use peers::vsphere::{Machine, OTHER_PATH, PATH, USER, Vsphere};
use tempfile::TempDir;

const SEARCH: &str = r#"<_this type="SearchIndex">SearchIndex</_this>"#;
const PASSWORD: &str = "simple";

/// A server and its caller.
struct Caller {
    peer: Vsphere,
    client: Client<HttpConnector, Full<Bytes>>,
    cookie: String,
    _dir: TempDir,
}

impl Caller {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Vsphere::start(dir.path(), &["System.Read"]).await?;
        peer.user("user", PASSWORD).await?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { peer, client, cookie: String::new(), _dir: dir })
    }

    /// The status and the answer, with the session's cookie.
    async fn ask(&self, method: &str, arguments: &str, version: &str) -> Result<(u16, String, String)> {
        let body = format!(
            r#"<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><{method} xmlns="urn:vim25">{arguments}</{method}></Body></Envelope>"#
        );
        let request = Request::post(format!("http://{}/sdk", self.peer.relay().address()))
            .header(header::CONTENT_TYPE, "text/xml")
            .header("User-Agent", "a test")
            .header("SOAPAction", format!("urn:vim25{version}"))
            .header(header::COOKIE, &self.cookie)
            .body(Full::new(Bytes::from(body)))?;
        let answer = self.client.request(request).await?;
        let cookie = answer.headers().get(header::SET_COOKIE).map(|it| it.to_str()).transpose()?;
        let cookie = cookie.unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned(), cookie))
    }

    async fn log_in(&mut self) -> Result<()> {
        let this = r#"<_this type="SessionManager">SessionManager</_this>"#;
        let login = format!("{this}<userName>user</userName><password>{PASSWORD}</password>");
        let (status, answer, cookie) = self.ask("Login", &login, "/6.5").await?;
        ensure!(status == 200 && !cookie.is_empty(), "{answer}");
        self.cookie = cookie;
        Ok(())
    }
}

fn find(uuid: &str) -> String {
    format!("{SEARCH}<uuid>{uuid}</uuid><vmSearch>true</vmSearch><instanceUuid>false</instanceUuid>")
}

#[tokio::test]
async fn requests_unlike_govmomi_or_without_a_login_are_refused() -> Result<()> {
    let mut caller = Caller::start().await?;
    let (status, answer, _) = caller.ask("FindAllByUuid", &find("x"), "/6.5").await?;
    ensure!(status == 500 && answer.contains("NotAuthenticated"), "{answer}");
    caller.log_in().await?;
    for (method, arguments, version, status) in [
        ("FindAllByUuid", find("x"), "/6.5", 200),
        ("FindAllByUuid", find("x"), "", 400),
        ("FindAllByUuid", find("x") + "<unknown/>", "/6.5", 400),
        ("FindAllByUuid", find("x").replace("vmSearch", "vmsearch"), "/6.5", 400),
        ("FindAllByUuid", format!("<uuid>x</uuid>{SEARCH}<vmSearch>true</vmSearch>"), "/6.5", 400),
        ("FindEverything", find("x"), "/6.5", 400),
        ("FindByUuid", find("x"), "/6.5", 500),
    ] {
        let (got, answer, _) = caller.ask(method, &arguments, version).await?;
        assert_eq!(got, status, "{method} {arguments}: {answer}");
    }
    caller.peer.expire().await?;
    let (_, answer, _) = caller.ask("FindAllByUuid", &find("x"), "/6.5").await?;
    ensure!(answer.contains("NotAuthenticated"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn each_server_is_a_vcenter_of_its_own_with_sessions_of_its_own() -> Result<()> {
    let (mut caller, mut other) = (Caller::start().await?, Caller::start().await?);
    ensure!(caller.peer.about().await?.id != other.peer.about().await?.id);
    caller.log_in().await?;
    other.cookie.clone_from(&caller.cookie);
    let (status, answer, _) = other.ask("FindAllByUuid", &find("x"), "/6.5").await?;
    ensure!(status == 500 && answer.contains("NotAuthenticated"), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_user_finds_only_what_that_user_may_read() -> Result<()> {
    let mut caller = Caller::start().await?;
    let id = caller.peer.make(&Machine::named("podvm-web-1a2b3c4d")).await?;
    caller.log_in().await?;
    let finds = async || -> Result<bool> {
        let (status, answer, _) = caller.ask("FindAllByUuid", &find(&id), "/6.5").await?;
        ensure!(status == 200, "{answer}");
        Ok(answer.contains("VirtualMachine"))
    };
    ensure!(!finds().await?, "only {USER} has a permission");
    for (path, propagate, shown) in [(OTHER_PATH, true, false), (PATH, false, false), (PATH, true, true)] {
        caller.peer.grant("user", path, &["System.Read"], propagate).await?;
        assert_eq!(finds().await?, shown, "{path} {propagate}");
    }
    let vm = caller.ask("FindAllByUuid", &find(&id), "/6.5").await?.1;
    let vm = vm.split(r#"type="VirtualMachine">"#).nth(1).and_then(|it| it.split('<').next());
    let this = format!(r#"<_this type="VirtualMachine">{}</_this>"#, vm.context("no VM")?);
    for method in ["PowerOffVM_Task", "Destroy_Task"] {
        let (status, answer, _) = caller.ask(method, &this, "/6.5").await?;
        ensure!(status == 500 && answer.contains("NoPermission"), "{answer}");
    }
    caller.peer.grant("user", PATH, &[], true).await?;
    ensure!(!finds().await?, "the permission is gone");
    Ok(())
}
