use super::*;
use crate::api::v1alpha1::{PeerPodSpec, PeerPodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};

fn peerpod(name: &str, pod_uid: &str, instance: &str) -> PeerPod {
    let spec = PeerPodSpec { cloud_provider: Some("libvirt".into()), instance_id: Some(instance.into()) };
    let mut peerpod = PeerPod::new(name, spec);
    peerpod.metadata.namespace = Some("shop".into());
    peerpod.metadata.owner_references =
        Some(vec![OwnerReference { uid: pod_uid.into(), ..OwnerReference::default() }]);
    peerpod
}

fn names(keys: &[Key]) -> Vec<String> {
    let mut names: Vec<_> = keys.iter().map(|key| key.name.clone()).collect();
    names.sort();
    names
}

fn population(index: &Index) -> Population {
    index.state.lock().unwrap().current.clouds["libvirt"].population()
}

const UUID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

#[test]
fn a_list_replaces_what_was_known_when_it_is_whole() {
    let index = Index::default();
    index.apply(&Event::Apply(peerpod("old", "pod-1", "")));
    index.apply(&Event::Init);
    let mut new = peerpod("new", "pod-1", "");
    new.metadata.deletion_timestamp = Some(Timestamp::UNIX_EPOCH.into());
    let arriving = index.apply(&Event::InitApply(new));
    assert!(!arriving.matters && arriving.others.is_empty(), "it is looked at when the list is whole");
    assert_eq!(names(&index.owned_by("pod-1")), ["old"]);
    assert_eq!(names(&index.apply(&Event::InitDone).others), ["new"]);
    assert_eq!(names(&index.owned_by("pod-1")), ["new"]);
    assert_eq!(population(&index).peerpods, 1);
}

#[test]
fn those_that_share_a_pod_or_a_machine_are_told_of_each_other() {
    let index = Index::default();
    assert!(index.apply(&Event::Apply(peerpod("a", "pod-1", UUID))).others.is_empty());
    assert_eq!(names(&index.apply(&Event::Apply(peerpod("b", "pod-1", ""))).others), ["a"]);
    assert_eq!(names(&index.apply(&Event::Apply(peerpod("c", "pod-2", &UUID.to_uppercase()))).others), ["a"]);
    let id = InstanceId::parse("libvirt", UUID).unwrap();
    assert_eq!(names(&index.naming("libvirt", &id)), ["a", "c"]);
    assert_eq!(names(&index.apply(&Event::Delete(peerpod("c", "pod-2", UUID))).others), ["a"]);
    assert_eq!(names(&index.naming("libvirt", &id)), ["a"]);
}

#[test]
fn one_that_loses_its_owner_is_no_longer_found_by_it() {
    let index = Index::default();
    let mut orphan = peerpod("a", "pod-1", "");
    index.apply(&Event::Apply(orphan.clone()));
    index.apply(&Event::Apply(peerpod("b", "pod-1", "")));
    orphan.metadata.owner_references = None;
    assert_eq!(names(&index.apply(&Event::Apply(orphan)).others), ["b"], "its siblings are one fewer");
    assert_eq!(names(&index.owned_by("pod-1")), ["b"]);
}

#[test]
fn a_written_status_is_no_change_and_everything_that_decisions_read_is() {
    let index = Index::default();
    index.apply(&Event::Apply(peerpod("sibling", "pod-1", "")));
    let mut one = peerpod("a", "pod-1", UUID);
    let matters = |one: &PeerPod| index.apply(&Event::Apply(one.clone())).matters;
    assert!(matters(&one));
    one.status = Some(PeerPodStatus::default());
    one.metadata.resource_version = Some("2".into());
    assert!(!matters(&one));
    one.metadata.finalizers = Some(vec!["peer.pod/finalizer".into()]);
    assert!(matters(&one));
    one.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
    assert!(matters(&one));
    one.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(matters(&one));
    one.metadata.uid = Some("another".into());
    assert!(matters(&one));
    assert!(!matters(&one));
    let owner = |one: &mut PeerPod, change: fn(&mut OwnerReference)| {
        one.metadata.owner_references.as_mut().unwrap().iter_mut().for_each(change);
    };
    owner(&mut one, |owner| owner.api_version = "v2".into());
    assert!(matters(&one));
    owner(&mut one, |owner| owner.controller = Some(true));
    assert!(matters(&one));
    assert!(!matters(&one));
}

