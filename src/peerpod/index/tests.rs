mod properties;

use super::*;
use crate::{
    api::v1alpha1::{FINALIZER, PeerPodSpec, PeerPodStatus},
    metrics::Population,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};

fn peerpod(name: &str, pod_uid: &str, instance: &str) -> PeerPod {
    let spec = PeerPodSpec { cloud_provider: Some("libvirt".into()), instance_id: Some(instance.into()) };
    let mut peerpod = PeerPod::new(name, spec);
    let metadata = &mut peerpod.metadata;
    metadata.namespace = Some("shop".into());
    metadata.uid = Some(name.into());
    metadata.finalizers = Some(vec![FINALIZER.into()]);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: "web".into(),
        ..OwnerReference::default()
    };
    metadata.owner_references = Some(vec![OwnerReference { uid: pod_uid.into(), ..owner }]);
    peerpod
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn vm(number: u64) -> String {
    uuid::Uuid::from_u64_pair(7, number).to_string()
}

/// One that was made in this second.
fn made(name: &str, pod_uid: &str, instance: &str, second: i64) -> PeerPod {
    let mut peerpod = peerpod(name, pod_uid, instance);
    peerpod.metadata.creation_timestamp = Some(at(second).into());
    peerpod
}

fn deleted(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.deletion_timestamp = Some(at(1000).into());
    peerpod
}

fn of_another_pod(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.owner_references.as_mut().unwrap()[0].uid.push('x');
    peerpod
}

fn names<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Vec<String> {
    let mut names: Vec<_> = keys.into_iter().map(|key| key.name.clone()).collect();
    names.sort();
    names.dedup();
    names
}

fn population(index: &Index) -> Population {
    index.state.lock().unwrap().current.clouds["libvirt"].population()
}

/// The names of those that an event requeues.
fn requeued(index: &Index, event: &Event<PeerPod>) -> Vec<String> {
    names(&index.apply(event).others)
}

/// The names, the newest first, of those whose VMs are asked for.
fn asked(index: &Index, peerpod: &PeerPod) -> Vec<String> {
    index.siblings(peerpod).newest.iter().map(|it| it.key.name.clone()).collect()
}

const UUID: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";

#[test]
fn a_list_replaces_what_was_known_when_it_is_whole() {
    let index = Index::default();
    index.apply(&Event::Apply(peerpod("old", "pod-1", "")));
    index.apply(&Event::Init);
    let new = deleted(peerpod("new", "pod-1", ""));
    let arriving = index.apply(&Event::InitApply(new));
    assert!(!arriving.matters && arriving.others.is_empty(), "it is looked at when the list is whole");
    let known = || ["old", "new"].map(|name| index.contains(&key(&peerpod(name, "pod-1", ""))));
    assert_eq!(known(), [true, false]);
    assert_eq!(names(&index.apply(&Event::InitDone).others), ["new"]);
    assert_eq!(known(), [false, true]);
    assert_eq!(population(&index).peerpods, 1);
}

/// Without the finalizer, as cloud-api-adaptor leaves one after a start that failed.
fn released(mut peerpod: PeerPod) -> PeerPod {
    peerpod.metadata.finalizers = None;
    peerpod
}

#[test]
fn a_few_released_peerpods_that_have_a_younger_one_are_requeued_until_none_is_left() {
    let index = Index::default();
    let failed = |number: u64| {
        released(made(&format!("web-{number:03}"), "pod", &vm(number), i64::try_from(number).unwrap()))
    };
    assert!(!index.apply(&Event::Apply(failed(0))).matters, "it is the youngest");
    for number in 1..100 {
        assert!(requeued(&index, &Event::Apply(failed(number))).len() <= 2 * FEW);
    }
    assert!(index.siblings(&failed(98)).has_younger && !index.siblings(&failed(99)).has_younger);
    assert_eq!(names(&index.to_resync()).len(), 2 * FEW);
    let mut due = requeued(&index, &Event::Apply(made("web", "pod", &vm(100), 100)));
    assert_eq!(due, ["web-000", "web-001", "web-002", "web-003", "web-096", "web-097", "web-098", "web-099"]);
    let mut gone = 0;
    while let Some(name) = due.pop() {
        let number = name.trim_start_matches("web-").parse().unwrap();
        if index.contains(&key(&failed(number))) {
            due.extend(requeued(&index, &Event::Delete(failed(number))));
            gone += 1;
        }
    }
    assert_eq!(gone, 100);
    assert!(index.to_resync().is_empty());

    index.apply(&Event::Apply(failed(1)));
    let others = [of_another_pod(failed(2)), deleted(failed(3)), released(made("x", "pod", "", 0))];
    for other in others {
        assert!(
            !index.apply(&Event::Apply(other.clone())).others.iter().any(|key| key.name == other.name_any())
        );
    }
    assert_eq!(
        names(&index.to_resync()),
        ["web-001", "web-003"],
        "the one that is being deleted is another case"
    );
    // The finalizer may go late.
    let held = made("web-004", "pod", &vm(4), 4);
    index.apply(&Event::Apply(held.clone()));
    assert!(index.apply(&Event::Apply(released(held))).matters);
}

