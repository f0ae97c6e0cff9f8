//! A name that leads to another vCenter, while the session with the former one and its connections go on.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use futures::FutureExt as _;
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Openers, Provider,
    cloud::RecordedPlace,
    vsphere::{CLOUD, PRIVILEGES},
};
use peers::{
    Does, HttpRelay,
    vsphere::{Machine, PATH, Vsphere},
};
use testbed::{
    Settings, vm_name,
    wait::{self, DEADLINE},
};
use tokio::sync::Notify;

use super::{forget, until_recorded};
use crate::support::{Alone, alone_beside, run};

/// The UUID of no VM.
const NONE: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

/// Two vCenters, and a name that leads to the first one.
struct Two {
    before: Vsphere,
    after: Vsphere,
    name: HttpRelay,
    settings: Settings,
}

impl Two {
    async fn start(dir: &Path) -> Result<Self> {
        let dirs = [dir.join("before"), dir.join("after")];
        let (before, after) =
            tokio::try_join!(Vsphere::start(&dirs[0], &PRIVILEGES), Vsphere::start(&dirs[1], &PRIVILEGES))?;
        let name = HttpRelay::start(before.relay().address()).await?;
        let mut settings = Settings::vsphere(&before);
        settings.config_map.insert("GOVC_URL".to_owned(), format!("http://{}", name.address()));
        Ok(Self { before, after, name, settings })
    }

    /// The address of the place in the record.
    fn address(&self) -> String {
        format!("http://{}/sdk {PATH}", self.name.address())
    }
}

/// Why the VM is not described, if it is not.
async fn missing(provider: &dyn Provider, id: &str) -> Result<Option<Error>> {
    Ok(provider.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await.err())
}

/// What a vCenter with this identity offers, in the words of the simulator.
fn content(identity: &str) -> String {
    let objects = [
        ("propertyCollector", "PropertyCollector", "propertyCollector"),
        ("sessionManager", "SessionManager", "SessionManager"),
        ("searchIndex", "SearchIndex", "SearchIndex"),
        ("authorizationManager", "AuthorizationManager", "AuthorizationManager"),
    ];
    let objects = objects.map(|(name, kind, id)| format!(r#"<{name} type="{kind}">{id}</{name}>"#)).concat();
    let about = format!(
        "<apiType>VirtualCenter</apiType><apiVersion>6.5</apiVersion><instanceUuid>{identity}</instanceUuid>"
    );
    let answer = format!("<returnval>{objects}<about>{about}</about></returnval>");
    let answer = format!("<RetrieveServiceContentResponse>{answer}</RetrieveServiceContentResponse>");
    format!("<Envelope><Body>{answer}</Body></Envelope>")
}

#[test]
fn an_answer_of_a_former_vcenter_proves_no_absence() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let two = Two::start(dir.path()).await?;
        let ids = [two.before.about().await?.id, two.after.about().await?.id];
        let (address, identity_changed) = (two.address(), Arc::new(Notify::new()));
        let recorded = RecordedPlace::current(&address, Some(&ids[0]), Arc::clone(&identity_changed));
        let openers = Openers::default();
        let provider = two.settings.open_by(&openers, Some(recorded))?;
        let provider = &*provider;
        // The keeper of the places asks it which vCenter answers.
        let keeper = two.settings.open_by(&openers, None)?;
        let is_absent = async || -> Result<bool> {
            let error = missing(provider, NONE).await?.context("it is there")?;
            let is_elsewhere =
                error.class == ErrorClass::Invalid && error.to_string().contains("another vCenter");
            ensure!(is_elsewhere || error.class == ErrorClass::NotFound, "{error}");
            Ok(!is_elsewhere)
        };
        let searches = |vcenter: &Vsphere| {
            vcenter.relay().seen().iter().filter(|seen| seen.body.contains("<Body><FindAllByUuid ")).count()
        };
        ensure!(is_absent().await?);
        provider.list(&mut |_| {}).await?;
        assert_eq!(keeper.identity().await?.as_ref(), Some(&ids[0]));
        ensure!(identity_changed.notified().now_or_never().is_none());

        let before = searches(&two.before);
        two.name.lead_to(two.after.relay().address());
        ensure!(!is_absent().await?, "the VM may be in the other vCenter");
        let counts = (searches(&two.before), searches(&two.after));
        assert_eq!(counts, (before + 1, 0), "the session with the former vCenter goes on");
        let is_noticed = identity_changed.notified().now_or_never().is_some();
        ensure!(is_noticed, "nothing says that another vCenter answers");
        let listed = provider.list(&mut |_| {}).await;
        ensure!(listed.as_ref().is_err_and(|error| error.class == ErrorClass::Invalid), "{listed:?}");
        assert_eq!(keeper.identity().await?.as_ref(), Some(&ids[1]));

        two.name.lead_to(two.before.relay().address());
        assert_eq!(keeper.identity().await?.as_ref(), Some(&ids[0]));
        ensure!(is_absent().await?);
        provider.list(&mut |_| {}).await?;
        Ok(())
    })
}

