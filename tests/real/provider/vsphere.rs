//! vSphere: answers that never count as absence, refusals, and the steps of a deletion.

use std::{cell::OnceCell, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Openers, OwnVm, Provider, Stage,
    cloud::Recorded,
    vsphere::{CLOUD, PRIVILEGES},
};
use peers::{
    Does,
    vsphere::{Behavior, Machine, OTHER_PATH, PASSWORD, PATH, Special, USER, Vsphere},
};
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, findings, outcomes},
    own,
};
use crate::support::{PROGRAM, alone_with, run};

struct Stand {
    dir: TempDir,
    peer: Vsphere,
}

impl Stand {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Vsphere::start(dir.path(), &PRIVILEGES).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::vsphere(&self.peer)
    }

    /// Settings with this key in the Secret, if it is one of the Secret's keys, or else in the ConfigMap.
    fn with(&self, key: &str, value: &str) -> Settings {
        let mut settings = self.settings();
        let is_secret = ["GOVC_USERNAME", "GOVC_PASSWORD", "GOVC_THUMBPRINT"].contains(&key);
        let data = if is_secret { &mut settings.secret } else { &mut settings.config_map };
        data.insert(key.to_owned(), value.to_owned());
        settings
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        describe(&*self.settings().open()?, id).await
    }

    /// Fails unless the description of the VM is an error of this class with this text. The VM may be neither described nor absent.
    async fn doubted(&self, id: &str, class: ErrorClass, says: &str) -> Result<()> {
        match self.describe(id).await? {
            Err(error) if error.class == class && error.to_string().contains(says) => {}
            described => anyhow::bail!("{says}: {described:?}"),
        }
        self.peer.relay().forget_rules();
        Ok(())
    }

    /// The methods that the provider has called so far.
    fn methods(&self) -> Vec<String> {
        let bodies = self.peer.relay().seen().into_iter().map(|seen| seen.body);
        bodies.filter_map(|body| Some(body.split("<Body><").nth(1)?.split(' ').next()?.to_owned())).collect()
    }

    /// Answers calls of this method.
    fn answer(&self, method: &'static str, status: u16, body: &str) {
        let does = Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        self.peer.relay().rule(move |seen| seen.body.contains(&format!("<Body><{method} ")), does);
    }
}

async fn describe(provider: &dyn Provider, id: &str) -> Result<Result<Stage, Error>> {
    let described = provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
    Ok(described.map(|vm| vm.stage))
}

async fn refused(provider: &dyn Provider, own: &OwnVm) -> Result<Error> {
    provider.delete(own).await.err().context("it was deleted")
}

fn envelope(inside: &str) -> String {
    format!(
        r#"<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>{inside}</soapenv:Body></soapenv:Envelope>"#
    )
}

fn fault(kind: &str) -> String {
    envelope(&format!(
        r#"<soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>No.</faultstring><detail><{kind}Fault xsi:type="{kind}"/></detail></soapenv:Fault>"#
    ))
}

#[test]
fn a_deletion_powers_a_vm_off_and_destroys_it() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make(&Machine::named(&name)).await?;
        let provider = cloud.settings().open()?;
        for step in ["PowerOffVM_Task", "Destroy_Task"] {
            let own = own(&*provider, &CLOUD, &id.to_uppercase(), "web").await?;
            ensure!(own.vm().created.is_some(), "it has no date");
            let accepted = provider.delete(&own).await?;
            ensure!(!accepted.look_after.is_zero(), "it asks again at once");
            assert_eq!(cloud.methods().last().map(String::as_str), Some(step));
        }
        wait::eventually("it is gone", DEADLINE, async || {
            let gone = describe(&*provider, &id).await?;
            ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
            Ok(())
        })
        .await?;
        let left = cloud.peer.left(&id, &name).await?;
        ensure!(!left.vm && left.own == 0, "{left:?}");
        let methods = cloud.methods();
        let (look, absent) = (
            ["FindAllByUuid", "RetrievePropertiesEx"],
            [
                "FindAllByUuid",
                "FindByInventoryPath",
                "HasPrivilegeOnEntities",
                "RetrieveEntityPermissions",
                "RetrievePropertiesEx",
            ],
        );
        assert_eq!(methods[..2], ["RetrieveServiceContent", "Login"]);
        assert_eq!(methods[2..7], [&look[..], &look, &["PowerOffVM_Task"]].concat());
        assert_eq!(methods[7..12], [&look[..], &look, &["Destroy_Task"]].concat());
        assert_eq!(methods[methods.len() - 5..], absent);
        Ok(())
    })
}

