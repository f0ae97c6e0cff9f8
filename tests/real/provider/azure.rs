//! Azure: answers that never count as absence, refusals, the operator's credentials, and a deletion by the operator.

use std::{cell::OnceCell, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use kube::ResourceExt as _;
use peerpod_operator::provider::{Claim, Error, ErrorClass, InstanceId, Provider, Stage, azure::CLOUD};
use peers::{
    Does,
    azure::{
        ACTIONS, ASK_FOR_RIGHTS, Azure, Behavior, CLIENT, GROUP, OTHER_GROUP, OTHER_SUBSCRIPTION,
        OTHER_TENANT, Principal, SUBSCRIPTION, TENANT, Vm,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::{
    check::{check, findings},
    own,
};
use crate::support::{PROGRAM, alone_with, run};

const ROLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/provider/azure/role.json"));

/// The start of the paths of Resource Manager.
const API: &str = "/subscriptions/";

/// Parts of the paths of what comes with a VM.
const BELONGINGS: [&str; 3] = ["/disks/", "/networkinterfaces/", "/publicipaddresses/"];

/// Answers that look like absence, and what they mean.
const NO_ABSENCE: [(u16, &str, ErrorClass); 10] = [
    (404, "ResourceGroupNotFound", ErrorClass::Invalid),
    (404, "SubscriptionNotFound", ErrorClass::Unauthorized),
    (404, "AuthorizationFailed", ErrorClass::Unauthorized),
    (403, "AuthorizationFailed", ErrorClass::Unauthorized),
    (404, "NotFound", ErrorClass::Transient),
    (429, "RetryableError", ErrorClass::Transient),
    (404, "InvalidResourceType", ErrorClass::Invalid),
    (410, "ResourceNotFound", ErrorClass::Invalid),
    (302, "ResourceNotFound", ErrorClass::Invalid),
    (503, "ServiceUnavailable", ErrorClass::Transient),
];

struct Stand {
    dir: TempDir,
    peer: Azure,
}

impl Stand {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let peer = Azure::start(dir.path()).await?;
        Ok(Self { dir, peer })
    }

    fn settings(&self) -> Settings {
        Settings::azure(&self.peer.url())
    }

    /// The provider, new each time: it has no token.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    async fn doubted(&self, what: &str, id: &str, class: ErrorClass) -> Result<()> {
        match self.describe(id).await? {
            Err(error) if error.class == class => Ok(()),
            described => bail!("{what}: {described:?}"),
        }
    }

    /// Fails unless the VM is in doubt while requests for such a path get one of these answers.
    async fn doubts(&self, part: &'static str, id: &str) -> Result<()> {
        for (status, code, class) in NO_ABSENCE {
            self.rule(part, answer(status, refusal(code)));
            self.doubted(&format!("{status} {code} of {part}"), id, class).await?;
            self.peer.relay().forget_rules();
        }
        Ok(())
    }

    fn rule(&self, part: &'static str, does: Does) {
        self.peer.relay().rule(move |seen| seen.path.contains(part), does);
    }

    /// The requests to Resource Manager that came so far.
    fn requests(&self) -> Vec<String> {
        let seen = self.peer.relay().seen().into_iter().filter(|seen| seen.path.starts_with(API));
        seen.map(|seen| seen.method).collect()
    }

    /// The names of all resources.
    async fn names(&self) -> Result<Vec<String>> {
        let all = self.peer.resources().await?;
        Ok(all.iter().filter_map(|id| Some(id.rsplit_once('/')?.1.to_owned())).collect())
    }
}

fn answer(status: u16, body: impl Into<String>) -> Does {
    Does::Answer { status, headers: Vec::new(), body: body.into() }
}

fn refusal(code: &str) -> String {
    json!({ "error": { "code": code, "message": "no" } }).to_string()
}

/// Waits until the provider says that nothing is left.
async fn vanishes(provider: &dyn Provider, id: &str) -> Result<()> {
    let id = InstanceId::of(&CLOUD, id)?;
    wait::eventually("it is gone", DEADLINE, async || {
        let described = provider.describe(&id, &Claim::default()).await;
        ensure!(described.as_ref().is_err_and(|error| error.class == ErrorClass::NotFound), "{described:?}");
        Ok(())
    })
    .await
}

#[test]
fn a_deletion_takes_six_requests_and_one_for_a_token() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let name = vm_name("web");
        let id = azure.peer.make(&Vm::named(&name)).await?;
        let provider = azure.open()?;
        let accepted = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        ensure!(!accepted.look_after.is_zero(), "it asks again at once");
        wait::eventually("Azure deletes it", DEADLINE, async || {
            let names = azure.names().await?;
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })
        .await?;
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(azure.requests(), ["GET", "DELETE", "GET", "GET", "GET", "GET"]);
        let tokens = azure.peer.relay().seen().iter().filter(|seen| seen.path.ends_with("/token")).count();
        assert_eq!(tokens, 1);
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let name = vm_name("web");
        let place = Vm { subscription: OTHER_SUBSCRIPTION, group: OTHER_GROUP, ..Vm::named(&name) };
        let id = azure.peer.make(&place).await?;
        assert_eq!(azure.describe(&id).await?, Ok(Stage::Present), "the settings name another place");

        let nobodys = "99999999-9999-9999-9999-999999999999";
        azure.peer.group(nobodys, OTHER_TENANT, GROUP).await?;
        for (what, from, to, class) in [
            ("an unknown group", OTHER_GROUP, "nowhere", ErrorClass::Invalid),
            ("an unknown subscription", OTHER_SUBSCRIPTION, CLIENT, ErrorClass::Unauthorized),
            ("another tenant's subscription", OTHER_SUBSCRIPTION, nobodys, ErrorClass::Unauthorized),
        ] {
            azure.doubted(what, &id.replace(from, to), class).await?;
        }
        azure.doubts("/virtualmachines/", &id).await?;
        for (status, body, class) in [
            (404, "<html>not found", ErrorClass::Invalid),
            (200, "{}", ErrorClass::Transient),
            (200, r#"{"id":"/subscriptions/another","name":"a"}"#, ErrorClass::Transient),
        ] {
            azure.rule(API, answer(status, body));
            azure.doubted("a proxy's answer", &id, class).await?;
            azure.peer.relay().forget_rules();
        }
        azure.rule(API, Does::CutOff);
        azure.doubted("half an answer", &id, ErrorClass::Transient).await?;
        azure.peer.relay().forget_rules();

        azure.peer.principal(&Principal::operator(&[])).await?;
        azure.doubted("no rights", &id, ErrorClass::Unauthorized).await?;
        azure.peer.principal(&Principal { secret: "another", ..Principal::operator(&ACTIONS) }).await?;
        azure.doubted("a secret that was replaced", &id, ErrorClass::Unauthorized).await?;
        azure.peer.principal(&Principal { tenant: OTHER_TENANT, ..Principal::operator(&ACTIONS) }).await?;
        azure.doubted("the application of another tenant", &id, ErrorClass::Unauthorized).await?;
        ensure!(azure.peer.resources().await?.contains(&id), "the VM is gone");
        Ok(())
    })
}

