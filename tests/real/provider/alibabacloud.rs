//! Alibaba Cloud ECS: answers that never count as absence, refusals, remains, and the operator's credentials.

use std::{cell::OnceCell, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Bears, Claim, Error, ErrorClass, InstanceId, Provider, Stage,
    alibabacloud::{CLOUD, POLICY},
    cloud::Recorded,
    ownership,
};
use peers::{
    Does,
    alibaba::{
        ACCOUNT, Alibaba, Feature, Instance, Left, OTHER_ACCOUNT, OTHER_REGION, Owner, REGION, actions,
    },
};
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, findings, outcomes},
    former::Former,
    own,
    places::until_recorded,
};
use crate::support::{PROGRAM, alone_with, run};

/// The answer about an instance that does not exist.
const NOT_FOUND: &str = r#"{"Code":"InvalidInstanceId.NotFound","Message":"no"}"#;

/// A list of no instances.
const NOTHING: &str = r#"{"Instances":{"Instance":[]},"NextToken":"","TotalCount":0}"#;

struct Cloud {
    dir: TempDir,
    peer: Alibaba,
}

impl Cloud {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Alibaba::start(dir.path(), POLICY).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::alibabacloud(&self.peer, REGION)
    }

    /// A new provider without any cached state.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    /// What is left of a VM of the Pod `web` after a complete deletion.
    async fn delete(&self, id: &str) -> Result<Left> {
        let provider = self.open()?;
        for _ in 0..20 {
            let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
            match described {
                Err(gone) if gone.class == ErrorClass::NotFound => return self.peer.left(id).await,
                Ok(vm) if vm.stage == Stage::Leaving => {}
                described => {
                    provider.delete(&ownership::verify(described?, "web", CLOUD.name_limit)?).await?;
                }
            }
        }
        anyhow::bail!("{id} is still there: {:?}", self.peer.left(id).await?)
    }

    /// How many requests came so far, without those for the operator's identity.
    fn requests(&self) -> usize {
        self.peer.relay().seen().iter().filter(|seen| seen.path.contains('?')).count()
    }

    /// Answers requests whose queries contain this.
    fn answer(&self, is_for: &'static str, status: u16, body: &str) {
        let does = Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        self.peer.relay().rule(move |seen| seen.path.contains(is_for), does);
    }
}

/// Part of the query for the list with one instance.
const LIST: &str = "InstanceIds=";

/// Part of the query for an instance itself.
const ITSELF: &str = "/?InstanceId=";

#[test]
fn a_deletion_takes_six_requests_and_each_further_check_takes_one() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        let accepted = provider.delete(&own).await?;
        ensure!(!accepted.look_after.is_zero(), "it asks again at once");
        assert_eq!(cloud.requests(), 2);
        let leaving = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(leaving.is_ok_and(|vm| vm.stage == Stage::Leaving));
        assert_eq!(cloud.requests(), 3);
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(cloud.requests(), 7);
        assert_eq!(cloud.peer.relay().seen().len(), 8, "whose the credentials are is asked once");
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let doubted = async |what: &str, id: &str, class: ErrorClass| -> Result<()> {
            match cloud.describe(id).await? {
                Err(error) if error.class == class => {}
                described => anyhow::bail!("{what}: {described:?}"),
            }
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
            let recorded = Recorded { address: &address, host: Some(account), moved: None };
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
        assert_eq!(cloud.open()?.host().await?.as_deref(), Some(OTHER_ACCOUNT));
        ensure!(cloud.peer.left(&id).await?.vm && cloud.peer.left(&far).await?.vm, "a VM is gone");
        Ok(())
    })
}

#[test]
fn an_address_is_deleted_with_its_vm_only_if_cloud_api_adaptor_made_it() -> Result<()> {
    const ADAPTORS: &str = "Peerpod External Network EIP";
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let external =
            Instance { features: &[Feature::External, Feature::UserData], ..Instance::named(&name) };
        for (description, charge, left) in
            [(ADAPTORS, "PostPaid", 0), (ADAPTORS, "PrePaid", 1), ("mine", "PostPaid", 1)]
        {
            for keeps_interface in [false, true] {
                let id = cloud.peer.make(&external).await?;
                cloud.peer.address(&id, description, charge, "").await?;
                if keeps_interface {
                    cloud.peer.keep_interface(&id).await?;
                }
                let end = cloud.delete(&id).await?;
                let expected =
                    Left { vm: false, deleting: false, nics: 0, addresses: left, system: 0, data: 1 };
                assert_eq!(end, expected, "{description} {charge} {keeps_interface}");
            }
        }
        // A VM that ends without the operator leaves its interface, and an address that has no name.
        let id = cloud.peer.make(&external).await?;
        cloud.peer.keep_interface(&id).await?;
        cloud.peer.remove(&id, false).await?;
        assert_eq!(cloud.describe(&id).await?.map_err(|error| error.class), Ok(Stage::Remains(Bears::Id)));
        let end = cloud.delete(&id).await?;
        assert_eq!((end.nics, end.addresses), (0, 0), "{end:?}");
        Ok(())
    })
}

