//! IBM Cloud's VPC: answers that never count as absence, refusals, and the operator's credentials.

use std::{cell::OnceCell, collections::HashSet, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Listed, Stage,
    cloud::Recorded,
    ibmcloud::{ACTIONS, CLOUD},
};
use peers::{
    Does,
    ibm::{ACCOUNT, GROUP, Ibm, Instance, KEY, OTHER_ACCOUNT, OTHER_GROUP, OTHER_REGION, Principal, REGION},
};
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, findings, outcomes},
    former::Former,
    ibm::Stand,
    own,
    places::until_recorded,
};
use crate::support::{PROGRAM, alone_with, run};

/// Another Pod's VM. It proves that the credentials can see pod VMs.
const OTHER_VM: &str = "podvm-other-1a2b3c4d";

async fn start() -> Result<Stand> {
    Stand::start(&CLOUD, &ACTIONS, "/vpc/", |peer| Settings::ibmcloud(peer, REGION)).await
}

#[test]
fn a_deletion_takes_three_requests_and_each_further_check_takes_one() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        let accepted = provider.delete(&own).await?;
        ensure!(!accepted.look_after.is_zero(), "it asks again at once");
        // VPC refuses a second deletion while the first one is in progress.
        provider.delete(&own).await?;
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(cloud.requests(), ["GET", "DELETE", "DELETE", "GET", "GET"]);
        let tokens = cloud.peer.relay().seen().iter().filter(|seen| seen.path == "/identity/token").count();
        assert_eq!(tokens, 1);
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    const NOT_FOUND: &str = r#"{"errors":[{"code":"not_found","message":"no"}],"trace":"1"}"#;
    run(async {
        let cloud = start().await?;
        cloud.peer.make(&Instance::named(OTHER_VM)).await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let doubted = async |what: &str, id: &str, class: ErrorClass| -> Result<()> {
            match cloud.describe(id).await? {
                Err(error) if error.class == class => {}
                described => anyhow::bail!("{what}: {described:?}"),
            }
            cloud.peer.relay().forget_rules();
            Ok(())
        };
        for (what, status, body, class) in [
            ("no instance", 200, "{}", ErrorClass::Transient),
            ("no answer of VPC", 200, "<html>hello", ErrorClass::Transient),
            (
                "another instance",
                200,
                r#"{"id":"0717_1","name":"a","status":"running"}"#,
                ErrorClass::Transient,
            ),
            ("a proxy's 404", 404, "<html>not found</html>", ErrorClass::Invalid),
            ("a 404 without a code", 404, r#"{"errors":[],"trace":"1"}"#, ErrorClass::Invalid),
            ("a 404 of another thing", 404, r#"{"errors":[{"code":"vpc_not_found"}]}"#, ErrorClass::Invalid),
            ("not found, but no 404", 400, NOT_FOUND, ErrorClass::Invalid),
            ("gone", 410, NOT_FOUND, ErrorClass::Invalid),
            ("no rights", 403, r#"{"errors":[{"code":"not_authorized"}]}"#, ErrorClass::Unauthorized),
            ("an outage", 503, NOT_FOUND, ErrorClass::Transient),
        ] {
            cloud.answer("/vpc/", status, body);
            doubted(what, &id, class).await?;
        }
        cloud.peer.relay().rule(|seen| seen.path.starts_with("/vpc/"), Does::CutOff);
        doubted("half an answer", &id, ErrorClass::Transient).await?;

        // VPC hides VMs from credentials without the right to see them. They see neither this VM nor any other.
        cloud.peer.principal(&Principal::operator(&["is.instance.instance.delete"])).await?;
        doubted("credentials that may see nothing", &id, ErrorClass::Unauthorized).await?;
        cloud.peer.principal(&Principal::operator(&ACTIONS[1..])).await?;
        doubted("credentials that may list and not read", &id, ErrorClass::Unauthorized).await?;
        cloud.peer.principal(&Principal::operator(&ACTIONS)).await?;

        // Neither another region nor the credentials of another account can see a live instance.
        let far =
            cloud.peer.make(&Instance { region: OTHER_REGION, ..Instance::named(&vm_name("web")) }).await?;
        let described = async |id: &str, region: &str, account: &str| -> Result<Result<Stage, Error>> {
            let address = cloud.peer.vpc(region);
            let recorded = Recorded { address: &address, host: Some(account), moved: None };
            let provider = cloud.settings().open_at(Some(recorded))?;
            let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
            Ok(described.map(|vm| vm.stage))
        };
        assert_eq!(described(&far, OTHER_REGION, ACCOUNT).await?, Ok(Stage::Present));
        assert_eq!(described(&id, REGION, ACCOUNT).await?, Ok(Stage::Present));
        let other = described(&id, REGION, OTHER_ACCOUNT).await?.err().context("it is described")?;
        ensure!(
            other.class == ErrorClass::Invalid && other.to_string().contains("another IBM Cloud account")
        );
        ensure!(!other.to_string().contains(ACCOUNT), "{other}");
        let asked = cloud.requests().len();
        cloud.peer.principal(&Principal { account: OTHER_ACCOUNT, ..Principal::operator(&ACTIONS) }).await?;
        let other = described(&id, REGION, ACCOUNT).await?.err().context("it is described")?;
        assert_eq!(other.class, ErrorClass::Invalid);
        assert_eq!(cloud.requests().len(), asked, "the wrong account is asked for the VM");
        assert_eq!(cloud.open()?.host().await?.as_deref(), Some(OTHER_ACCOUNT));
        ensure!(cloud.peer.left(&id).await?.vm && cloud.peer.left(&far).await?.vm, "a VM is gone");
        Ok(())
    })
}

#[test]
fn a_vm_is_absent_only_to_credentials_that_can_see_pod_vms() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        cloud.peer.make(&Instance::named("database")).await?;
        cloud.peer.remove(&id).await?;
        let doubt = cloud.describe(&id).await?.err().context("it is described")?;
        assert_eq!(doubt.class, ErrorClass::Unauthorized);
        ensure!(doubt.to_string().contains(ACTIONS[0]) && doubt.to_string().contains("abandon"), "{doubt}");

        // Another pod VM, on the last of several pages, proves the absence.
        cloud.peer.make(&Instance::named(OTHER_VM)).await?;
        cloud.peer.page_size(1).await?;
        let gone = cloud.describe(&id).await?.err().context("it is described")?;
        assert_eq!(gone.class, ErrorClass::NotFound);
        cloud.peer.relay().rule(|seen| seen.path.contains("&start="), Does::CutOff);
        let doubt = cloud.describe(&id).await?.err().context("it is described")?;
        assert_eq!(doubt.class, ErrorClass::Transient);
        cloud.peer.relay().forget_rules();

        // A role may apply to a single resource group.
        for (group, class) in [(GROUP, ErrorClass::NotFound), (OTHER_GROUP, ErrorClass::Unauthorized)] {
            let mut settings = cloud.settings();
            settings.config_map.insert("IBMCLOUD_RESOURCE_GROUP_ID".to_owned(), group.to_owned());
            let described = settings.open()?.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
            assert_eq!(described.err().map(|error| error.class), Some(class), "{group}");
        }
        Ok(())
    })
}

