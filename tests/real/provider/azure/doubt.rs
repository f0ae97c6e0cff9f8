//! Answers that never count as absence.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{Claim, ErrorClass, InstanceId, Stage, VmRef, azure::CLOUD};
use peers::{
    Does,
    azure::{
        ACTIONS, Behavior, CLIENT, GROUP, OTHER_GROUP, OTHER_SUBSCRIPTION, OTHER_TENANT, Principal,
        SUBSCRIPTION, Vm,
    },
};
use serde_json::json;
use testbed::vm_name;

use super::{API, Stand, answer, refusal};
use crate::support::run;

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
        let headers = vec![("retry-after", "600".to_owned())];
        azure.rule(API, Does::Answer { status: 429, headers, body: refusal("TooManyRequests") });
        azure.doubted("another subscription's limit", &id, ErrorClass::Refused).await?;
        let own = id.replace(OTHER_SUBSCRIPTION, SUBSCRIPTION);
        let limited = ErrorClass::Throttled { retry_after: Some(Duration::from_secs(600)) };
        azure.doubted("the own subscription's limit", &own, limited).await?;
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
fn the_disk_of_a_vm_counts_although_the_list_omits_it() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let provider = azure.open()?;
        let id = azure.peer.make(&Vm { detach: true, ..Vm::named(&vm_name("web")) }).await?;
        azure.peer.remove(&id).await?;
        let disk = id.replace("virtualMachines", "disks") + "-disk";
        azure.peer.behave(&disk, Behavior::Unlisted).await?;
        let mut listed = Vec::new();
        provider.list(&mut |page| listed.extend(page)).await?;
        let mut kinds: Vec<_> = listed.iter().map(|it| it.kind.as_str()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["address", "interface"], "{listed:?}");
        let name = id.rsplit('/').next().context("it has a name")?;
        ensure!(listed.iter().all(|it| it.vm == Some(VmRef::Name(name.to_owned()))), "{listed:?}");

        let found = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await?;
        assert_eq!(found.belongings, [disk.to_lowercase()]);
        azure.peer.remove(&disk).await?;
        azure.doubted("no disk is left", &id, ErrorClass::NotFound).await
    })
}

#[test]
fn a_vm_is_absent_only_if_its_disk_is() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        let id = azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        azure.peer.remove(&id).await?;
        azure.doubted("nothing is left", &id, ErrorClass::NotFound).await?;
        azure.doubts("/disks/", &id).await?;
        azure.rule("/disks/", Does::CutOff);
        azure.doubted("half an answer", &id, ErrorClass::Transient).await?;
        azure.peer.relay().forget_rules();
        let rest: Vec<_> = ACTIONS.into_iter().filter(|it| !it.ends_with("/disks/read")).collect();
        azure.peer.principal(&Principal::operator(&rest)).await?;
        azure.doubted("no right to read disks", &id, ErrorClass::Unauthorized).await
    })
}

#[test]
fn a_list_counts_only_with_its_last_page() -> Result<()> {
    run(async {
        let azure = Stand::start().await?;
        azure.peer.make(&Vm::named(&vm_name("web"))).await?;
        let empty = json!({ "value": [], "nextLink": format!("{}/more", azure.peer.url()) });
        for (what, does, class) in [
            ("a page that fails", answer(503, ""), ErrorClass::Transient),
            ("half a page", Does::CutOff, ErrorClass::Transient),
            ("a page that is no list", answer(200, "{}"), ErrorClass::Transient),
            ("a list of nothing known", answer(404, refusal("ResourceNotFound")), ErrorClass::Invalid),
            ("a further page that does not exist", answer(200, empty.to_string()), ErrorClass::Invalid),
        ] {
            azure.rule("/resources?", does);
            let listed = azure.open()?.list(&mut |_| {}).await;
            ensure!(listed.as_ref().is_err_and(|error| error.class == class), "{what}: {listed:?}");
            azure.peer.relay().forget_rules();
        }
        // Its name begins with the address of the API.
        let elsewhere = json!({ "value": [], "nextLink": format!("{}.example/more", azure.peer.url()) });
        azure.rule("/resources?", answer(200, elsewhere.to_string()));
        let error = azure.open()?.list(&mut |_| {}).await.err().context("it followed")?;
        ensure!(error.to_string().contains("is not the list"), "{error}");
        Ok(())
    })
}
