//! Answers, regions and accounts that never count as absence.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Stage,
    alibabacloud::{CLOUD, POLICY},
    cloud::RecordedPlace,
};
use peers::{
    Does,
    alibaba::{ACCOUNT, Alibaba, Instance, OTHER_ACCOUNT, OTHER_REGION, Owner, REGION, actions},
};
use testbed::{Settings, vm_name};

use super::Cloud;
use crate::{
    provider::{former::Former, is_doubt, places::until_recorded},
    support::{alone_beside, run},
};

/// The answer about an instance that does not exist.
const NOT_FOUND: &str = r#"{"Code":"InvalidInstanceId.NotFound","Message":"no"}"#;

/// A list of no instances.
const NOTHING: &str = r#"{"Instances":{"Instance":[]},"NextToken":"","TotalCount":0}"#;

/// Part of the query for the list with one instance.
const LIST: &str = "InstanceIds=";

/// Part of the query for an instance itself.
const ITSELF: &str = "/?InstanceId=";

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let doubted = async |what: &str, id: &str, class: ErrorClass| -> Result<()> {
            is_doubt(what, cloud.describe(id).await?, class)?;
            cloud.peer.relay().forget_rules();
            Ok(())
        };
        // The list is empty, but the instance itself is there.
        cloud.answer(LIST, 200, NOTHING);
        doubted("an empty list alone", &id, ErrorClass::Transient).await?;
        for (what, status, body, class) in [
            ("no list", 200, "{}", ErrorClass::Transient),
            ("a list of something else", 200, r#"{"Instances":{}}"#, ErrorClass::Transient),
            ("no answer of ECS", 200, "<html>hello", ErrorClass::Transient),
            (
                "another instance",
                200,
                r#"{"Instances":{"Instance":[{"InstanceId":"i-1","InstanceName":"a","Status":"Running"}]}}"#,
                ErrorClass::Transient,
            ),
            ("a list that is not found", 404, NOT_FOUND, ErrorClass::Transient),
            ("a proxy's 404", 404, "<html>not found</html>", ErrorClass::Invalid),
            ("no rights", 403, r#"{"Code":"Forbidden.RAM"}"#, ErrorClass::Unauthorized),
            ("an unknown key", 404, r#"{"Code":"InvalidAccessKeyId.NotFound"}"#, ErrorClass::Unauthorized),
            ("an outage", 503, NOT_FOUND, ErrorClass::Transient),
        ] {
            cloud.answer(LIST, status, body);
            cloud.answer(ITSELF, 404, NOT_FOUND);
            doubted(what, &id, class).await?;
        }
        for (what, status, body, class) in [
            ("a proxy's 404", 404, "<html>not found</html>", ErrorClass::Invalid),
            ("a 404 of another thing", 404, r#"{"Code":"InvalidVpcId.NotFound"}"#, ErrorClass::Invalid),
            ("not found, but no 404", 400, NOT_FOUND, ErrorClass::Invalid),
            ("no rights", 403, r#"{"Code":"Forbidden.RAM"}"#, ErrorClass::Unauthorized),
        ] {
            cloud.answer(LIST, 200, NOTHING);
            cloud.answer(ITSELF, status, body);
            doubted(what, &id, class).await?;
        }
        for is_for in [LIST, "NetworkInterfaceName=", "EipName="] {
            cloud.peer.relay().rule(move |seen| seen.path.contains(is_for), Does::CutOff);
            cloud.answer(LIST, 200, NOTHING);
            cloud.answer(ITSELF, 404, NOT_FOUND);
            doubted(is_for, &id, ErrorClass::Transient).await?;
        }
        // Before December 2025 ECS showed an empty list to a user without the right to list instances.
        let all = actions(POLICY)?;
        let few: Vec<_> =
            all.iter().map(String::as_str).filter(|action| !action.ends_with(":DescribeInstances")).collect();
        for quiet in [true, false] {
            cloud.peer.owner(&Owner { quiet, ..Owner::operator(&few) }).await?;
            let class = if quiet { ErrorClass::Transient } else { ErrorClass::Unauthorized };
            doubted("credentials that may not list", &id, class).await?;
        }
        ensure!(cloud.peer.left(&id).await?.vm, "the VM is gone");
        Ok(())
    })
}

#[test]
fn a_vm_of_another_region_or_account_is_not_absent() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make(&Instance::named(&name)).await?;
        let far = Instance { region: OTHER_REGION, ..Instance::named(&name) };
        let far = cloud.peer.make(&far).await?;
        let described = async |id: &str, region: &str, account: &str| -> Result<Result<Stage, Error>> {
            let address = format!("{region} {}", cloud.peer.endpoint(region));
            let recorded = RecordedPlace::former(&address, Some(account));
            let provider = cloud.settings().open_at(Some(recorded))?;
            let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
            Ok(described.map(|vm| vm.stage))
        };
        assert_eq!(described(&far, OTHER_REGION, ACCOUNT).await?, Ok(Stage::Present));
        assert_eq!(described(&id, REGION, ACCOUNT).await?, Ok(Stage::Present));
        let asked = cloud.requests();
        let other = described(&id, REGION, OTHER_ACCOUNT).await?.err().context("it is described")?;
        ensure!(
            other.class == ErrorClass::Invalid && other.to_string().contains("another Alibaba Cloud account")
        );
        ensure!(!other.to_string().contains(ACCOUNT), "{other}");
        let all = actions(POLICY)?;
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        cloud.peer.owner(&Owner { account: OTHER_ACCOUNT, ..Owner::operator(&all) }).await?;
        let other = described(&id, REGION, ACCOUNT).await?.err().context("it is described")?;
        assert_eq!(other.class, ErrorClass::Invalid);
        assert_eq!(cloud.requests(), asked, "the wrong account is asked for the VM");
        assert_eq!(cloud.open()?.identity().await?.as_deref(), Some(OTHER_ACCOUNT));
        ensure!(cloud.peer.left(&id).await?.vm && cloud.peer.left(&far).await?.vm, "a VM is gone");
        Ok(())
    })
}

#[test]
fn a_vm_in_the_former_region_holds_its_peerpod_until_the_region_is_named_again() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let peer = Alibaba::start(&dir.join("alibaba"), POLICY).await?;
        let before = Settings::alibabacloud(&peer, OTHER_REGION);
        let here = Settings::alibabacloud(&peer, REGION);
        Ok(((peer, before.clone(), here), before))
    };
    alone_beside(start, async |alone, (peer, before, here)| {
        until_recorded(alone, 1).await?;
        let name = vm_name("web");
        let id = peer.make(&Instance { region: OTHER_REGION, ..Instance::named(&name) }).await?;
        let hidden = [OTHER_REGION, "127.0.0.1", ACCOUNT];
        let vm = Former { cloud: "alibabacloud", id: &id, before, here, setting: "REGION", hidden: &hidden };
        vm.holds(alone, async || Ok(peer.left(&id).await?.vm)).await
    })
}