#[test]
fn check_says_which_permission_may_be_missing_and_deletes_nothing() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(
            output.status.success() && outcomes(&report) == ["works", "untried", "untried", "untried"],
            "{report}"
        );
        ensure!(findings(&report)[1].1.contains("is.instance.instance.list"), "{report}");
        ensure!(findings(&report)[2].1.contains("global-search-tagging.resource.read"), "{report}");
        cloud
            .peer
            .make(&Instance { old: true, tags: &["cluster:test"], ..Instance::named(OTHER_VM) })
            .await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(
            output.status.success() && outcomes(&report) == ["works", "works", "works", "untried"],
            "{report}"
        );
        ensure!(findings(&report)[3].1.contains("is.instance.instance.delete"), "{report}");
        cloud.peer.principal(&Principal::operator(&ACTIONS[..3])).await?;
        let (_, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["works", "works", "fails", "untried"], "{report}");
        cloud.peer.principal(&Principal::operator(&ACTIONS[1..])).await?;
        let (_, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["works", "fails", "works", "untried"], "{report}");
        ensure!(findings(&report)[1].1.contains(ACTIONS[0]), "{report}");
        let mut settings = cloud.settings();
        settings.secret.insert("IBMCLOUD_API_KEY".to_owned(), "another-api-key".to_owned());
        let (output, report) = check(cloud.dir(), &settings, &[]).await?;
        assert_eq!(output.status.code(), Some(3), "{report}");
        ensure!(findings(&report)[0].1.contains("BXNIM0415E"), "{report}");
        ensure!(!cloud.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}