#[test]
fn a_users_disk_is_never_deleted_with_a_vm() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        for (pod, machine, says) in [
            ("disk", Machine { special: Special::UserDisk, ..Machine::default() }, "detach the disk"),
            (
                "snapshot",
                Machine { special: Special::Snapshot, stopped: true, ..Machine::default() },
                "delete the snapshots",
            ),
            ("template", Machine { special: Special::Template, ..Machine::default() }, "template"),
        ] {
            let name = vm_name(pod);
            let id = cloud.peer.make(&Machine { name: &name, folder: PATH, ..machine }).await?;
            let provider = cloud.settings().open()?;
            let own = own(&*provider, &CLOUD, &id, pod).await?;
            let error = refused(&*provider, &own).await?;
            ensure!(error.class == ErrorClass::Refused && error.to_string().contains(says), "{error}");
            let left = cloud.peer.left(&id, &name).await?;
            ensure!(
                left.vm && left.own > 0 && left.data == u64::from(machine.special == Special::UserDisk),
                "{left:?}"
            );
        }
        let methods = cloud.methods();
        ensure!(!methods.iter().any(|method| method.ends_with("_Task")), "{methods:?}");
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let (name, peer) = (vm_name("web"), &cloud.peer);
        let id = peer.make(&Machine::named(&name)).await?;

        // vCenter hides objects that the user may not read.
        peer.grant(USER, PATH, &[], true).await?;
        cloud.doubted(&id, ErrorClass::Unauthorized, "GOVC_FOLDER").await?;
        peer.grant(USER, PATH, &["System.View"], true).await?;
        peer.grant(USER, PATH, &PRIVILEGES, false).await?;
        cloud.doubted(&id, ErrorClass::Unauthorized, "does not propagate").await?;
        peer.grant(USER, PATH, &PRIVILEGES, true).await?;
        assert_eq!(cloud.describe(&id).await?, Ok(Stage::Present));
        peer.behave(&id, Behavior::Hidden).await?;
        cloud.doubted(&id, ErrorClass::Transient, "lists the VM").await?;
        cloud.answer(
            "HasPrivilegeOnEntities",
            200,
            &envelope(r#"<HasPrivilegeOnEntitiesResponse xmlns="urn:vim25"/>"#),
        );
        cloud.doubted(&id, ErrorClass::Unauthorized, "System.Read").await?;
        peer.page_size(1).await?;
        peer.make(&Machine::named(&vm_name("another"))).await?;
        peer.relay().rule(|seen| seen.body.contains("ContinueRetrieve"), Does::CutOff);
        cloud.doubted(&id, ErrorClass::Transient, "").await?;
        peer.behave(&id, Behavior::Well).await?;

        let empty = envelope(r#"<FindAllByUuidResponse xmlns="urn:vim25"/>"#);
        let other = envelope(r#"<FindByUuidResponse xmlns="urn:vim25"/>"#);
        for (status, body, class) in [
            (200, "<html>hello", ErrorClass::Transient),
            (200, "<html/>", ErrorClass::Transient),
            (200, "", ErrorClass::Transient),
            (200, &*other, ErrorClass::Transient),
            (200, &envelope(""), ErrorClass::Transient),
            (404, "<html>not found</html>", ErrorClass::Invalid),
            (503, "no healthy upstream", ErrorClass::Transient),
            (500, &fault("NoPermission"), ErrorClass::Unauthorized),
            (500, &fault("ManagedObjectNotFound"), ErrorClass::Transient),
            (500, &fault("NotFound"), ErrorClass::Transient),
            (500, &fault("NotAuthenticated"), ErrorClass::Unauthorized),
            // The list still has it.
            (200, &empty, ErrorClass::Transient),
        ] {
            cloud.answer("FindAllByUuid", status, body);
            cloud.doubted(&id, class, "").await?;
        }
        cloud.answer("RetrievePropertiesEx", 500, &fault("ManagedObjectNotFound"));
        cloud.doubted(&id, ErrorClass::Transient, "").await?;
        cloud.answer(
            "RetrievePropertiesEx",
            200,
            &envelope(r#"<RetrievePropertiesExResponse xmlns="urn:vim25"/>"#),
        );
        cloud.doubted(&id, ErrorClass::Transient, "does not show it").await?;
        cloud.answer("RetrievePropertiesEx", 500, &fault("InvalidProperty"));
        cloud.doubted(&id, ErrorClass::Invalid, "6.7").await?;

        // The VM's host or its datastore is down.
        peer.behave(&id, Behavior::Forgets).await?;
        cloud.doubted(&id, ErrorClass::Transient, "does not know the UUID of a pod VM").await
    })
}

#[test]
fn one_list_of_the_folder_proves_the_absence_of_many_vms() -> Result<()> {
    const LIST: &str = "<Body><RetrievePropertiesEx ";
    run(async {
        let cloud = Stand::start().await?;
        cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        cloud.peer.relay().rule(|seen| seen.body.contains(LIST), Does::Delay(Duration::from_secs(2)));
        let provider = cloud.settings().open()?;
        let ids = (0..20).map(|number| format!("0dd2f0c5-6a3d-44a7-9b5e-{number:012}"));
        let all = try_join_all(ids.map(async |id| describe(&*provider, &id).await)).await?;
        let is_absent = |error: &Error| error.class == ErrorClass::NotFound;
        ensure!(all.iter().all(|it| it.as_ref().is_err_and(is_absent)), "{all:?}");
        // One for the first of them, one for those whose search ended during it, and more on a slow machine.
        let lists = cloud.methods().iter().filter(|it| *it == "RetrievePropertiesEx").count();
        ensure!(lists <= 6, "{lists} lists");
        Ok(())
    })
}

#[test]
fn a_vm_is_searched_in_any_folder_of_its_own_vcenter_only() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let (name, peer) = (vm_name("web"), &cloud.peer);
        let about = peer.about().await?;
        let url = format!("http://{}/sdk", peer.relay().address());
        let at = async |folder: &str, host: Option<&str>, id: &str| {
            let address = format!("{url} {folder}");
            let recorded = Recorded { address: &address, host, moved: None };
            describe(&*cloud.settings().open_at(Some(recorded))?, id).await
        };
        let absent = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
        let gone = at(PATH, Some(&about.id), absent).await?.err().context("it is there")?;
        assert_eq!(gone.class, ErrorClass::NotFound);
        let other = at(PATH, Some("another"), absent).await?.err().context("it is there")?;
        ensure!(
            other.class == ErrorClass::Invalid && other.to_string().contains("another vCenter"),
            "{other}"
        );
        let unknown = at(PATH, None, absent).await?.err().context("it is there")?;
        assert_eq!(unknown.class, ErrorClass::Invalid);
        // A folder that the settings no longer name, in which the user may see nothing any more.
        let hidden = at(OTHER_PATH, Some(&about.id), absent).await?.err().context("it is there")?;
        assert_eq!(hidden.class, ErrorClass::Unauthorized);
        // An administrator moved it.
        let moved = peer.make(&Machine { name: &name, folder: OTHER_PATH, ..Machine::default() }).await?;
        peer.grant(USER, OTHER_PATH, &["System.Read"], true).await?;
        assert_eq!(at(PATH, Some(&about.id), &moved).await?, Ok(Stage::Present));
        let provider = cloud.settings().open()?;
        let own_vm = own(&*provider, &CLOUD, &moved, "web").await?;
        let error = refused(&*provider, &own_vm).await?;
        assert_eq!(error.class, ErrorClass::Unauthorized, "{error}");
        // An administrator gave it the UUID of a pod VM.
        let twice = vm_name("twice");
        let id = peer.make(&Machine::named(&twice)).await?;
        peer.make(&Machine { name: "another", uuid: &id, folder: PATH, ..Machine::default() }).await?;
        cloud.doubted(&id, ErrorClass::Refused, "BIOS UUID").await
    })
}