#[test]
fn an_address_that_something_else_uses_stays_and_the_peerpod_reports_it() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let id =
            cloud.peer.make(&Instance { features: &[Feature::External], ..Instance::named(&name) }).await?;
        cloud.peer.name_address(&id).await?;
        cloud.peer.remove(&id, false).await?;
        cloud.peer.address(&id, "Peerpod External Network EIP", "PostPaid", "eni-of-a-user").await?;
        let refused = cloud.delete(&id).await.err().context("it is deleted")?.to_string();
        ensure!(refused.contains("something else uses") && !refused.contains("eni-of-a-user"), "{refused}");
        ensure!(cloud.peer.left(&id).await?.addresses == 1, "the address is released");
        Ok(())
    })
}

#[test]
fn a_vm_that_is_locked_for_security_and_one_that_cannot_be_deleted_now_stay() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let name = vm_name("web");
        let locked = Instance { features: &[Feature::Locked, Feature::UserData], ..Instance::named(&name) };
        let locked = cloud.peer.make(&locked).await?;
        let refused = cloud.describe(&locked).await?.err().context("it is described")?;
        ensure!(refused.class == ErrorClass::Refused && refused.to_string().contains("locked"), "{refused}");

        let id = cloud.peer.make(&Instance::named(&name)).await?;
        let provider = cloud.open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        for (status, code, class) in [
            (403, "IncorrectInstanceStatus.Initializing", ErrorClass::Transient),
            (403, "InvalidOperation.DeletionProtection", ErrorClass::Refused),
        ] {
            cloud.answer("Force=true", status, &format!(r#"{{"Code":"{code}"}}"#));
            let refused = provider.delete(&own).await.err().context("it is deleted")?;
            assert_eq!(refused.class, class, "{refused}");
            cloud.peer.relay().forget_rules();
        }
        let left = cloud.peer.left(&id).await?;
        ensure!(left.vm && !left.deleting && cloud.peer.left(&locked).await?.data == 1, "{left:?}");
        Ok(())
    })
}

#[test]
fn check_names_the_one_permission_that_is_missing_and_changes_nothing() -> Result<()> {
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        let works = ["works"; 5].into_iter().chain(["untried"; 5]);
        ensure!(output.status.success() && outcomes(&report).into_iter().eq(works), "{report}");
        let all = actions(POLICY)?;
        ensure!(all.len() == 9, "{all:?}");
        for missing in &all {
            let rest: Vec<_> = all.iter().map(String::as_str).filter(|action| action != missing).collect();
            cloud.peer.owner(&Owner::operator(&rest)).await?;
            let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {report}");
            let failed: Vec<_> =
                findings(&report).into_iter().filter(|(outcome, _)| outcome == "fails").collect();
            ensure!(failed.len() == 1 && failed[0].1.contains("Forbidden.RAM"), "{missing}: {report}");
        }
        let left = cloud.peer.left(&id).await?;
        ensure!(left.vm && !left.deleting, "check deletes: {left:?}");
        Ok(())
    })
}