#[test]
fn a_list_has_the_tags_of_every_pod_vm_or_fails() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let (name, tags) = (vm_name("web"), ["coco-pod-vm:a", "env:test:b", "alone"]);
        let id = cloud.peer.make(&Instance { tags: &tags, old: true, ..Instance::named(&name) }).await?;
        cloud.peer.make(&Instance { old: true, ..Instance::named(OTHER_VM) }).await?;
        cloud.peer.page_size(1).await?;
        let list = async || -> Result<Result<Vec<Listed>, Error>> {
            let mut listed = Vec::new();
            Ok(cloud.open()?.list(&mut |page| listed.extend(page)).await.map(|()| listed))
        };
        let listed = list().await?.context("the list fails")?;
        let of = |id: &str| listed.iter().find(|vm| vm.id == id).map(|vm| vm.tags.iter().cloned().collect());
        let expected = [("coco-pod-vm", "a"), ("env", "test:b"), ("alone", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!((listed.len(), of(&id)), (2, Some(HashSet::from(expected))), "{listed:#?}");

        let fails = async |what: &str, class: ErrorClass| -> Result<()> {
            let listed = list().await?;
            ensure!(listed.as_ref().is_err_and(|error| error.class == class), "{what}: {listed:?}");
            cloud.peer.relay().forget_rules();
            Ok(())
        };
        cloud.peer.relay().rule(|seen| seen.body.contains("search_cursor"), Does::CutOff);
        fails("half of the second page", ErrorClass::Transient).await?;
        for (what, status, body, class) in [
            ("no page", 200, "{}", ErrorClass::Transient),
            ("no right to search", 403, r#"{"errors":[{"code":"forbidden"}]}"#, ErrorClass::Unauthorized),
            ("a 404", 404, r#"{"errors":[{"code":"not_found"}]}"#, ErrorClass::Invalid),
            ("an outage", 503, "", ErrorClass::Transient),
            ("nothing", 200, r#"{"items":[],"limit":100}"#, ErrorClass::Unauthorized),
        ] {
            cloud.answer("/v3/resources/search", status, body);
            fails(what, class).await?;
        }
        // Without the right to search, the list fails. Deletions do not need that right.
        cloud.peer.principal(&Principal::operator(&ACTIONS[..3])).await?;
        fails("no right", ErrorClass::Unauthorized).await?;
        assert_eq!(cloud.describe(&id).await?, Ok(Stage::Present));
        Ok(())
    })
}

#[test]
fn the_operator_is_an_api_key_or_a_trusted_profile() -> Result<()> {
    run(async {
        let cloud = start().await?;
        cloud.peer.make(&Instance::named(OTHER_VM)).await?;
        let works = async |by: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, report) = check(cloud.dir(), settings, environment).await?;
            let account = format!("account {ACCOUNT}, by {by}");
            ensure!(
                findings(&report).iter().any(|(outcome, text)| outcome == "works" && *text == account),
                "{by}: {report}"
            );
            Ok(())
        };
        works("the API key", &cloud.settings(), &[]).await?;

        let (profile, subject) = ("Profile-8dd84246-7df4-4667-94e4-8cede51d5ac5", "a.projected+token/=");
        let principal = Principal { profile, subject, account: ACCOUNT, actions: &ACTIONS, key: "" };
        cloud.peer.principal(&principal).await?;
        let file = cloud.dir().join("vault-token");
        fs::write(&file, format!("{subject}\n"))?;
        let file = file.display().to_string();
        let mut settings = cloud.settings();
        settings.secret = [("IBMCLOUD_IAM_PROFILE_ID".to_owned(), profile.to_owned())].into();
        works("the trusted profile", &settings, &[("IBMCLOUD_CR_TOKEN_FILENAME", &file)]).await?;
        // Outside of a Pod there is no such volume.
        let (output, report) = check(cloud.dir(), &settings, &[]).await?;
        ensure!(
            !output.status.success() && findings(&report)[0].1.contains("volume vault-token"),
            "{report}"
        );
        Ok(())
    })
}

