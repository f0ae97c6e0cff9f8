//! Compute Engine: answers that never count as absence, refusals, and the operator's credentials.

use std::{fs, net::SocketAddr};

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Listed, PowerState, Provider, Stage,
    gcp::{CLOUD, ROLE},
};
use peers::{
    Does,
    gcp::{Behavior, ComputeEngine, Instance, NODE_ACCOUNT, OTHER_PROJECT, OTHER_ZONE, PERMISSIONS, PROJECT},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{Settings, vm_name};

use super::{
    check::{check, findings, outcomes},
    is_doubt, own,
};
use crate::support::run;

const ACCOUNT: &str = "operator@peer-pods.iam.gserviceaccount.com";

/// A Compute Engine behind a relay, and a service account there.
struct Gcp {
    dir: TempDir,
    peer: ComputeEngine,
    key: String,
}

impl Gcp {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = ComputeEngine::start(dir.path()).await?;
        let key = peer.account(ACCOUNT, &PERMISSIONS, peer.address()).await?;
        Ok(Self { dir, peer, key })
    }

    fn settings(&self) -> Settings {
        Settings::gcp(self.peer.address(), Some(self.key.clone()))
    }

    /// A new provider without any cached state.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    /// The requests to the API that came so far.
    fn requests(&self) -> Vec<String> {
        let seen = self.peer.relay().seen().into_iter().filter(|seen| seen.path.starts_with("/compute/"));
        seen.map(|seen| seen.method).collect()
    }
}

#[test]
fn a_deletion_takes_three_requests_by_name_and_by_path() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let (name, other) = (vm_name("web"), vm_name("web"));
        let elsewhere = Instance { project: OTHER_PROJECT, zone: OTHER_ZONE, ..Instance::running(&other) };
        for (instance, id) in [(Instance::running(&name), name.clone()), (elsewhere, elsewhere.path())] {
            gcp.peer.make(&instance).await?;
            let (provider, before) = (gcp.open()?, gcp.requests().len());
            let accepted = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
            ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
            gcp.peer.remove(&instance).await?;
            let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
            ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
            assert_eq!(gcp.requests()[before..], ["GET", "DELETE", "GET"]);
        }
        // Each provider asks for one token.
        let tokens = gcp.peer.relay().seen().iter().filter(|seen| seen.path == "/token").count();
        assert_eq!(tokens, 2);
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        let far = Instance { zone: OTHER_ZONE, ..Instance::running(&name) };
        gcp.peer.make(&far).await?;
        // The pages have a VM before it and a VM after it.
        for name in ["aaa", "zzz"] {
            gcp.peer.make(&Instance::running(name)).await?;
        }
        let doubted = async |what: &str, id: &str, class: ErrorClass| -> Result<()> {
            is_doubt(what, gcp.describe(id).await?, class)
        };

        // The settings do not name its zone, and it is not on the first page.
        gcp.peer.behave(&Behavior { page_size: Some(1), ..Behavior::default() }).await?;
        assert_eq!(gcp.describe(&name).await?, Ok(Stage::Present));
        let busy = Does::Answer { status: 503, headers: Vec::new(), body: String::new() };
        gcp.peer.relay().rule(|seen| seen.path.contains("pageToken"), busy);
        doubted("a list that is cut off", &name, ErrorClass::Transient).await?;
        gcp.peer.relay().forget_rules();
        gcp.peer.relay().rule(|seen| seen.path.contains("pageToken"), Does::CutOff);
        doubted("half a page", &name, ErrorClass::Transient).await?;
        gcp.peer.relay().forget_rules();

        gcp.peer.behave(&Behavior { unreachable: Some(OTHER_ZONE), ..Behavior::default() }).await?;
        doubted("a zone that does not answer", &name, ErrorClass::Transient).await?;
        for warning in ["LIST_OVERHEAD_QUOTA_EXCEED", "PARTIAL_SUCCESS"] {
            let hidden = Behavior { hidden: Some(&name), warning: Some(warning), ..Behavior::default() };
            gcp.peer.behave(&hidden).await?;
            doubted(warning, &name, ErrorClass::Transient).await?;
        }
        gcp.peer.behave(&Behavior { disabled: Some(PROJECT), ..Behavior::default() }).await?;
        doubted("the API is off", &name, ErrorClass::Invalid).await?;
        doubted("the API is off", &far.path(), ErrorClass::Invalid).await?;
        gcp.peer.behave(&Behavior::default()).await?;

        for path in [
            format!("projects/nobodys-project/zones/{OTHER_ZONE}/instances/{name}"),
            format!("projects/{PROJECT}/zones/nowhere-1-a/instances/{name}"),
        ] {
            doubted("an unknown project or zone", &path, ErrorClass::Invalid).await?;
        }
        for (status, body) in [(200, "{}"), (200, "<html>"), (200, "[]")] {
            gcp.peer.relay().rule(
                |seen| seen.path.contains("/aggregated/"),
                Does::Answer { status, headers: Vec::new(), body: body.to_owned() },
            );
            doubted("a proxy's answer", &name, ErrorClass::Transient).await?;
            gcp.peer.relay().forget_rules();
        }
        let missing = Does::Answer { status: 404, headers: Vec::new(), body: "<html>not found".to_owned() };
        gcp.peer.relay().rule(|seen| seen.path.contains("/compute/"), missing);
        doubted("a proxy's 404", &name, ErrorClass::Invalid).await?;
        doubted("a proxy's 404", &far.path(), ErrorClass::Invalid).await?;
        gcp.peer.relay().forget_rules();

        // An account without rights.
        gcp.peer.account(ACCOUNT, &[], gcp.peer.address()).await?;
        doubted("no rights", &name, ErrorClass::Unauthorized).await?;
        doubted("no rights", &far.path(), ErrorClass::Unauthorized).await?;
        gcp.peer.relay().rule(
            |seen| seen.path == "/token",
            Does::Answer {
                status: 400,
                headers: Vec::new(),
                body: r#"{"error":"invalid_grant"}"#.to_owned(),
            },
        );
        doubted("a key that was revoked", &name, ErrorClass::Unauthorized).await?;
        ensure!(gcp.peer.state(&far).await?.instance, "the VM is gone");
        Ok(())
    })
}