#[test]
fn the_newest_few_of_the_other_vms_of_a_pod_that_are_no_older_are_asked_for() {
    let index = Index::default();
    let own = made("own", "pod", &vm(0), 10);
    index.apply(&Event::Apply(own.clone()));
    assert!(asked(&index, &own).is_empty());
    for (name, number, second) in
        [("older", 1, 9), ("same-second", 2, 10), ("newer", 3, 11), ("again", 3, 12)]
    {
        index.apply(&Event::Apply(made(name, "pod", &vm(number), second)));
    }
    let Siblings { recorded, newest, next, .. } = index.siblings(&own);
    let newest: Vec<_> = newest.iter().map(|it| (&*it.key.name, it.recorded, it.contested)).collect();
    assert_eq!(newest, [("newer", at(11), false), ("same-second", at(10), false)]);
    assert_eq!((recorded, next), (at(10), None));

    // A VM that is recorded once more is as old as its first record, even if that is gone.
    index.apply(&Event::Apply(deleted(made("first", "pod", &vm(3), 5))));
    index.apply(&Event::Apply(deleted(made("gone", "pod", &vm(4), 20))));
    assert_eq!(asked(&index, &own), ["same-second"]);
    assert_eq!(index.siblings(&made("newer", "pod", &vm(3), 11)).recorded, at(5));
    index.apply(&Event::Apply(of_another_pod(made("other", "pod", &vm(2), 30))));
    assert!(index.siblings(&own).newest[0].contested);

    for number in 10..20 {
        index.apply(&Event::Apply(made(
            &number.to_string(),
            "pod",
            &vm(number),
            i64::try_from(number).unwrap() + 5,
        )));
    }
    assert_eq!(asked(&index, &own), ["19", "18", "17", "16"]);
    assert_eq!(index.siblings(&own).next, Some(at(20)));
}

#[test]
fn a_vm_is_claimed_by_each_spelling_of_its_identifier() {
    let gcp = |name: &str, instance: &str| {
        let mut peerpod = peerpod(name, name, instance);
        peerpod.spec.cloud_provider = Some("gcp".into());
        peerpod
    };
    let index = Index::default();
    index.apply(&Event::Apply(gcp("running", "podvm-web-1a2b3c4d")));
    let forged = deleted(gcp("forged", "projects/p/zones/z/instances/podvm-web-1a2b3c4d"));
    index.apply(&Event::Apply(forged.clone()));
    assert_eq!(index.claimants(&forged, 3).living.map(|key| key.name.clone()).as_deref(), Some("running"));
}

#[test]
fn others_that_name_a_vm_claim_it_while_they_live_and_one_of_each_other_pod_when_they_go() {
    let index = Index::default();
    let own = deleted(made("own", "pod", UUID, 10));
    let claimants = || {
        let Claimants { living, going } = index.claimants(&own, 3);
        (living.map(|key| key.name.clone()), names(&going))
    };
    let apply = |peerpod| drop(index.apply(&Event::Apply(peerpod)));
    apply(own.clone());
    apply(deleted(made("of-own-pod", "pod", UUID, 11)));
    let mut ownerless = deleted(made("ownerless", "pod", UUID, 11));
    ownerless.metadata.owner_references = None;
    apply(ownerless);
    assert_eq!(claimants(), (None, vec![]));
    for pod in 0..5 {
        for number in 0..3 {
            apply(deleted(made(&format!("{pod}-{number}"), &pod.to_string(), &UUID.to_uppercase(), number)));
        }
    }
    let (living, going) = claimants();
    assert_eq!((living, going.len()), (None, 3));
    assert!(going.iter().all(|name| name.ends_with("-0")), "{going:?}");
    let mut released = made("released", "another", UUID, 0);
    released.metadata.finalizers = None;
    apply(released);
    assert_eq!(claimants().0.as_deref(), Some("released"));
    let unnamed = deleted(made("own", "pod", "17", 10));
    let Claimants { living, going } = index.claimants(&unnamed, 3);
    assert!(living.is_none() && going.is_empty());
}

