use super::*;
use crate::{
    provider::{NAME_LIMIT, ownership},
    settings::SettingsError,
};

/// A cloud that answers so when it is asked for a VM. It refuses to delete one that is leaving.
pub(in crate::provider) struct Answers(pub(in crate::provider) Result<Vm, Error>);

#[async_trait]
impl Provider for Answers {
    async fn describe(&self, _: &InstanceId, _: &Claim) -> Result<Vm, Error> {
        self.0.clone()
    }

    async fn delete(&self, _: &OwnVm) -> Result<Accepted, Error> {
        let is_leaving = self.0.as_ref().is_ok_and(|vm| vm.stage == Stage::Leaving);
        Ok(Accepted { may_only_stop: is_leaving, ..Accepted::default() })
    }

    async fn list(&self, _: Pages<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// One that has a VM takes few requests, and none for a while.
    fn most_at_once(&self) -> Option<usize> {
        self.0.is_ok().then_some(7)
    }

    fn paused_for(&self) -> Option<Duration> {
        self.0.is_ok().then_some(Duration::from_secs(60))
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        Ok(Vec::new())
    }
}

const T: Timestamp = Timestamp::constant(1_790_000_000, 0);

fn former(moved_at: Option<Timestamp>, answer: Result<Vm, Error>) -> FormerProvider {
    let place = FormerPlace {
        key: "libvirt-1".to_owned(),
        address: "qemu+ssh://host-1:22/system".to_owned(),
        identity: None,
        moved_at,
        until: Some(T),
    };
    FormerProvider { place, provider: Ok(Arc::new(Answers(answer))) }
}

/// A place without the VM, after these.
fn after(moved_at: Option<Timestamp>, former: Vec<FormerProvider>) -> WithFormerPlaces {
    let endpoint = Endpoint { setting: "LIBVIRT_URI", address: "qemu+ssh://host-2:22/system".to_owned() };
    let (identity, key) = (None, "libvirt-2".to_owned());
    let known = KnownPlaces { identity, moved_at, key, former: Vec::new() };
    WithFormerPlaces {
        current: Arc::new(Answers(Err(gone()))),
        endpoint,
        known: Arc::new(known),
        settings: watch::channel(State::default()).1,
        sightings: Arc::default(),
        former,
        settles_late: false,
    }
}

fn gone() -> Error {
    Error::new(ErrorClass::NotFound, "")
}

fn id() -> InstanceId {
    InstanceId::scoped("", "i-1")
}

fn vm() -> Vm {
    Vm::named(id(), "a")
}

#[tokio::test]
async fn the_places_are_named_in_the_log_alone() {
    let failed = || Error::new(ErrorClass::Transient, Message::new("no answer", "no answer of host-1"));
    for (moved_at, place, class, says) in [
        (
            None,
            former(None, Ok(vm())),
            ErrorClass::Invalid,
            "the VM is there; if LIBVIRT_URI has just changed",
        ),
        (None, former(None, Err(failed())), ErrorClass::Transient, "cannot find out"),
        (None, former(Some(T), Err(gone())), ErrorClass::Invalid, "delete the entry libvirt-1 of"),
        (Some(T), former(None, Err(gone())), ErrorClass::Invalid, "delete the entry libvirt-2 of"),
    ] {
        let error = after(moved_at, vec![place]).describe(&id(), &Claim::default()).await.unwrap_err();
        let (public, full) = (error.message.for_status(), error.message.for_log());
        assert!(error.class == class && public.contains(says), "{error:?}");
        assert!(public.contains("2026-09-21T14:13:20Z"), "{public}");
        assert!(!public.contains("host-") && !public.contains("qemu"), "{public}");
        assert!(full.contains("not exist at qemu+ssh://host-2:22/system, where"), "{full}");
    }
}

#[test]
fn the_limits_of_all_places_hold() {
    assert_eq!(after(None, vec![former(None, Err(gone()))]).most_at_once(), None);
    let limited = [Err(gone()), Ok(vm())].map(|answer| former(None, answer));
    let provider = after(None, limited.into());
    assert_eq!(provider.most_at_once(), Some(7));
    assert_eq!(provider.paused_for(), None, "only a former place wants no calls");
}

#[tokio::test]
async fn only_a_vm_that_was_seen_here_cannot_be_in_an_unknown_place() {
    let FormerProvider { place, provider } = former(None, Err(gone()));
    let unknown = FormerProvider { place: FormerPlace { address: String::new(), ..place }, provider };
    let provider = after(None, vec![unknown]);
    let held = provider.describe(&id(), &Claim::default()).await.unwrap_err();
    assert_eq!(held.class, ErrorClass::Invalid);
    let text = held.message.for_status();
    for says in ["could not use, first at 2026-09-21T14:13:20Z", "by hand", "delete the entry libvirt-1 of"] {
        assert!(text.contains(says), "{text}");
    }
    provider.sightings.seen(&id(), &Claim::default());
    let seen = provider.describe(&id(), &Claim::default()).await.unwrap_err();
    assert_eq!(seen.class, ErrorClass::NotFound);
}

#[tokio::test]
async fn a_vm_is_absent_that_is_nowhere_or_was_seen_here() {
    let nowhere = after(None, vec![former(None, Err(gone())), former(None, Err(gone()))]);
    assert_eq!(nowhere.describe(&id(), &Claim::default()).await.unwrap_err().class, ErrorClass::NotFound);
    let seen = after(Some(T), vec![former(None, Ok(vm()))]);
    seen.sightings.seen(&id(), &Claim::default());
    assert_eq!(seen.describe(&id(), &Claim::default()).await.unwrap_err().class, ErrorClass::NotFound);
    // Another Pod had a machine of this identifier there, which says nothing of this one's.
    let another = Claim { pod: Some("web".to_owned()), ..Claim::default() };
    assert_eq!(seen.describe(&id(), &another).await.unwrap_err().class, ErrorClass::Invalid);
}

#[tokio::test]
async fn while_newer_settings_cannot_be_used_only_a_vm_that_was_seen_here_is_absent() {
    let rejected = SettingsError::NotText { path: "/etc/here".into() };
    let state = State { rejected: Some(Arc::new(rejected)), ..State::default() };
    let provider = WithFormerPlaces { settings: watch::channel(state).1, ..after(None, Vec::new()) };
    let held = provider.describe(&id(), &Claim::default()).await.unwrap_err();
    assert_eq!(held.class, ErrorClass::Invalid);
    let text = held.message.for_status();
    assert!(text.contains("newer settings point") && text.contains("is not UTF-8 text"), "{text}");
    provider.sightings.seen(&id(), &Claim::default());
    let seen = provider.describe(&id(), &Claim::default()).await.unwrap_err();
    assert_eq!(seen.class, ErrorClass::NotFound);
}

#[tokio::test]
async fn an_identifier_with_a_scope_is_asked_for_in_no_other_place() {
    let scoped = InstanceId::scoped("zone/", "i-1");
    let elsewhere = || after(None, vec![former(None, Ok(vm()))]);
    let claim = Claim::default();
    assert_eq!(elsewhere().describe(&scoped, &claim).await.unwrap_err().class, ErrorClass::NotFound);
    assert_eq!(elsewhere().describe(&id(), &claim).await.unwrap_err().class, ErrorClass::Invalid);
}

#[tokio::test]
async fn a_missing_young_vm_is_unsettled_in_a_late_settling_cloud() {
    let late = WithFormerPlaces { settles_late: true, ..after(None, Vec::new()) };
    let deleted = |after: i64| Claim {
        recorded: T,
        deleted: T.checked_add(jiff::SignedDuration::from_secs(after)).ok(),
        ..Claim::default()
    };
    let class = async |claim| late.describe(&id(), &claim).await.unwrap_err().class;
    assert!(matches!(class(deleted(119)).await, ErrorClass::Unsettled { .. }));
    assert_eq!(class(deleted(120)).await, ErrorClass::NotFound);
    late.sightings.seen(&id(), &deleted(1));
    assert!(matches!(class(deleted(1)).await, ErrorClass::Unsettled { .. }), "a sight of it proves nothing");
    late.sightings.leaves(&id());
    assert_eq!(class(deleted(1)).await, ErrorClass::NotFound, "its deletion was accepted");
}

#[tokio::test]
async fn that_a_young_vm_was_leaving_is_no_accepted_deletion() {
    let name = "podvm-web-1a2b3c4d";
    let leaving = Vm { stage: Stage::Leaving, ..Vm::named(id(), name) };
    let current = Arc::new(Answers(Ok(leaving)));
    let mut late = WithFormerPlaces { settles_late: true, current, ..after(None, Vec::new()) };
    let claim = Claim { recorded: T, deleted: Some(T), ..Claim::default() };
    assert!(late.describe(&id(), &claim).await.is_ok());
    let own = ownership::verify(Vm::named(id(), name), "web", NAME_LIMIT).unwrap();
    assert!(late.delete(&own).await.is_ok_and(|refused| refused.may_only_stop));
    late.current = Arc::new(Answers(Err(gone())));
    let held = late.describe(&id(), &claim).await.unwrap_err().class;
    assert!(matches!(held, ErrorClass::Unsettled { .. }), "{held:?}");
    assert!(late.delete(&own).await.is_ok());
    assert_eq!(late.describe(&id(), &claim).await.unwrap_err().class, ErrorClass::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_young_vm_that_a_former_place_shows_late_is_not_absent() {
    let place = former(None, Err(gone())).place;
    let there = |answer| FormerProvider { place: place.clone(), provider: Ok(Arc::new(Answers(answer))) };
    let mut late = WithFormerPlaces { settles_late: true, ..after(None, vec![there(Err(gone()))]) };
    let claim = Claim { recorded: T, deleted: Some(T), ..Claim::default() };
    let first = late.describe(&id(), &claim).await.unwrap_err().class;
    let ErrorClass::Unsettled { check_again_after: again } = first else { panic!("{first:?}") };
    tokio::time::advance(again).await;
    late.former = vec![there(Ok(vm()))];
    assert_eq!(late.describe(&id(), &claim).await.unwrap_err().class, ErrorClass::Invalid);
    late.former = vec![there(Err(gone()))];
    assert_eq!(late.describe(&id(), &claim).await.unwrap_err().class, ErrorClass::NotFound);
    // The time begins when all places have denied a VM.
    let other = InstanceId::scoped("", "i-2");
    late.former = vec![there(Ok(vm()))];
    assert_eq!(late.describe(&other, &claim).await.unwrap_err().class, ErrorClass::Invalid);
    tokio::time::advance(again).await;
    late.former = vec![there(Err(gone()))];
    let denied = late.describe(&other, &claim).await.unwrap_err().class;
    assert!(matches!(denied, ErrorClass::Unsettled { .. }), "{denied:?}");
}

#[tokio::test]
async fn remains_of_a_young_vm_may_be_all_that_is_shown_of_it() {
    let vm = Vm { stage: Stage::Remains(crate::provider::Bears::Id), ..vm() };
    let current = Arc::new(Answers(Ok(vm.clone())));
    let late = WithFormerPlaces { settles_late: true, current, ..after(None, Vec::new()) };
    let claim = Claim { recorded: T, deleted: Some(T), ..Claim::default() };
    let held = late.describe(&id(), &claim).await.unwrap_err().class;
    assert!(matches!(held, ErrorClass::Unsettled { .. }), "{held:?}");
    assert!(!late.sightings.has(&id(), &claim));
    assert_eq!(late.describe(&id(), &Claim::default()).await, Ok(vm), "it is old");
}
