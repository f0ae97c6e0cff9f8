use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use secrecy::SecretString;
use tokio::{sync::watch, task::JoinSet};

use super::*;
use crate::{
    provider::{
        Accepted, Claim, Finding, InstanceId, NAME_LIMIT, OwnVm, Pages, ServedCloud, Vm,
        contract::memory::Memory, former_places::tests::Answers, ownership, places,
    },
    settings::{Catalogue, Key, Raw, Schema, SettingsError, State},
};

/// A cloud that an embedding program serves here.
const CLOUD: &str = "vsphere";

static SCHEMA: Schema = Schema {
    cloud: CLOUD,
    keys: &[Key::text("REGION", "Where VMs are.")],
    check: |values| {
        let region = values.get("REGION").ok_or_else(Vec::new)?;
        Ok(Endpoint { setting: "REGION", address: secrecy::ExposeSecret::expose_secret(region).to_owned() })
    },
};

static SCHEMAS: [&Schema; 1] = [&SCHEMA];

/// The VMs of one region.
#[derive(Clone, Default)]
struct Region(Arc<Mutex<HashMap<InstanceId, Vm>>>);

#[async_trait]
impl Provider for Region {
    async fn describe(&self, id: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        let found = self.0.lock().get(id).cloned();
        found.ok_or_else(|| Error::new(ErrorClass::NotFound, "no such VM"))
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.0.lock().remove(&vm.vm().id);
        Ok(Accepted::default())
    }