#[test]
fn the_keeper_of_the_places_learns_of_another_vcenter_beside_a_session_with_the_former_one() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let two = Two::start(dir.path()).await?;
        let keeper = two.settings.open()?;
        assert_eq!(keeper.identity().await?, Some(two.before.about().await?.id));
        two.name.lead_to(two.after.relay().address());
        assert_eq!(keeper.identity().await?, Some(two.after.about().await?.id));
        Ok(())
    })
}

#[test]
fn a_login_whose_requests_lead_to_two_vcenters_is_not_used() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let two = Two::start(dir.path()).await?;
        let (address, other) = (two.address(), two.after.about().await?.id);
        let answer = Does::Answer { status: 200, headers: Vec::new(), body: content(&other) };
        two.name.rule(|seen| seen.body.contains("<Body><RetrieveServiceContent "), answer);
        let provider = two.settings.open_at(Some(RecordedPlace::former(&address, Some(&other))))?;
        let error = missing(&*provider, NONE).await?.context("it is there")?;
        ensure!(error.class == ErrorClass::Transient && error.to_string().contains("several"), "{error}");
        let identity = two.settings.open()?.identity().await;
        ensure!(identity.as_ref().is_err_and(|error| error.class == ErrorClass::Transient), "{identity:?}");
        let seen = |method: &str| two.name.seen().iter().filter(|seen| seen.body.contains(method)).count();
        assert_eq!(seen("<Body><Logout "), seen("<Body><Login "), "no session is left behind");
        Ok(())
    })
}

/// A running Pod with a VM in this vCenter. Returns its PeerPod and the VM's UUID.
async fn pod_with_vm(alone: &Alone<'_>, vcenter: &Vsphere, pod: &str) -> Result<(String, String)> {
    let scene = alone.scene();
    let (owner, id) = (scene.pods.run(pod).await?, vcenter.make(&Machine::named(&vm_name(pod))).await?);
    Ok((scene.caa.record(&owner, "vsphere", &id).await?.name_any(), id))
}

/// A Pod with a VM in this vCenter, which is deleted with its Pod.
async fn comes_and_goes(alone: &Alone<'_>, vcenter: &Vsphere, pod: &str) -> Result<()> {
    let ((peerpod, id), scene) = (pod_with_vm(alone, vcenter, pod).await?, alone.scene());
    scene.pods.delete(pod).await?;
    wait::gone(&scene.peerpods, &peerpod, 2 * DEADLINE).await?;
    let left = vcenter.left(&id, &vm_name(pod)).await?;
    ensure!(!left.vm && left.own == 0, "{left:?}");
    Ok(())
}

#[test]
fn a_vm_in_the_vcenter_to_which_the_name_leads_now_is_not_absent() -> Result<()> {
    let start = async |dir: &Path, _: &_| {
        let two = Two::start(dir).await?;
        let settings = two.settings.clone();
        Ok((two, settings))
    };
    alone_beside(start, async |alone, two| {
        let key = until_recorded(alone, 1).await?;
        let (stays, id) = pod_with_vm(alone, &two.before, "stays").await?;
        // The operator has a session with the former vCenter, and connections to it.
        comes_and_goes(alone, &two.before, "known").await?;

        // As after a restart of cloud-api-adaptor: it makes VMs in the other vCenter.
        two.name.lead_to(two.after.relay().address());
        comes_and_goes(alone, &two.after, "later").await?;

        let scene = alone.scene();
        scene.pods.delete("stays").await?;
        let condition = scene.held(&stays, "InvalidSettings").await?;
        let message = "another host, account or pool answers there than before";
        ensure!(condition.message.contains(message), "{condition:?}");
        ensure!(two.before.left(&id, &vm_name("stays")).await?.vm, "the VM is gone");

        forget(alone, &key).await?;
        alone.scene().released(&stays).await?;
        ensure!(two.before.left(&id, &vm_name("stays")).await?.vm, "the VM is gone");
        Ok(())
    })
}
