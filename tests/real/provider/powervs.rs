//! IBM Power Virtual Server: answers that never count as absence, refusals, and the steps of a deletion.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Stage,
    cloud::RecordedPlace,
    ibmcloud_powervs::{ACTIONS, CLOUD},
    ownership,
};
use peers::{
    Does,
    ibm::{ACCOUNT, Ibm, OTHER_ACCOUNT, OTHER_WORKSPACE, Principal, Server, WORKSPACE, ZONE},
};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, findings, outcomes},
    ibm::Stand,
    is_doubt, own,
};
use crate::support::{alone_beside, run};

async fn start() -> Result<Stand> {
    Stand::start(&CLOUD, &ACTIONS, "/pcloud/", |peer| Settings::powervs(peer, WORKSPACE)).await
}

#[test]
fn a_deletion_takes_four_requests_and_each_further_check_takes_one() -> Result<()> {
    run(async {
        let cloud = start().await?;
        // The longest name of a VM in PowerVS is shorter than this Pod's name.
        let pod = "w".repeat(60);
        let id = cloud.peer.make_server(&Server::named(&format!("podvm-{}-1a2b3c4d", &pod[..32]))).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, &pod).await?;
        let accepted = provider.delete(&own).await?;
        ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
        let described =
            async || provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await.context("");
        assert_eq!(described().await?.stage, Stage::Leaving);
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(cloud.requests(), ["GET", "DELETE", "GET", "GET", "GET"]);
        let tokens = cloud.peer.relay().seen().iter().filter(|seen| seen.path == "/identity/token").count();
        assert_eq!(tokens, 1);
        Ok(())
    })
}

#[test]
fn a_server_that_is_being_built_is_deleted_later() -> Result<()> {
    run(async {
        let cloud = start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make_server(&Server { status: "BUILD", ..Server::named(&name) }).await?;
        let provider = cloud.open()?;
        let vm = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await?;
        let own = ownership::verify(vm, "web", CLOUD.name_limit)?;
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Transient && error.to_string().contains("built"), "{error}");
        ensure!(cloud.peer.left(&id).await?.vm, "it is gone");
        // A refusal for another reason stays a refusal.
        cloud.answer("/pvm-instances/", 409, r#"{"error":"conflict","description":"locked"}"#);
        let error = provider.delete(&own).await.err().context("it was deleted")?;
        ensure!(error.class == ErrorClass::Refused, "{error}");
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    const NOT_FOUND: &str = r#"{"code":404,"error":"not found","description":"pvm-instance does not exist"}"#;
    run(async {
        let cloud = start().await?;
        let id = cloud.peer.make_server(&Server::named(&vm_name("web"))).await?;
        let doubted = async |what: &str, class: ErrorClass| -> Result<()> {
            is_doubt(what, cloud.describe(&id).await?, class)?;
            cloud.peer.relay().forget_rules();
            Ok(())
        };
        for (what, status, body, class) in [
            ("no server", 200, "{}", ErrorClass::Transient),
            ("no answer of the API", 200, "<html>hello", ErrorClass::Transient),
            (
                "another server",
                200,
                r#"{"pvmInstanceID":"1","serverName":"a","status":"ACTIVE"}"#,
                ErrorClass::Transient,
            ),
            ("no rights", 403, "{}", ErrorClass::Unauthorized),
            ("an outage", 500, NOT_FOUND, ErrorClass::Transient),
            // The list still has it.
            ("not found", 404, NOT_FOUND, ErrorClass::Transient),
            ("gone", 410, NOT_FOUND, ErrorClass::Transient),
            ("a proxy's 404", 404, "<html>not found</html>", ErrorClass::Transient),
        ] {
            cloud.answer("/pvm-instances/", status, body);
            doubted(what, class).await?;
        }
        for (what, status, body, class) in [
            ("no list", 200, "{}", ErrorClass::Transient),
            ("no list either", 200, "[]", ErrorClass::Transient),
            ("no workspace", 404, NOT_FOUND, ErrorClass::Invalid),
            ("no rights in the workspace", 403, "{}", ErrorClass::Unauthorized),
        ] {
            cloud.answer("/pvm-instances/", 404, NOT_FOUND);
            cloud.answer("/pvm-instances", status, body);
            doubted(what, class).await?;
        }
        cloud.answer("/pvm-instances/", 404, NOT_FOUND);
        cloud.peer.relay().rule(|seen| seen.path.ends_with("/pvm-instances"), Does::CutOff);
        doubted("half a list", ErrorClass::Transient).await?;

        // Neither another workspace nor the API key of another account can see a live server.
        let far = cloud
            .peer
            .make_server(&Server { workspace: OTHER_WORKSPACE, ..Server::named(&vm_name("web")) })
            .await?;
        let url = cloud.peer.url();
        let described = async |id: &str, workspace: &str, account: &str| -> Result<Result<Stage, Error>> {
            let address = format!("{workspace} {ZONE} {url}");
            let recorded = RecordedPlace::former(&address, Some(account));
            let provider = cloud.settings().open_at(Some(recorded))?;
            let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
            Ok(described.map(|vm| vm.stage))
        };
        assert_eq!(described(&far, OTHER_WORKSPACE, ACCOUNT).await?, Ok(Stage::Present));
        let other = described(&id, WORKSPACE, OTHER_ACCOUNT).await?.err().context("it is described")?;
        ensure!(
            other.class == ErrorClass::Invalid && other.to_string().contains("another IBM Cloud account")
        );
        let unknown = described(&id, "11111111-1111-1111-1111-111111111111", ACCOUNT).await?;
        assert_eq!(unknown.err().context("it is described")?.class, ErrorClass::Invalid);
        cloud.peer.principal(&Principal { account: OTHER_ACCOUNT, ..Principal::operator(&ACTIONS) }).await?;
        let other = described(&id, WORKSPACE, OTHER_ACCOUNT).await?.err().context("it is described")?;
        assert_eq!(other.class, ErrorClass::Unauthorized, "a workspace of another account");
        ensure!(cloud.peer.left(&id).await?.vm && cloud.peer.left(&far).await?.vm, "a VM is gone");
        Ok(())
    })
}

#[test]
fn check_names_the_action_that_lists_and_deletes_nothing() -> Result<()> {
    run(async {
        let cloud = start().await?;
        cloud.peer.make_server(&Server::named(&vm_name("web"))).await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&report) == ["works", "works", "untried"], "{report}");
        ensure!(findings(&report)[2].1.contains("power-iaas.pvm-instance.delete"), "{report}");
        cloud.peer.principal(&Principal::operator(&[ACTIONS[0], ACTIONS[1], ACTIONS[3]])).await?;
        let (output, report) = check(cloud.dir(), &cloud.settings(), &[]).await?;
        assert_eq!(output.status.code(), Some(3), "{report}");
        ensure!(findings(&report)[1].1.contains("power-iaas.pvm-instance.list"), "{report}");
        ensure!(!cloud.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}

#[test]
fn a_server_is_deleted_with_its_pod_and_a_users_volume_stays() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        let settings = Settings::powervs(&peer, WORKSPACE);
        Ok((peer, settings))
    };
    alone_beside(start, async |alone, peer| {
        let scene = alone.scene();
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make_server(&Server { user_data: true, ..Server::named(&name) }).await?;
        let peerpod = scene.caa.record(&owner, "ibmcloud-powervs", &id).await?.name_any();
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let left = peer.left(&id).await?;
        ensure!(!left.vm && left.boot == 0 && left.data == 1, "{left:?}");
        Ok(())
    })
}
