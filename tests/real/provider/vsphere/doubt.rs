//! Answers that never count as absence.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use peerpod_operator::provider::{
    Error, ErrorClass, Stage,
    cloud::RecordedPlace,
    vsphere::{CLOUD, PRIVILEGES},
};
use peers::{
    Does, Seen,
    vsphere::{Behavior, Machine, OTHER_PATH, PATH, USER},
};
use testbed::vm_name;

use super::{OF_LOGIN, Stand, describe, refused};
use crate::{provider::own, support::run};

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
        let nothing = envelope(r#"<RetrievePropertiesExResponse xmlns="urn:vim25"/>"#);
        cloud.answer("RetrievePropertiesEx", 200, &nothing);
        cloud.doubted(&id, ErrorClass::Transient, "not the folder").await?;
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
        // A misread answer would lead to the list, which still has it.
        for (status, body, class, says) in [
            (200, "<html>hello", ErrorClass::Transient, "is not the"),
            (200, "<html/>", ErrorClass::Transient, "is not the"),
            (200, "", ErrorClass::Transient, "is not the"),
            (200, &*other, ErrorClass::Transient, "is not the"),
            (200, &envelope(""), ErrorClass::Transient, "is not the"),
            (404, "<html>not found</html>", ErrorClass::Invalid, ""),
            (503, "no healthy upstream", ErrorClass::Transient, "503"),
            (500, &fault("NoPermission"), ErrorClass::Unauthorized, ""),
            (500, &fault("ManagedObjectNotFound"), ErrorClass::Transient, "ManagedObjectNotFound"),
            (500, &fault("NotFound"), ErrorClass::Transient, "NotFound"),
            (500, &fault("NotAuthenticated"), ErrorClass::Unauthorized, ""),
            (200, &empty, ErrorClass::Transient, "lists the VM"),
        ] {
            cloud.answer("FindAllByUuid", status, body);
            cloud.doubted(&id, class, says).await?;
        }
        cloud.answer("RetrievePropertiesEx", 500, &fault("ManagedObjectNotFound"));
        cloud.doubted(&id, ErrorClass::Transient, "ManagedObjectNotFound").await?;
        cloud.answer("RetrievePropertiesEx", 200, &nothing);
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
        let is_list = |seen: &Seen| seen.body.contains(LIST) && !seen.body.contains(OF_LOGIN);
        cloud.peer.relay().rule(is_list, Does::Delay(Duration::from_secs(2)));
        let provider = cloud.settings().open()?;
        let ids = (0..20).map(|number| format!("0dd2f0c5-6a3d-44a7-9b5e-{number:012}"));
        let all = try_join_all(ids.map(async |id| describe(&*provider, &id).await)).await?;
        let is_absent = |error: &Error| error.class == ErrorClass::NotFound;
        ensure!(all.iter().all(|it| it.as_ref().is_err_and(is_absent)), "{all:?}");
        // One for the first of them, one for those whose search ended during it, and more on a slow machine.
        let lists = cloud.peer.relay().seen().iter().filter(|seen| is_list(seen)).count();
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
        let at = async |folder: &str, vcenter: Option<&str>, id: &str| {
            let address = format!("{url} {folder}");
            let recorded = RecordedPlace::former(&address, vcenter);
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