#[test]
fn the_operator_is_an_access_key_or_a_role() -> Result<()> {
    const ROLE: &str = "acs:ram::1234567890123456:role/peerpod-operator";
    const PROVIDER: &str = "acs:ram::1234567890123456:oidc-provider/ack-rrsa-c1";
    const TOKEN: &str = "a.projected-token.x_y";
    run(async {
        let cloud = Cloud::start().await?;
        let id = cloud.peer.make(&Instance::named(&vm_name("web"))).await?;
        let works = async |by: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, report) = check(cloud.dir.path(), settings, environment).await?;
            let account = format!("account {ACCOUNT}, region {REGION}, by {by}");
            let found =
                findings(&report).iter().any(|(outcome, text)| outcome == "works" && *text == account);
            ensure!(found && !report.to_string().contains(TOKEN), "{by}: {report}");
            Ok(())
        };
        works("an access key", &cloud.settings(), &[]).await?;

        cloud.peer.role(ROLE, PROVIDER, TOKEN, &actions(POLICY)?).await?;
        let file = cloud.dir.path().join("token");
        fs::write(&file, format!("{TOKEN}\n"))?;
        let file = file.display().to_string();
        let role = [
            ("ALIBABA_CLOUD_ROLE_ARN", ROLE),
            ("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", PROVIDER),
            ("ALIBABA_CLOUD_OIDC_TOKEN_FILE", &*file),
        ];
        let mut none = cloud.settings();
        none.secret.clear();
        works("a role by a token of the ServiceAccount", &none, &role).await?;
        let mut set = none.clone();
        set.config_map.extend(role.map(|(key, value)| (key.to_owned(), value.to_owned())));
        works("a role by a token of the ServiceAccount", &set, &[]).await?;

        // The provider does not use expired credentials again.
        let provider = set.open()?;
        let instance = InstanceId::of(&CLOUD, &id)?;
        provider.describe(&instance, &Claim::default()).await?;
        cloud.peer.expire().await?;
        let expired = provider.describe(&instance, &Claim::default()).await.err().context("they are good")?;
        assert_eq!(expired.class, ErrorClass::Unauthorized);
        provider.describe(&instance, &Claim::default()).await?;

        fs::write(&file, "another-token")?;
        let refused =
            set.open()?.describe(&instance, &Claim::default()).await.err().context("it is let in")?;
        ensure!(refused.class == ErrorClass::Unauthorized, "{refused:?}");
        // The service repeats the token, or sends an unexpected answer.
        for (status, body) in
            [(400, r#"{"Code":"AuthenticationFail","Message":"another-token"}"#), (200, r#"["a-secret"]"#)]
        {
            cloud.answer("OIDCToken=", status, body);
            let refused =
                set.open()?.describe(&instance, &Claim::default()).await.err().context("it is let in")?;
            let shown = format!("{refused:?}");
            ensure!(!shown.contains("another-token") && !shown.contains("a-secret"), "{shown}");
            cloud.peer.relay().forget_rules();
        }
        Ok(())
    })
}

#[test]
fn a_vm_of_ecs_is_deleted_with_its_pod_and_foreign_vms_and_disks_stay() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Alibaba::start(&dir.join("alibaba"), POLICY).await?;
        let settings = Settings::alibabacloud(&peer, REGION);
        let _ = cloud.set(peer);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let (scene, peer) = (alone.scene(), cloud.get().context("the cloud was started")?);
        let other = peer.make(&Instance::named("podvm-other-1a2b3c4d")).await?;
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer
            .make(&Instance { features: &[Feature::External, Feature::UserData], ..Instance::named(&name) })
            .await?;
        let peerpod = scene.caa.record(&owner, "alibabacloud", &id).await?.name_any();
        // The PeerPod names another Pod's VM.
        let thief = scene.pods.run("thief").await?;
        let stolen = scene.caa.record(&thief, "alibabacloud", &other).await?.name_any();
        scene.pods.delete("web").await?;
        scene.pods.delete("thief").await?;
        wait::gone(&scene.peerpods, &peerpod, 3 * DEADLINE).await?;
        let left = peer.left(&id).await?;
        let expected = Left { vm: false, deleting: false, nics: 0, addresses: 0, system: 0, data: 1 };
        assert_eq!(left, expected);
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
        let peer = Alibaba::start(&dir.join("alibaba"), POLICY).await?;
        let before = Settings::alibabacloud(&peer, OTHER_REGION);
        let here = Settings::alibabacloud(&peer, REGION);
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((peer, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (peer, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        let name = vm_name("web");
        let id = peer.make(&Instance { region: OTHER_REGION, ..Instance::named(&name) }).await?;
        let hidden = [OTHER_REGION, "127.0.0.1", ACCOUNT];
        let vm = Former { cloud: "alibabacloud", id: &id, before, here, setting: "REGION", hidden: &hidden };
        vm.holds(alone, async || Ok(peer.left(&id).await?.vm)).await
    })
}