    async fn list(&self, _: Pages<'_>) -> Result<(), Error> {
        Ok(())
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

fn snapshot() -> Result<Snapshot, SettingsError> {
    let given = [("CLOUD_PROVIDER", CLOUD), ("REGION", "here")];
    let settings = given.map(|(name, value)| (name.to_owned(), SecretString::from(value))).into();
    Snapshot::parse(&Raw { settings, ..Raw::default() }, Catalogue::new(&SCHEMAS))
}

fn clouds(openers: &Openers) -> Clouds {
    of_settings(snapshot().unwrap(), openers)
}

fn of_settings(snapshot: Snapshot, openers: &Openers) -> Clouds {
    let places = Places::only(snapshot.endpoint().unwrap().clone());
    with_places(snapshot, places, openers)
}

fn with_places(snapshot: Snapshot, places: Places, openers: &Openers) -> Clouds {
    let state = State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() };
    of_sources([(CloudSettings::any(watch::channel(state).1), places)], openers)
}

fn of_sources(sources: impl IntoIterator<Item = (CloudSettings, Places)>, openers: &Openers) -> Clouds {
    let source = |(settings, places)| Source {
        settings,
        places,
        openers: openers.clone(),
        calls: 1,
        metrics: Metrics::new(&mut Registry::default()),
        built: Mutex::default(),
        opening: tokio::sync::Mutex::default(),
    };
    Clouds(Arc::new(sources.into_iter().map(source).collect()))
}

#[tokio::test]
async fn a_provider_that_an_embedding_program_brings_serves_its_cloud() {
    let id = InstanceId::parse(CLOUD, "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").unwrap();
    let vm = Vm::named(id.clone(), "podvm-web-1a2b3c4d");
    let region = Region::default();
    region.0.lock().insert(id.clone(), vm.clone());
    let clouds = clouds(&Openers::default().with(CLOUD, move |_, opening| {
        assert_eq!(opening.recorded.as_ref().map(|it| it.address.to_owned()).as_deref(), Some("here"));
        Ok(Box::new(region.clone()))
    }));
    let provider = clouds.provider(CLOUD).await.unwrap();
    assert_eq!(provider.describe(&id, &Claim::default()).await, Ok(vm.clone()));
    provider.delete(&ownership::verify(vm, "web", NAME_LIMIT).unwrap()).await.unwrap();
    assert_eq!(provider.describe(&id, &Claim::default()).await.unwrap_err().class, ErrorClass::NotFound);
}

#[tokio::test]
async fn while_newer_settings_cannot_be_used_a_listing_does_not_show_all_vms() {
    let rejected = |error| State {
        current: Some(Arc::new(snapshot().unwrap())),
        rejected: Some(Arc::new(error)),
        generation: 1,
    };
    for (state, shows_all) in [
        (rejected(SettingsError::NotText { path: "REGION".into() }), false),
        (State { rejected: None, ..rejected(SettingsError::NotText { path: "REGION".into() }) }, true),
    ] {
        let places = Places::only(state.current.as_ref().unwrap().endpoint().unwrap().clone());
        let openers = Openers::default().with(CLOUD, |_, _| Ok(Box::new(Region::default())));
        let clouds = of_sources([(CloudSettings::any(watch::channel(state).1), places)], &openers);
        assert_eq!(clouds.target(0).await.unwrap().may_miss_vms, !shows_all);
    }
}

#[tokio::test]
async fn another_cloud_than_that_of_the_settings_is_not_served() {
    let refused = async |clouds: &Clouds, cloud: &str| {
        let error = clouds.provider(cloud).await.map(|_| ()).unwrap_err();
        assert_eq!(error.class, ErrorClass::NotSupported);
        error.to_string()
    };
    let served = clouds(&Openers::default().with(CLOUD, |_, _| Ok(Box::new(Region::default()))));
    assert!(refused(&served, "gcp").await.contains("settings are for vsphere"));
    assert!(refused(&served, "openstack").await.contains("is not a cloud"));
}

#[tokio::test]
async fn each_cloud_is_served_by_its_own_settings_only() {
    let state = State { current: Some(Arc::new(snapshot().unwrap())), generation: 1, ..State::default() };
    let places = || Places::only(state.current.as_ref().unwrap().endpoint().unwrap().clone());
    let receiver = || watch::channel(state.clone()).1;
    let openers = Openers::default().with(CLOUD, |_, _| Ok(Box::new(Region::default())));
    let refused = async |settings: CloudSettings, cloud: &str| {
        assert!(settings.usable(&state).is_none(), "nothing is recorded by them");
        let clouds = of_sources([(settings, places())], &openers);
        clouds.provider(cloud).await.map(|_| ()).unwrap_err().to_string()
    };
    let [vsphere, gcp] = ["vsphere", "gcp"].map(|name| Cloud::named(name).unwrap());
    let problem = refused(CloudSettings::new(ServedCloud::any_but([vsphere]), receiver()), "vsphere").await;
    assert!(problem.contains("which has settings of its own by --provider"), "{problem}");
    let problem = refused(CloudSettings::new(ServedCloud::only(gcp), receiver()), "gcp").await;
    assert!(problem.contains("--provider gcp are for vsphere"), "{problem}");

    let with_first = |first| {
        let first = CloudSettings::new(ServedCloud::any_but([vsphere]), first);
        let further = CloudSettings::new(ServedCloud::only(vsphere), receiver());
        of_sources([(first, places()), (further, places())], &openers)
    };
    let clouds = with_first(watch::channel(State::default()).1);
    assert!(clouds.provider("vsphere").await.is_ok(), "settings of no cloud hold no VM of another one");
    assert!(!clouds.target(1).await.unwrap().may_miss_vms);
    let clouds = with_first(receiver());
    let held = clouds.provider("vsphere").await.map(|_| ()).unwrap_err();
    assert_eq!(held.class, ErrorClass::Invalid, "cloud-api-adaptor may make VMs by the first ones");
    assert!(held.to_string().contains("which has settings of its own by --provider"), "{held}");
    assert!(clouds.target(1).await.unwrap().may_miss_vms);
}

#[tokio::test]
async fn a_former_place_that_asks_for_fewer_calls_stops_no_call_to_the_present_one() {
    let [there, nowhere] = ["0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11", "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a12"]
        .map(|id| InstanceId::parse(CLOUD, id).unwrap());
    let region = Region::default();
    region.0.lock().insert(there.clone(), Vm::named(there.clone(), "podvm-web-1a2b3c4d"));
    let openers = Openers::default().with(CLOUD, move |_, opening| {
        let is_here = opening.recorded.as_ref().is_none_or(|it| it.address == "here");
        let retry_after = Some(Duration::from_secs(600));
        let busy = Answers(Err(Error::new(ErrorClass::Throttled { retry_after }, "busy")));
        if is_here { Ok(Box::new(region.clone())) } else { Ok(Box::new(busy)) }
    });
    let places = Places::after(endpoint("here"), vec![elsewhere()]);
    let provider = with_places(snapshot().unwrap(), places, &openers).provider(CLOUD).await.unwrap();
    for _ in 0..2 {
        let unknown = provider.describe(&nowhere, &Claim::default()).await.unwrap_err();
        assert!(matches!(unknown.class, ErrorClass::Throttled { .. }), "{unknown:?}");
        assert!(provider.describe(&there, &Claim::default()).await.is_ok());
    }
}

/// Clouds with a VM that only the former place "elsewhere" has.
fn with_vm_elsewhere(places: Places, id: &InstanceId) -> Clouds {
    let region = Region::default();
    region.0.lock().insert(id.clone(), Vm::named(id.clone(), "podvm-web-1a2b3c4d"));
    let openers = Openers::default().with(CLOUD, move |_, opening| {
        let is_there = opening.recorded.as_ref().is_some_and(|it| it.address == "elsewhere");
        Ok(Box::new(if is_there { region.clone() } else { Region::default() }))
    });
    with_places(snapshot().unwrap(), places, &openers)
}

fn elsewhere() -> places::FormerPlace {
    let (key, address) = ("old".to_owned(), "elsewhere".to_owned());
    places::FormerPlace { key, address, identity: None, moved_at: None, until: None }
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint { setting: "REGION", address: address.to_owned() }
}

#[tokio::test]
async fn a_sight_of_a_vm_proves_nothing_at_another_place() {
    let id = InstanceId::parse(CLOUD, "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").unwrap();
    let changed = Some(Timestamp::UNIX_EPOCH);
    for (address, identity, moved_at, class) in [
        ("here", None, None, ErrorClass::NotFound),
        ("there", None, None, ErrorClass::Invalid),
        ("here", Some("another"), None, ErrorClass::Invalid),
        ("here", None, changed, ErrorClass::Invalid),
    ] {
        let clouds = with_vm_elsewhere(Places::after(endpoint("here"), vec![elsewhere()]), &id);
        let sightings = Arc::new(Sightings::default());
        sightings.seen(&id, &Claim::default());
        let identity = identity.map(str::to_owned);
        let known = Arc::new(KnownPlaces { identity, moved_at, key: "key".to_owned(), former: Vec::new() });
        let provider = Err(Error::new(ErrorClass::Transient, "outdated"));
        *clouds.0[0].built.lock() =
            Some(Built { generation: 0, endpoint: endpoint(address), known, sightings, provider });
        let provider = clouds.provider(CLOUD).await.unwrap();
        let error = provider.describe(&id, &Claim::default()).await.unwrap_err();
        assert_eq!(error.class, class, "{address} {moved_at:?}: {error}");
    }
}

#[tokio::test]
async fn a_listing_says_whether_the_place_has_moved_and_whether_it_may_miss_vms() {
    let id = InstanceId::parse(CLOUD, "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").unwrap();
    for (places, has_moved, may_miss_vms) in [
        (Places::only(endpoint("here")), false, false),
        (Places::after(endpoint("here"), vec![elsewhere()]), false, true),
        (Places::moved(endpoint("here")), true, true),
    ] {
        let target = with_vm_elsewhere(places, &id).target(0).await.unwrap();
        assert_eq!((target.has_moved, target.may_miss_vms), (has_moved, may_miss_vms));
    }
}

#[tokio::test]
async fn only_a_cloud_that_settles_late_is_asked_twice_for_a_young_vm() {
    let now = Timestamp::now();
    let young = Claim { recorded: now, created: now, deleted: Some(now), ..Claim::default() };
    let at_once = clouds(&Openers::default().with(CLOUD, |_, _| Ok(Box::new(Region::default()))));
    for (clouds, cloud, waits) in
        [(clouds_in_memory("gcp", &Memory::default()), "gcp", true), (at_once, CLOUD, false)]
    {
        let provider = clouds.provider(cloud).await.unwrap();
        let id = InstanceId::parse(CLOUD, "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11").unwrap();
        let class = provider.describe(&id, &young).await.unwrap_err().class;
        let expected = if waits { "unsettled" } else { "not_found" };
        assert_eq!(class.as_str(), expected, "{cloud}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_provider_is_opened_once_however_many_ask_at_the_same_time() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let clouds = clouds(&Openers::default().with(CLOUD, move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        Ok(Box::new(Region::default()))
    }));
    let mut asking = JoinSet::new();
    for _ in 0..20 {
        let clouds = clouds.clone();
        asking.spawn(async move { clouds.provider(CLOUD).await.is_ok() });
    }
    assert!(asking.join_all().await.into_iter().all(|it| it));
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}