#[test]
fn a_failed_deletion_is_reported_and_retried() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let name = vm_name("web");
        let id = cloud.peer.make(&Machine { stopped: true, ..Machine::named(&name) }).await?;
        cloud.peer.behave(&id, Behavior::Fails).await?;
        let provider = cloud.settings().open()?;
        let own = own(&*provider, &CLOUD, &id, "web").await?;
        provider.delete(&own).await?;
        let error = refused(&*provider, &own).await?;
        ensure!(error.class == ErrorClass::Refused && error.to_string().contains("FileLocked"), "{error}");
        ensure!(error.message.for_log().contains("a file is locked"), "{}", error.message.for_log());
        cloud.peer.behave(&id, Behavior::Well).await?;
        refused(&*provider, &own).await?;
        wait::eventually("it is gone", DEADLINE, async || {
            ensure!(!cloud.peer.left(&id, &name).await?.vm);
            Ok(())
        })
        .await
    })
}

#[test]
fn a_session_that_ended_is_replaced_once_and_a_refused_user_is_not_tried_again_soon() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let provider = cloud.settings().open()?;
        for logins in [1, 2, 3] {
            assert_eq!(describe(&*provider, &id).await?, Ok(Stage::Present));
            assert_eq!(describe(&*provider, &id).await?, Ok(Stage::Present));
            assert_eq!(cloud.peer.about().await?.logins, logins);
            cloud.peer.expire().await?;
        }
        let all = try_join_all((0..20).map(|_| describe(&*provider, &id))).await?;
        ensure!(all.iter().all(|stage| *stage == Ok(Stage::Present)), "{all:?}");
        assert_eq!(cloud.peer.about().await?.logins, 4, "all share one session");

        // vCenter locks out a user after a few wrong passwords.
        let provider = cloud.with("GOVC_PASSWORD", "wrong+password").open()?;
        // A failed login counts for all callers for 2 s anyway.
        for _ in 0..5 {
            let error = describe(&*provider, &id).await?.err().context("it is described")?;
            assert_eq!(error.class, ErrorClass::Unauthorized);
            let told = error.message.for_log();
            ensure!(!told.contains("wrong+password") && told.contains("InvalidLogin"), "{told}");
            wait::second_after(Timestamp::now()).await?;
        }
        assert_eq!(cloud.peer.about().await?.logins, 5);
        Ok(())
    })
}