#[test]
fn a_list_asks_for_what_it_uses_and_fails_if_it_lacks_a_zone() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        for name in ["node-1", &name] {
            gcp.peer.make(&Instance::running(name)).await?;
        }
        let list = async || -> Result<Result<Vec<Listed>, Error>> {
            let mut listed = Vec::new();
            Ok(gcp.open()?.list(&mut |page| listed.extend(page)).await.map(|()| listed))
        };
        gcp.peer.behave(&Behavior { page_size: Some(1), ..Behavior::default() }).await?;
        let listed = list().await?.context("the list fails")?;
        let [vm] = &listed[..] else { anyhow::bail!("{listed:?}") };
        let tags = [("cluster".to_owned(), "test".to_owned())];
        assert_eq!((&vm.id, vm.state, &vm.tags[..]), (&name, PowerState::Running, &tags[..]));
        ensure!(vm.created.is_some(), "{vm:?}");
        let whole = Behavior::default();
        for (what, lacks) in [
            ("a zone that does not answer", Behavior { unreachable: Some(OTHER_ZONE), ..whole.clone() }),
            ("a zone that is left out", Behavior { skipped: Some(OTHER_ZONE), ..whole.clone() }),
            ("a warning", Behavior { warning: Some("PARTIAL_SUCCESS"), ..whole }),
        ] {
            gcp.peer.behave(&lacks).await?;
            let listed = list().await?;
            ensure!(
                listed.as_ref().is_err_and(|error| error.class == ErrorClass::Transient),
                "{what}: {listed:?}"
            );
        }
        let lists = gcp.peer.relay().seen().into_iter().filter(|seen| seen.path.contains("/aggregated/"));
        ensure!(lists.map(|seen| seen.path).all(|path| path.contains("maxResults=250&fields=")));
        // What proves absence is whole.
        gcp.peer.relay().rule(|seen| seen.path.contains("fields="), Does::CutOff);
        gcp.peer.behave(&Behavior::default()).await?;
        assert_eq!(
            gcp.describe("podvm-none-1a2b3c4d").await?.map_err(|it| it.class),
            Err(ErrorClass::NotFound)
        );
        Ok(())
    })
}