#[test]
fn remains_of_a_vm_count_although_the_list_omits_them() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let provider = azure.open()?;
        let id = azure.peer.make(&Vm { detach: true, ..Vm::named(&vm_name("web")) }).await?;
        azure.peer.remove(&id).await?;
        let mut left = azure.peer.resources().await?;
        ensure!(left.len() == 3, "{left:?}");
        for resource in &left {
            azure.peer.behave(resource, Behavior::Unlisted).await?;
        }
        let mut listed = Vec::new();
        provider.list(&mut |page| listed.extend(page)).await?;
        ensure!(listed.is_empty(), "{listed:?}");

        let parsed = InstanceId::of(&CLOUD, &id)?;
        while let Some(last) = left.last() {
            let mut found = provider.describe(&parsed, &Claim::default()).await?.belongings;
            found.sort();
            assert_eq!(found, left.iter().map(|id| id.to_lowercase()).collect::<Vec<_>>());
            azure.peer.remove(last).await?;
            left.pop();
        }
        azure.doubted("nothing is left", &id, ErrorClass::NotFound).await
    })
}

#[test]
fn a_vm_is_absent_only_if_all_that_comes_with_it_is() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let id = azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        azure.peer.remove(&id).await?;
        azure.doubted("nothing is left", &id, ErrorClass::NotFound).await?;
        for part in BELONGINGS {
            azure.doubts(part, &id).await?;
            azure.rule(part, Does::CutOff);
            azure.doubted("half an answer", &id, ErrorClass::Transient).await?;
            azure.peer.relay().forget_rules();
        }
        for missing in ["disks", "networkInterfaces", "publicIPAddresses"] {
            let rest: Vec<_> =
                ACTIONS.into_iter().filter(|it| !it.ends_with(&format!("/{missing}/read"))).collect();
            azure.peer.principal(&Principal::operator(&rest)).await?;
            azure.doubted(missing, &id, ErrorClass::Unauthorized).await?;
        }
        Ok(())
    })
}