/// Of a Pod of another name.
fn named(mut peerpod: PeerPod, pod: &str) -> PeerPod {
    peerpod.metadata.owner_references.as_mut().unwrap()[0].name = pod.into();
    peerpod
}

#[test]
fn only_peerpods_of_pods_whose_vms_have_the_same_name_claim_a_vm() {
    let index = Index::default();
    let own = deleted(named(made("own", "pod", UUID, 10), "web.0"));
    let apply = |peerpod| drop(index.apply(&Event::Apply(peerpod)));
    apply(own.clone());
    let ownerless = |number: usize| {
        let mut peerpod = made(&format!("ownerless-{number}"), "", UUID, 0);
        peerpod.metadata.owner_references = None;
        peerpod
    };
    for number in 0..100 {
        apply(ownerless(number));
        apply(named(made(&format!("a{number}"), &number.to_string(), UUID, 0), "web"));
        apply(deleted(named(made(&format!("b{number}"), &format!("b{number}"), UUID, 0), "web-1")));
    }
    let claimants = || {
        let Claimants { living, going } = index.claimants(&own, 200);
        (living.map(|key| key.name.clone()), going.len())
    };
    assert_eq!(claimants(), (None, 0));
    let Claimants { living, going } = index.claimants_of_any_name(&own, 200);
    assert_eq!((living.is_some(), going.len()), (true, 100));

    // Their VMs have the same name.
    apply(deleted(named(made("going", "x", UUID, 0), "web-0")));
    assert_eq!(claimants(), (None, 1));
    let living = named(made("living", "y", UUID, 0), "web-0");
    apply(living.clone());
    assert_eq!(claimants(), (Some("living".to_owned()), 1));
    assert!(requeued(&index, &Event::Delete(ownerless(0))).is_empty(), "it claimed nothing");
    assert_eq!(requeued(&index, &Event::Delete(living)), ["going", "own"]);
}

#[test]
fn another_vm_of_a_pod_is_known_by_a_living_record_of_it() {
    let index = Index::default();
    let own = made("own", "pod", UUID, 10);
    let pod = |namespace: &str, uid: &str| ObjectMeta {
        name: Some("web".into()),
        namespace: Some(namespace.into()),
        uid: Some(uid.into()),
        ..ObjectMeta::default()
    };
    index.apply(&Event::Apply(own.clone()));
    index.apply(&Event::Apply(made("same", "other", UUID, 10)));
    index.apply(&Event::Apply(deleted(made("going", "other", &vm(1), 10))));
    index.apply(&Event::Apply(released(made("released", "other", &vm(2), 10))));
    assert!(!index.has_another_vm(&pod("shop", "other"), &own));
    index.apply(&Event::Apply(made("held", "other", &vm(3), 10)));
    assert!(index.has_another_vm(&pod("shop", "other"), &own));
    assert!(!index.has_another_vm(&pod("bank", "other"), &own));
    assert!(!index.has_another_vm(&pod("shop", "pod"), &own), "it has this one alone");
}

#[test]
fn a_crowd_that_names_one_vm_is_no_crowd_of_siblings_and_none_of_it_wants_a_look() {
    let index = Index::default();
    for number in 0..100 {
        let change = index.apply(&Event::Apply(made(&format!("a{number}"), "pod", UUID, number / 10)));
        assert!(!change.matters && change.others.is_empty(), "{number}: {change:?}");
        let other = of_another_pod(made(&format!("b{number}"), &format!("pod{number}"), UUID, number / 10));
        assert!(!index.apply(&Event::Apply(other)).matters);
    }
    assert!(index.to_resync().is_empty());
    for number in 1..100 {
        let going = deleted(made(&format!("a{number}"), "pod", UUID, number / 10));
        assert!(index.apply(&Event::Apply(going)).others.is_empty(), "others still need the VM");
    }
}

#[test]
fn each_pod_whose_peerpod_waits_for_a_vm_is_requeued_when_another_claim_is_removed() {
    let index = Index::default();
    let going = |number: usize| deleted(made(&format!("{number:02}"), &number.to_string(), UUID, 0));
    for number in 0..MOST_PODS {
        index.apply(&Event::Apply(going(number)));
    }
    assert_eq!(requeued(&index, &Event::Delete(going(0))).len(), MOST_PODS - 1);
    assert_eq!(index.going_beside(&going(1)).len(), MOST_PODS - 2);
}