#[test]
fn all_folders_of_a_vcenter_share_the_session_of_a_user() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let host = cloud.peer.about().await?.id;
        let url = format!("http://{}/sdk", cloud.peer.relay().address());
        let openers = Openers::default();
        let open = |settings: &Settings, folder: &str| {
            let address = format!("{url} {folder}");
            let recorded = Recorded { address: &address, host: Some(&host), moved: None };
            settings.open_by(&openers, Some(recorded))
        };
        let folders = [PATH, OTHER_PATH, "/DC0/vm/a", "/DC0/vm/b", "/DC0/vm/c"];
        let wrong = cloud.with("GOVC_PASSWORD", "wrong+password");
        for (settings, works, logins) in [(cloud.settings(), true, 1), (wrong, false, 2)] {
            let providers: Vec<_> = folders.iter().map(|it| open(&settings, it)).collect::<Result<_, _>>()?;
            let all = try_join_all(providers.iter().map(|it| describe(&**it, &id))).await?;
            ensure!(all.iter().all(|stage| stage.is_ok() == works), "{all:?}");
            assert_eq!(cloud.peer.about().await?.logins, logins);
        }
        Ok(())
    })
}

#[test]
fn a_list_whose_session_ends_in_the_middle_may_work_later() -> Result<()> {
    const NEXT: &str = "<Body><ContinueRetrievePropertiesEx ";
    run(async {
        let cloud = Stand::start().await?;
        for pod in ["web", "db"] {
            cloud.peer.make(&Machine::named(&vm_name(pod))).await?;
        }
        cloud.peer.page_size(1).await?;
        let provider = cloud.settings().open()?;
        let list = async || {
            let mut count = 0;
            provider.list(&mut |page| count += page.len()).await.map(|()| count)
        };
        assert_eq!(list().await, Ok(2));
        let asked = || cloud.methods().iter().filter(|it| *it == "ContinueRetrievePropertiesEx").count();
        let before = asked();
        cloud.peer.relay().rule(|seen| seen.body.contains(NEXT), Does::Delay(Duration::from_secs(2)));
        let ends = async {
            let what = "the second page is asked for";
            let is_asked = async || {
                ensure!(asked() > before);
                Ok(())
            };
            wait::eventually(what, DEADLINE, is_asked).await?;
            cloud.peer.expire().await
        };
        let (listed, ended) = tokio::join!(list(), ends);
        ended?;
        ensure!(listed.as_ref().is_err_and(|error| error.class == ErrorClass::Transient), "{listed:?}");
        cloud.peer.relay().forget_rules();
        assert_eq!(list().await, Ok(2));
        Ok(())
    })
}