#[test]
fn a_list_counts_only_with_its_last_page() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        let empty = json!({ "value": [], "nextLink": format!("{}/more", azure.peer.url()) });
        let elsewhere = json!({ "value": [], "nextLink": "http://127.0.0.1.example/more" });
        for (what, does, class) in [
            ("a page that fails", answer(503, ""), ErrorClass::Transient),
            ("half a page", Does::CutOff, ErrorClass::Transient),
            ("a page that is no list", answer(200, "{}"), ErrorClass::Transient),
            ("a list of nothing known", answer(404, refusal("ResourceNotFound")), ErrorClass::Invalid),
            ("a page at another host", answer(200, elsewhere.to_string()), ErrorClass::Transient),
            ("a further page that does not exist", answer(200, empty.to_string()), ErrorClass::Invalid),
        ] {
            azure.rule("/resources?", does);
            let listed = azure.open()?.list(&mut |_| {}).await;
            ensure!(listed.as_ref().is_err_and(|error| error.class == class), "{what}: {listed:?}");
            azure.peer.relay().forget_rules();
        }
        Ok(())
    })
}

#[test]
fn an_interface_that_azure_holds_is_deleted_later_and_its_address_after_it() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let (name, other) = (vm_name("web"), vm_name("web"));
        let id = azure.peer.make(&Vm::named(&name)).await?;
        azure.peer.make(&Vm::named(&other)).await?;
        azure.peer.behave(&id, Behavior::HoldsInterface).await?;
        let provider = azure.open()?;
        provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        wait::eventually("the VM is gone", DEADLINE, async || {
            ensure!(matches!(azure.describe(&id).await?, Ok(Stage::Remains(_))));
            Ok(())
        })
        .await?;
        let refused = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await;
        ensure!(refused.as_ref().is_err_and(|error| error.class == ErrorClass::Refused), "{refused:?}");

        let interface =
            id.replace("Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces") + "-net";
        azure.peer.behave(&interface, Behavior::Well).await?;
        wait::eventually("all of it is deleted", DEADLINE, async || {
            if let Ok(own) = own(&*provider, &CLOUD, &id, "web").await {
                provider.delete(&own).await?;
            }
            let names = azure.names().await?;
            ensure!(!names.iter().any(|it| it.starts_with(&name)), "{names:?}");
            Ok(())
        })
        .await?;
        vanishes(&*provider, &id).await?;
        assert_eq!(
            azure.names().await?.iter().filter(|it| it.starts_with(&other)).count(),
            4,
            "another Pod's"
        );
        Ok(())
    })
}

#[test]
fn a_locked_vm_stays_and_the_refusal_gives_the_reason() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let name = vm_name("web");
        let id = azure.peer.make(&Vm::named(&name)).await?;
        azure.peer.behave(&id, Behavior::Locked).await?;
        let provider = azure.open()?;
        let refused =
            provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await.err().context("deleted")?;
        ensure!(
            refused.class == ErrorClass::Refused && refused.to_string().contains("ScopeLocked"),
            "{refused}"
        );
        for private in [TENANT, SUBSCRIPTION, GROUP, "127.0.0.1", &name] {
            ensure!(!refused.to_string().contains(private), "{refused}");
        }
        Ok(())
    })
}

#[test]
fn a_token_that_is_refused_is_replaced() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let id = azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        let (provider, parsed) = (azure.open()?, InstanceId::of(&CLOUD, &id)?);
        let describe =
            async || provider.describe(&parsed, &Claim::default()).await.map_err(|error| error.class);
        ensure!(describe().await.is_ok());
        azure.peer.expire().await?;
        assert_eq!(describe().await.err(), Some(ErrorClass::Unauthorized));
        ensure!(describe().await.is_ok());
        Ok(())
    })
}

/// Fails unless `check` finds nothing wrong.
async fn works(azure: &Stand, what: &str, settings: &Settings, environment: &[(&str, &str)]) -> Result<()> {
    let (output, cloud) = check(azure.dir.path(), settings, environment).await?;
    let works = findings(&cloud).iter().filter(|(outcome, _)| outcome == "works").count();
    ensure!(output.status.success() && works == 3, "{what}: {cloud}");
    Ok(())
}

#[test]
fn the_documented_role_is_what_these_tests_grant() -> Result<()> {
    let role: Value = serde_json::from_str(ROLE)?;
    let actions: Vec<_> = ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).collect();
    assert_eq!(role["Actions"], json!(actions));
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/providers/azure.md"))?;
    ensure!(
        page.contains(ROLE),
        "docs/src/providers/azure.md has another role than src/provider/azure/role.json"
    );
    Ok(())
}