#[test]
fn however_many_siblings_there_are_a_change_reaches_a_few_of_those_that_it_may_concern() {
    let index = Index::default();
    for number in 0..100 {
        let change = index.apply(&Event::Apply(made(&format!("{number:02}"), "pod", &vm(number), 0)));
        assert!(change.others.len() <= FEW + 1, "{change:?}");
        assert_eq!(change.matters, number > 0);
    }
    let newest = made("newest", "pod", &vm(1000), 1);
    let change = index.apply(&Event::Apply(newest.clone()));
    assert!(!change.matters && change.others.len() == FEW + 1, "{change:?}");
    assert_eq!(requeued(&index, &Event::Delete(newest)).len(), FEW + 1);
    assert_eq!(names(&index.to_resync()).len(), 100);
}

#[test]
fn one_whose_vm_turns_out_to_be_newer_or_older_concerns_its_siblings_and_namesakes() {
    let index = Index::default();
    let apply = |peerpod: &PeerPod| requeued(&index, &Event::Apply(peerpod.clone()));
    let [a, b, c] = [("a", 10), ("b", 20), ("c", 30)];
    let [a, b, c] =
        [(a, 0), (b, 1), (c, 2)].map(|((name, second), number)| made(name, "pod", &vm(number), second));
    assert!(apply(&a).is_empty());
    assert_eq!(apply(&b), ["a"]);
    assert_eq!(apply(&c), ["a", "b"]);
    // The VM of the last one is the oldest.
    let first = deleted(made("first", "pod", &vm(2), 5));
    assert_eq!(apply(&first), ["a", "b", "c"]);
    assert_eq!(asked(&index, &c), ["b", "a"]);
    assert_eq!(requeued(&index, &Event::Delete(first)), ["a", "b", "c"]);
    // PeerPods of another cloud, in another namespace, or of a Pod of another name are not siblings.
    let mut foreign = [a.clone(), a.clone(), a];
    foreign[0].spec.cloud_provider = Some("aws".into());
    foreign[1].metadata.namespace = Some("elsewhere".into());
    foreign[2].metadata.owner_references.as_mut().unwrap()[0].name = "other".into();
    for (number, one) in foreign.iter_mut().enumerate() {
        one.metadata.name = Some(format!("foreign-{number}"));
        one.spec.instance_id = Some(vm(5));
        assert_eq!(apply(one), [""; 0], "{one:?}");
    }
}

/// One change affects a crowd, and the reconciles in turn reach all of it.
#[test]
fn a_crowd_is_reached_by_a_chain_of_changes() {
    let index = Index::default();
    let crowd: Vec<_> = (0..100).map(|number| made(&number.to_string(), "pod", UUID, number)).collect();
    for one in &crowd {
        index.apply(&Event::Apply(one.clone()));
    }
    let by_name = |name: &str| crowd[name.parse::<usize>().unwrap()].clone();
    // Its VM was replaced: every reconcile deletes the PeerPod.
    let mut waiting = requeued(&index, &Event::Apply(made("newer", "pod", &vm(1), 200)));
    let mut gone = HashSet::new();
    while let Some(name) = waiting.pop() {
        if gone.insert(name.clone()) {
            waiting.extend(requeued(&index, &Event::Apply(deleted(by_name(&name)))));
        }
    }
    assert_eq!(gone.len(), 100);
    // The VM is gone: every reconcile releases the PeerPod.
    let mut waiting = vec!["0".to_owned()];
    let mut released = HashSet::new();
    while let Some(name) = waiting.pop() {
        if released.insert(name.clone()) {
            waiting.extend(requeued(&index, &Event::Delete(deleted(by_name(&name)))));
        }
    }
    assert_eq!(released.len(), 100);
}

#[test]
fn doubt_stays_as_long_as_a_peerpod_records_the_vm_for_the_pod_whatever_becomes_of_its_status() {
    let index = Index::default();
    let one = made("a", "pod", UUID, 10);
    let again = made("b", "pod", UUID, 20);
    let mut marked = one.clone();
    let kept = Condition { type_: "KeptForPod".into(), ..condition() };
    marked.status = Some(PeerPodStatus { conditions: vec![kept], ..PeerPodStatus::default() });
    index.apply(&Event::Apply(again.clone()));
    assert!(!index.is_doubted(&one));
    index.apply(&Event::Apply(marked.clone()));
    assert!(names(&index.to_resync()).is_empty(), "nothing is to be done about it");
    index.apply(&Event::Apply(one.clone()));
    assert!(index.is_doubted(&one) && index.is_doubted(&again));
    assert!(
        !index.is_doubted(&made("c", "pod", &vm(1), 10)) && !index.is_doubted(&of_another_pod(one.clone()))
    );
    for round in 0..2 {
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(if round == 0 { marked.clone() } else { again.clone() }));
        index.apply(&Event::InitDone);
        assert!(index.is_doubted(&one), "{round}");
    }
    index.apply(&Event::Delete(again));
    assert!(!index.is_doubted(&one));
    index.apply(&Event::Apply(one.clone()));
    index.doubt(&one);
    assert!(index.is_doubted(&one));
    index.apply(&Event::Init);
    index.apply(&Event::InitDone);
    assert!(!index.is_doubted(&one));
}