#[test]
fn a_condition_that_is_seen_after_the_look_that_would_have_cleared_it_wants_another_look() {
    let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
    let index = Index::default();
    let mut one = peerpod("a", "pod-1", UUID);
    let sibling = peerpod("sibling", "pod-1", "");
    index.apply(&Event::Apply(one.clone()));
    index.apply(&Event::Apply(sibling.clone()));
    // The sibling goes, and the look at what is left finds nothing to do.
    index.apply(&Event::Delete(sibling));
    index.looked_at(&key(&one), &metrics);
    assert_eq!(population(&index).queued, 0);
    // Only now is seen what an earlier look wrote.
    one.status = Some(PeerPodStatus { conditions: vec![condition()], ..PeerPodStatus::default() });
    assert!(index.apply(&Event::Apply(one.clone())).matters);
    assert_eq!(population(&index).queued, 1);
    assert!(!index.apply(&Event::Apply(one.clone())).matters, "it is asked for already");
    assert_eq!(population(&index).queued, 1);
    index.looked_at(&key(&one), &metrics);
    assert_eq!(population(&index).queued, 0);
}

#[test]
fn a_living_peerpod_wants_a_look_only_if_it_shares_something_or_its_status_speaks() {
    let index = Index::default();
    let alone = peerpod("alone", "pod-1", UUID);
    let mut speaks = peerpod("speaks", "pod-2", "");
    speaks.status = Some(PeerPodStatus { conditions: vec![condition()], ..PeerPodStatus::default() });
    let mut deleted = peerpod("deleted", "pod-3", "");
    deleted.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
    let siblings = [peerpod("old", "pod-4", ""), peerpod("new", "pod-4", "")];
    let all = [alone, speaks.clone(), deleted, siblings[0].clone(), siblings[1].clone()];

    index.apply(&Event::Init);
    let matters = |one: &PeerPod| index.apply(&Event::InitApply(one.clone())).matters;
    assert_eq!(all.each_ref().map(matters), [false; 5], "the list is not whole");
    assert_eq!(names(&index.apply(&Event::InitDone).others), ["deleted", "new", "old", "speaks"]);
    assert_eq!(names(&index.restless()), ["deleted", "new", "old", "speaks"]);

    speaks.status = None;
    assert!(!index.apply(&Event::Apply(speaks)).matters);
    assert_eq!(names(&index.apply(&Event::Delete(siblings[0].clone())).others), ["new"]);
    assert_eq!(names(&index.restless()), ["deleted"]);
}

fn condition() -> Condition {
    Condition {
        type_: "Stalled".into(),
        status: "True".into(),
        reason: "Any".into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: jiff::Timestamp::UNIX_EPOCH.into(),
    }
}

#[test]
fn what_waits_to_be_looked_at_and_what_is_pending_is_counted_whatever_happens_to_it() {
    let metrics = Metrics::new(&mut prometheus_client::registry::Registry::default());
    let index = Index::default();
    let shows = |queued, pending, oldest| {
        let population = population(&index);
        assert_eq!((population.queued, population.pending, population.oldest), (queued, pending, oldest));
    };
    let (mut a, mut b) = (peerpod("a", "pod-1", UUID), peerpod("b", "pod-2", ""));
    for one in [&mut a, &mut b] {
        one.metadata.finalizers = Some(vec!["peer.pod/finalizer".into()]);
        index.apply(&Event::Apply(one.clone()));
    }
    shows(0, 0, None);
    a.metadata.deletion_timestamp = Some(Timestamp::from_second(20).unwrap().into());
    index.apply(&Event::Apply(a.clone()));
    b.metadata.deletion_timestamp = Some(Timestamp::from_second(10).unwrap().into());
    index.apply(&Event::Apply(b.clone()));
    shows(2, 2, Some(10));
    index.looked_at(&key(&b), &metrics);
    index.looked_at(&key(&b), &metrics);
    shows(1, 2, Some(10));
    // What a list brings is looked at when it is whole, and what it lacks is gone then.
    index.apply(&Event::Init);
    index.apply(&Event::InitApply(a.clone()));
    index.looked_at(&key(&a), &metrics);
    shows(0, 2, Some(10));
    index.apply(&Event::InitDone);
    shows(1, 1, Some(20));
    index.looked_at(&key(&a), &metrics);
    shows(0, 1, Some(20));
    // What waits for its Pod is pending, and not overdue; only its status says so.
    let waits = Condition { type_: "Reconciling".into(), reason: "WaitingForPod".into(), ..condition() };
    let idle = Condition { status: "False".into(), ..waits.clone() };
    for (conditions, oldest) in
        [(vec![waits.clone()], None), (vec![idle, condition()], Some(20)), (vec![waits], None)]
    {
        a.status = Some(PeerPodStatus { conditions, ..PeerPodStatus::default() });
        index.apply(&Event::Apply(a.clone()));
        shows(0, 1, oldest);
    }
    a.status = None;
    index.apply(&Event::Apply(a.clone()));
    shows(0, 1, Some(20));
    a.metadata.finalizers = None;
    index.apply(&Event::Apply(a.clone()));
    shows(1, 0, None);
    index.apply(&Event::Delete(a));
    shows(0, 0, None);
}