#[test]
fn a_name_that_two_zones_have_is_refused() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        gcp.peer.make(&Instance::running(&name)).await?;
        gcp.peer.make(&Instance { zone: OTHER_ZONE, ..Instance::running(&name) }).await?;
        let refused = gcp.describe(&name).await?.err().context("it is described")?;
        assert_eq!(refused.class, ErrorClass::Refused);
        ensure!(!refused.to_string().contains(&name), "{refused}");
        Ok(())
    })
}

#[test]
fn a_vm_on_two_pages_of_a_list_is_one_vm() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        let page = |zone: &str, next: &str| {
            let vm = json!({ "name": name, "status": "RUNNING" });
            let items = json!({ zone: { "instances": [vm] } });
            let page =
                json!({ "kind": "compute#instanceAggregatedList", "items": items, "nextPageToken": next });
            Does::Answer { status: 200, headers: Vec::new(), body: page.to_string() }
        };
        for (zone, expected) in [("zones/a", Ok(Stage::Present)), ("zones/b", Err(ErrorClass::Refused))] {
            gcp.peer.relay().forget_rules();
            gcp.peer.relay().rule(|seen| seen.path.contains("pageToken=2"), page(zone, ""));
            gcp.peer.relay().rule(|seen| seen.path.contains("/aggregated/"), page("zones/a", "2"));
            assert_eq!(gcp.describe(&name).await?.map_err(|error| error.class), expected, "{zone}");
        }
        Ok(())
    })
}

#[test]
fn a_deletion_never_affects_a_later_vm_of_the_same_name() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        let described = Instance::running(&name);
        gcp.peer.make(&described).await?;
        let provider = gcp.open()?;
        let own = own(&*provider, &CLOUD, &name, "web").await?;
        gcp.peer.remove(&described).await?;
        let other = Instance { zone: OTHER_ZONE, ..described };
        gcp.peer.make(&other).await?;
        let gone = provider.delete(&own).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        ensure!(gcp.peer.state(&other).await?.instance, "the other one is gone");
        Ok(())
    })
}

#[test]
fn a_protected_vm_stays_and_the_refusal_gives_the_reason() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        let name = vm_name("web");
        let instance = Instance { protected: true, ..Instance::running(&name) };
        gcp.peer.make(&instance).await?;
        let provider = gcp.open()?;
        let refused = provider.delete(&own(&*provider, &CLOUD, &name, "web").await?).await;
        let refused = refused.err().context("it was deleted")?;
        ensure!(
            refused.class == ErrorClass::Refused && refused.to_string().contains("protected"),
            "{refused}"
        );
        ensure!(gcp.peer.state(&instance).await?.instance, "it is gone");
        Ok(())
    })
}

#[test]
fn the_documented_role_is_what_these_tests_grant() -> Result<()> {
    let granted: Vec<_> = ROLE.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    assert_eq!(granted, PERMISSIONS);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/providers/gcp.md"))?;
    ensure!(
        page.contains(ROLE),
        "docs/src/providers/gcp.md has another role than src/provider/gcp/role.yaml"
    );
    Ok(())
}