#[test]
fn an_access_token_that_ended_is_replaced_and_none_is_quoted() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let describe =
            async || provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await.context("");
        describe().await?;
        cloud.peer.expire().await?;
        ensure!(describe().await.is_err(), "a token that ended is good");
        describe().await?;
        for body in [
            r#"{"access_token":"a-secret","expires_in":3600}"#,
            r#"{"access_token":"a-secret"}"#,
            r#"["a-secret"]"#,
        ] {
            cloud.peer.relay().forget_rules();
            let answer = Does::Answer { status: 200, headers: Vec::new(), body: body.to_owned() };
            cloud.peer.relay().rule(|seen| seen.path == "/identity/token", answer);
            let error = cloud.describe(&id).await?.err().context("it is described")?;
            ensure!(error.class == ErrorClass::Transient, "{error:?}");
            ensure!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        // The endpoint repeats the API key.
        cloud.peer.relay().forget_rules();
        let body = format!(r#"{{"errorCode":"BXNIM0415E","errorMessage":"no key {KEY}"}}"#);
        let answer = Does::Answer { status: 400, headers: Vec::new(), body };
        cloud.peer.relay().rule(|seen| seen.path == "/identity/token", answer);
        let error = cloud.describe(&id).await?.err().context("it is described")?;
        ensure!(error.class == ErrorClass::Unauthorized && !format!("{error:?}").contains(KEY), "{error:?}");
        Ok(())
    })
}

#[test]
fn a_vm_of_vpc_is_deleted_with_its_pod_and_foreign_vms_and_volumes_stay() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        let settings = Settings::ibmcloud(&peer, REGION);
        let _ = cloud.set(peer);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let (scene, peer) = (alone.scene(), cloud.get().context("the cloud was started")?);
        let other = peer.make(&Instance::named(OTHER_VM)).await?;
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make(&Instance { user_data: true, ..Instance::named(&name) }).await?;
        let peerpod = scene.caa.record(&owner, "ibmcloud", &id).await?.name_any();
        // The PeerPod names another Pod's VM.
        let thief = scene.pods.run("thief").await?;
        let stolen = scene.caa.record(&thief, "ibmcloud", &other).await?.name_any();
        scene.pods.delete("web").await?;
        scene.pods.delete("thief").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let left = peer.left(&id).await?;
        ensure!(!left.vm && left.boot == 0 && left.data == 1, "{left:?}");
        ensure!(scene.peerpods.get_opt(&stolen).await?.is_some(), "{stolen} is released");
        let left = peer.left(&other).await?;
        ensure!(left.vm && !left.deleting, "{left:?}");
        Ok(())
    })
}

#[test]
fn a_vm_in_the_former_region_holds_its_peerpod_until_the_region_is_named_again() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        let before = Settings::ibmcloud(&peer, OTHER_REGION);
        let here = Settings::ibmcloud(&peer, REGION);
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((peer, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (peer, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        // This VM proves that the credentials can see pod VMs in the region that the settings will name.
        peer.make(&Instance::named(&vm_name("other"))).await?;
        let name = vm_name("web");
        let id = peer.make(&Instance { region: OTHER_REGION, ..Instance::named(&name) }).await?;
        let hidden = [OTHER_REGION, "127.0.0.1", ACCOUNT];
        let setting = "IBMCLOUD_VPC_ENDPOINT";
        let vm = Former { cloud: "ibmcloud", id: &id, before, here, setting, hidden: &hidden };
        vm.holds(alone, async || Ok(peer.left(&id).await?.vm)).await
    })
}
