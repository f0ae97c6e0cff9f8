//! Answers, rights and regions that never count as absence.

use std::{collections::HashSet, path::Path};

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Listed, Stage,
    cloud::RecordedPlace,
    ibmcloud::{ACTIONS, CLOUD},
};
use peers::{
    Does,
    ibm::{ACCOUNT, GROUP, Ibm, Instance, OTHER_ACCOUNT, OTHER_GROUP, OTHER_REGION, Principal, REGION},
};
use testbed::{Settings, vm_name};

use super::{OTHER_VM, start};
use crate::{
    provider::{former::Former, is_doubt, places::until_recorded},
    support::{alone_beside, run},
};

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    const NOT_FOUND: &str = r#"{"errors":[{"code":"not_found","message":"no"}],"trace":"1"}"#;
    run(async {
        let cloud = start().await?;
        cloud.peer.make(&Instance::named(OTHER_VM)).await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let doubted = async |what: &str, id: &str, class: ErrorClass| -> Result<()> {
            is_doubt(what, cloud.describe(id).await?, class)?;
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
            let recorded = RecordedPlace::former(&address, Some(account));
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
        assert_eq!(cloud.open()?.identity().await?.as_deref(), Some(OTHER_ACCOUNT));
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
            // Throttling would hold up deletions, which VPC counts apart.
            ("too many requests", 429, "", ErrorClass::Refused),
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
fn a_vm_in_the_former_region_holds_its_peerpod_until_the_region_is_named_again() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Ibm::start(&dir.join("ibm"), &ACTIONS).await?;
        let before = Settings::ibmcloud(&peer, OTHER_REGION);
        let here = Settings::ibmcloud(&peer, REGION);
        Ok(((peer, before.clone(), here), before))
    };
    alone_beside(start, async |alone, (peer, before, here)| {
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