/// A cloud of cloud-api-adaptor's whose VMs are in memory.
pub(crate) fn clouds_in_memory(cloud: &'static str, memory: &Memory) -> Clouds {
    let memory = memory.clone();
    clouds_under(watch::channel(state_in_memory(cloud, false)).1, cloud, move || Box::new(memory.clone()))
}

/// The cloud of these settings, with a provider that `open` opens.
pub(crate) fn clouds_under(
    settings: watch::Receiver<State>,
    cloud: &'static str,
    open: impl Fn() -> Box<dyn Provider> + Send + Sync + 'static,
) -> Clouds {
    let places = Places::only(settings.borrow().current.as_ref().unwrap().endpoint().unwrap().clone());
    let openers = Openers::default().with(cloud, move |_, _| Ok(open()));
    of_sources([(CloudSettings::any(settings), places)], &openers)
}

/// Settings for such a cloud, in force.
pub(crate) fn state_in_memory(cloud: &'static str, is_developer_mode: bool) -> State {
    static SCHEMA: Schema = Schema {
        cloud: "gcp",
        keys: &[],
        check: |_| Ok(Endpoint { setting: "none", address: String::new() }),
    };
    static SCHEMAS: [&Schema; 1] = [&SCHEMA];
    let mode = if is_developer_mode { "true" } else { "false" };
    let given = [("CLOUD_PROVIDER", cloud), ("PODVM_DEVELOPER_MODE", mode)];
    let settings = given.map(|(name, value)| (name.to_owned(), SecretString::from(value))).into();
    let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, Catalogue::new(&SCHEMAS)).unwrap();
    State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() }
}