#[test]
fn check_names_the_one_permission_that_is_missing() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        gcp.peer.make(&Instance::running("node-1")).await?;
        let (output, cloud) = check(gcp.dir.path(), &gcp.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&cloud) == ["works"; 3], "{cloud}");
        for missing in PERMISSIONS {
            let rest: Vec<_> = PERMISSIONS.into_iter().filter(|it| *it != missing).collect();
            gcp.peer.account(ACCOUNT, &rest, gcp.peer.address()).await?;
            let (output, cloud) = check(gcp.dir.path(), &gcp.settings(), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {cloud}");
            let failed: Vec<_> =
                findings(&cloud).into_iter().filter(|(outcome, _)| outcome == "fails").collect();
            let [(_, text)] = &failed[..] else { anyhow::bail!("{missing}: {cloud}") };
            // Compute Engine's own refusal names the missing right.
            ensure!(text.contains(missing), "{missing}: {text}");
        }
        ensure!(!gcp.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}

#[test]
fn credentials_come_from_the_document_or_the_machine() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        gcp.peer.make(&Instance::running("node-1")).await?;
        gcp.peer.account(NODE_ACCOUNT, &PERMISSIONS, gcp.peer.address()).await?;
        let here = gcp.peer.address();
        let none = Settings::gcp(here, None);
        let works = async |what: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, cloud) = check(gcp.dir.path(), settings, environment).await?;
            ensure!(outcomes(&cloud) == ["works"; 3], "{what}: {cloud}");
            Ok(())
        };
        let file = |name: &str, text: &str| -> Result<String> {
            let path = gcp.dir.path().join(name);
            fs::write(&path, text)?;
            Ok(path.display().to_string())
        };

        works("a key in the Secret", &gcp.settings(), &[]).await?;
        let key = file("key.json", &gcp.key)?;
        works("a key in a file", &none, &[("GOOGLE_APPLICATION_CREDENTIALS", &key)]).await?;
        works("the machine", &none, &[("GCE_METADATA_HOST", &here.to_string())]).await?;

        let audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k";
        let token = gcp.peer.pool(audience, "system:serviceaccount:ns:operator").await?;
        let plain = file("token", &format!("{token}\n"))?;
        let in_json = file("token.json", &json!({ "id": token }).to_string())?;
        let by_field = json!({ "type": "json", "subject_token_field_name": "id" });
        for (path, format) in [(plain, Value::Null), (in_json, by_field)] {
            let mut document = federation(here, audience, &path);
            if !format.is_null() {
                document["credential_source"]["format"] = format;
            }
            let settings = Settings::gcp(here, Some(document.to_string()));
            works("a service account that the Pod's identity impersonates", &settings, &[]).await?;
            document["service_account_impersonation_url"] = Value::Null;
            gcp.peer.account("principal/system:serviceaccount:ns:operator", &PERMISSIONS, here).await?;
            let document = file("federation.json", &document.to_string())?;
            works("the Pod's identity", &none, &[("GOOGLE_APPLICATION_CREDENTIALS", &document)]).await?;
        }
        Ok(())
    })
}

#[test]
fn no_access_token_is_quoted_from_an_answer_that_cannot_be_read() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        for body in
            [r#"{"access_token":"ya29.secret"}"#, r#"["ya29.secret"]"#, r#"{"access_token":"ya29.secret""#]
        {
            gcp.peer.relay().forget_rules();
            let answer = Does::Answer { status: 200, headers: Vec::new(), body: body.to_owned() };
            gcp.peer.relay().rule(|seen| seen.path == "/token", answer);
            let error = gcp.describe("podvm-web-1a2b3c4d").await?.err().context("it is described")?;
            ensure!(error.class == ErrorClass::Transient, "{error:?}");
            ensure!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        Ok(())
    })
}

/// A configuration as `gcloud iam workload-identity-pools create-cred-config` writes it.
fn federation(here: SocketAddr, audience: &str, token: &str) -> Value {
    json!({
        "type": "external_account",
        "audience": audience,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": format!("http://{here}/v1/token"),
        "service_account_impersonation_url":
            format!("http://{here}/v1/projects/-/serviceAccounts/{ACCOUNT}:generateAccessToken"),
        "credential_source": { "file": token },
    })
}

#[test]
fn refused_credentials_are_reported_and_not_shown() -> Result<()> {
    run(async {
        let gcp = Gcp::start().await?;
        // The key of another account.
        let mut document: Value = serde_json::from_str(&gcp.key)?;
        let other = gcp.peer.account("other@peer-pods", &PERMISSIONS, gcp.peer.address()).await?;
        document["private_key"] = serde_json::from_str::<Value>(&other)?["private_key"].clone();
        let settings = Settings::gcp(gcp.peer.address(), Some(document.to_string()));
        let (output, cloud) = check(gcp.dir.path(), &settings, &[]).await?;
        assert_eq!(output.status.code(), Some(3));
        ensure!(findings(&cloud)[0].1.contains("invalid_grant"), "{cloud}");

        let audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k";
        gcp.peer.pool(audience, "anyone").await?;
        let token = gcp.peer.pool("//iam.googleapis.com/another", "anyone").await?;
        let path = gcp.dir.path().join("token");
        fs::write(&path, token)?;
        let document = federation(gcp.peer.address(), audience, &path.display().to_string());
        let settings = Settings::gcp(gcp.peer.address(), Some(document.to_string()));
        let (_, cloud) = check(gcp.dir.path(), &settings, &[]).await?;
        assert_eq!(outcomes(&cloud)[0], "fails", "{cloud}");
        Ok(())
    })
}