#[test]
fn a_written_status_is_no_change_and_everything_that_decisions_read_is() {
    let index = Index::default();
    index.apply(&Event::Apply(made("sibling", "pod-1", &vm(1), 10)));
    let mut one = peerpod("a", "pod-1", UUID);
    let matters = |one: &PeerPod| index.apply(&Event::Apply(one.clone())).matters;
    assert!(matters(&one));
    one.status = Some(PeerPodStatus::default());
    one.metadata.resource_version = Some("2".into());
    assert!(!matters(&one));
    one.metadata.finalizers = Some(vec![FINALIZER.into(), "a/b".into()]);
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
    let sibling = made("sibling", "pod-1", &vm(1), 10);
    index.apply(&Event::Apply(sibling.clone()));
    index.apply(&Event::Apply(one.clone()));
    assert_eq!(population(&index).queued, 1);
    // The sibling is removed, and the reconcile of the other one finds nothing to do.
    index.apply(&Event::Delete(sibling));
    index.reconcile_started(&key(&one), &metrics);
    assert_eq!(population(&index).queued, 0);
    // Only now the watch delivers what an earlier reconcile wrote.
    one.status = Some(PeerPodStatus { conditions: vec![condition()], ..PeerPodStatus::default() });
    assert!(index.apply(&Event::Apply(one.clone())).matters);
    assert_eq!(population(&index).queued, 1);
    assert!(!index.apply(&Event::Apply(one.clone())).matters, "it is asked for already");
    assert_eq!(population(&index).queued, 1);
    index.reconcile_started(&key(&one), &metrics);
    assert_eq!(population(&index).queued, 0);
}

#[test]
fn a_living_peerpod_wants_a_look_only_if_it_shares_something_or_its_status_speaks() {
    let index = Index::default();
    let alone = peerpod("alone", "pod-1", UUID);
    let mut speaks = peerpod("speaks", "pod-2", "");
    speaks.status = Some(PeerPodStatus { conditions: vec![condition()], ..PeerPodStatus::default() });
    let deleted = deleted(peerpod("deleted", "pod-3", ""));
    let siblings = [made("old", "pod-4", &vm(1), 10), made("new", "pod-4", &vm(2), 20)];
    let all = [alone, speaks.clone(), deleted, siblings[0].clone(), siblings[1].clone()];

    index.apply(&Event::Init);
    let matters = |one: &PeerPod| index.apply(&Event::InitApply(one.clone())).matters;
    assert_eq!(all.each_ref().map(matters), [false; 5], "the list is not whole");
    assert_eq!(names(&index.apply(&Event::InitDone).others), ["deleted", "new", "old", "speaks"]);
    assert_eq!(names(&index.to_resync()), ["deleted", "new", "old", "speaks"]);

    speaks.status = None;
    assert!(!index.apply(&Event::Apply(speaks)).matters);
    assert_eq!(names(&index.apply(&Event::Delete(siblings[1].clone())).others), ["old"]);
    assert_eq!(names(&index.to_resync()), ["deleted"]);
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
    for one in [&a, &b] {
        index.apply(&Event::Apply(one.clone()));
    }
    shows(0, 0, None);
    a.metadata.deletion_timestamp = Some(Timestamp::from_second(20).unwrap().into());
    index.apply(&Event::Apply(a.clone()));
    b.metadata.deletion_timestamp = Some(Timestamp::from_second(10).unwrap().into());
    index.apply(&Event::Apply(b.clone()));
    shows(2, 2, Some(10));
    index.reconcile_started(&key(&b), &metrics);
    index.reconcile_started(&key(&b), &metrics);
    shows(1, 2, Some(10));
    // The items of a list are reconciled when it is complete, and what it lacks is removed then.
    index.apply(&Event::Init);
    index.apply(&Event::InitApply(a.clone()));
    index.reconcile_started(&key(&a), &metrics);
    shows(0, 2, Some(10));
    index.apply(&Event::InitDone);
    shows(1, 1, Some(20));
    index.reconcile_started(&key(&a), &metrics);
    shows(0, 1, Some(20));
    // A PeerPod that waits for its Pod is pending, and not overdue; only its status says that it waits.
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