#[test]
fn the_certificate_is_the_one_with_the_thumbprint() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        let id = cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let about = cloud.peer.about().await?;
        let at = async |thumbprint: Option<&str>| {
            let mut settings = cloud.with("GOVC_URL", &format!("user:pass@{}", about.address));
            if let Some(thumbprint) = thumbprint {
                settings.secret.insert("GOVC_THUMBPRINT".to_owned(), thumbprint.to_owned());
            }
            describe(&*settings.open()?, &id).await
        };
        for thumbprint in [&about.sha1, &about.sha256, &about.sha256.to_lowercase().replace(':', "")] {
            assert_eq!(at(Some(thumbprint)).await?, Ok(Stage::Present));
        }
        let logins = cloud.peer.about().await?.logins;
        let wrong = format!("00{}", &about.sha1[2..]);
        for (thumbprint, says) in [(None, "GOVC_THUMBPRINT"), (Some(&*wrong), "fingerprint")] {
            let error = at(thumbprint).await?.err().context("it is trusted")?;
            ensure!(error.class == ErrorClass::Invalid && error.to_string().contains(says), "{error}");
            ensure!(!error.message.for_log().contains("pass"), "{}", error.message.for_log());
        }
        assert_eq!(cloud.peer.about().await?.logins, logins, "nobody else gets the password");
        Ok(())
    })
}

#[test]
fn check_names_the_privilege_that_is_missing_and_deletes_nothing() -> Result<()> {
    run(async {
        let cloud = Stand::start().await?;
        cloud.peer.make(&Machine::named(&vm_name("web"))).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&report) == ["works", "works", "works"], "{report}");
        ensure!(findings(&report)[1].1.contains("1 VM named"), "{report}");
        cloud.peer.grant(USER, PATH, &PRIVILEGES[..2], true).await?;
        let (output, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(!output.status.success() && outcomes(&report) == ["works", "works", "fails"], "{report}");
        ensure!(findings(&report)[2].1.contains(PRIVILEGES[2]), "{report}");
        cloud.peer.grant(USER, PATH, &PRIVILEGES, false).await?;
        let (_, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(findings(&report)[1].1.contains("propagate"), "{report}");
        cloud.peer.user(USER, "another").await?;
        let (_, report) = check(cloud.dir.path(), &cloud.settings(), &[]).await?;
        ensure!(outcomes(&report) == ["fails", "untried", "untried"], "{report}");
        ensure!(!report.to_string().contains(PASSWORD), "{report}");
        ensure!(!cloud.methods().iter().any(|method| method.ends_with("_Task")), "check deletes");
        Ok(())
    })
}

#[test]
fn a_vm_of_vsphere_is_deleted_with_its_pod() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Vsphere::start(&dir.join("vsphere"), &PRIVILEGES).await?;
        let settings = Settings::vsphere(&peer);
        let _ = cloud.set(peer);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let (scene, peer) = (alone.scene(), cloud.get().context("the vCenter was started")?);
        let (owner, name) = (scene.pods.run("web").await?, vm_name("web"));
        let id = peer.make(&Machine::named(&name)).await?;
        let peerpod = scene.caa.record(&owner, "vsphere", &id).await?.name_any();
        scene.pods.delete("web").await?;
        wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
        let left = peer.left(&id, &name).await?;
        ensure!(!left.vm && left.own == 0, "{left:?}");
        Ok(())
    })
}