#[test]
fn check_names_the_one_permission_that_is_missing() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        works(&azure, "the role", &azure.settings(), &[]).await?;
        for missing in ACTIONS {
            let rest: Vec<_> =
                ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).filter(|it| *it != missing).collect();
            azure.peer.principal(&Principal::operator(&rest)).await?;
            let (output, cloud) = check(azure.dir.path(), &azure.settings(), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {cloud}");
            let named = |(outcome, text): &(String, String)| outcome == "fails" && text.contains(missing);
            ensure!(findings(&cloud).iter().any(named), "{missing}: {cloud}");
        }
        azure.peer.principal(&Principal::operator(&ACTIONS)).await?;
        let (output, cloud) = check(azure.dir.path(), &azure.settings(), &[]).await?;
        let untried =
            |(outcome, text): &(String, String)| outcome == "untried" && text.contains(ASK_FOR_RIGHTS);
        ensure!(output.status.success() && findings(&cloud).iter().any(untried), "{cloud}");
        ensure!(!azure.requests().contains(&"DELETE".to_owned()), "check deletes");
        Ok(())
    })
}

#[test]
fn the_operator_is_an_application_or_the_machines_identity() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let (url, all) = (azure.peer.url(), ACTIONS.into_iter().chain([ASK_FOR_RIGHTS]).collect::<Vec<_>>());
        works(&azure, "a secret", &azure.settings(), &[]).await?;

        // The variables that the admission of workload identity sets. The Secret has nothing.
        let file = azure.dir.path().join("token");
        let path = file.display().to_string();
        let injected = [
            ("AZURE_CLIENT_ID", CLIENT),
            ("AZURE_TENANT_ID", TENANT),
            ("AZURE_FEDERATED_TOKEN_FILE", &path),
            ("AZURE_AUTHORITY_HOST", &url),
        ];
        let mut none = azure.settings();
        none.secret.clear();
        fs::write(&file, azure.peer.assertion(CLIENT, 60).await? + "\n")?;
        works(&azure, "workload identity", &none, &injected).await?;
        for (what, token, code) in [
            ("a token that ended", azure.peer.assertion(CLIENT, -1).await?, "AADSTS700024"),
            ("a token for another application", azure.peer.assertion("other", 60).await?, "AADSTS70021"),
        ] {
            fs::write(&file, token)?;
            let (output, cloud) = check(azure.dir.path(), &none, &injected).await?;
            assert_eq!(output.status.code(), Some(3), "{what}: {cloud}");
            ensure!(findings(&cloud)[0].1.contains(code), "{what}: {cloud}");
        }

        let metadata = [("AZURE_POD_IDENTITY_AUTHORITY_HOST", &*url)];
        for status in [404, 410] {
            azure.rule("/metadata/", answer(status, ""));
            let (_, cloud) = check(azure.dir.path(), &none, &metadata).await?;
            assert_eq!(cloud["class"], "transient", "the metadata service is being updated: {cloud}");
            azure.peer.relay().forget_rules();
        }
        let (_, cloud) = check(azure.dir.path(), &none, &metadata).await?;
        ensure!(findings(&cloud)[0].1.contains("managed identity"), "no machine has one yet: {cloud}");
        azure.peer.principal(&Principal { managed: true, secret: "", ..Principal::operator(&all) }).await?;
        works(&azure, "the only managed identity", &none, &metadata).await?;
        none.secret.insert("AZURE_CLIENT_ID".to_owned(), CLIENT.to_owned());
        works(&azure, "a managed identity of several", &none, &metadata).await
    })
}

#[test]
fn a_vm_of_any_subscription_is_deleted_with_its_pod() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &_| {
        let peer = Azure::start(&dir.join("azure")).await?;
        let settings = Settings::azure(&peer.url());
        let _ = cloud.set(peer);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(start, async |alone| {
        let (scene, peer) = (alone.scene(), cloud.get().context("the cloud was started")?);
        let data = "data-of-web";
        let mut recorded = Vec::new();
        let pods = ["web", "far", "left"];
        for pod in pods {
            let owner = scene.pods.run(pod).await?;
            let name = vm_name(pod);
            let vm = match pod {
                "web" => Vm { data_disk: Some(data), ..Vm::named(&name) },
                "far" => Vm { subscription: OTHER_SUBSCRIPTION, ..Vm::named(&name) },
                _ => Vm { detach: true, ..Vm::named(&name) },
            };
            let id = peer.make(&vm).await?;
            if vm.detach {
                // The VM's interface with an address and its disk stay. The list does not show the disk.
                peer.remove(&id).await?;
                let disk = id.replace("virtualMachines", "disks") + "-disk";
                peer.behave(&disk, Behavior::Unlisted).await?;
            }
            recorded.push(scene.caa.record(&owner, "azure", &id).await?.name_any());
        }
        for pod in pods {
            scene.pods.delete(pod).await?;
        }
        for peerpod in recorded {
            wait::gone(&scene.peerpods, &peerpod, DEADLINE).await?;
        }
        let left = peer.resources().await?;
        ensure!(left.len() == 1 && left[0].ends_with(data), "{left:?}");
        Ok(())
    })
}
