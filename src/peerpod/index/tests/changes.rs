//! What a change matters for, and what is counted.

use super::*;

#[test]
fn a_vm_stays_kept_for_its_pod_while_any_peerpod_records_it_for_that_pod() {
    let index = Index::default();
    let one = made("a", "pod", UUID, 10);
    let again = made("b", "pod", UUID, 20);
    let mut marked = one.clone();
    let kept = Condition { type_: "KeptForPod".into(), ..condition() };
    marked.status = Some(PeerPodStatus { conditions: vec![kept], ..PeerPodStatus::default() });
    index.apply(&Event::Apply(again.clone()));
    assert!(!index.is_kept_for_pod(&one));
    index.apply(&Event::Apply(marked.clone()));
    assert!(names(&index.to_resync()).is_empty(), "nothing is to be done about it");
    index.apply(&Event::Apply(one.clone()));
    assert!(index.is_kept_for_pod(&one) && index.is_kept_for_pod(&again));
    assert!(
        !index.is_kept_for_pod(&made("c", "pod", &vm(1), 10))
            && !index.is_kept_for_pod(&of_another_pod(one.clone()))
    );
    for round in 0..2 {
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(if round == 0 { marked.clone() } else { again.clone() }));
        index.apply(&Event::InitDone);
        assert!(index.is_kept_for_pod(&one), "{round}");
    }
    index.apply(&Event::Delete(again));
    assert!(!index.is_kept_for_pod(&one));
    index.apply(&Event::Apply(one.clone()));
    index.keep_for_pod(&one);
    assert!(index.is_kept_for_pod(&one));
    index.apply(&Event::Init);
    index.apply(&Event::InitDone);
    assert!(!index.is_kept_for_pod(&one));
}

#[test]
fn a_live_peerpod_without_an_owner_is_looked_at_once() {
    let index = Index::default();
    let mut one = peerpod("a", "pod-1", UUID);
    assert!(!index.apply(&Event::Apply(one.clone())).matters);
    one.metadata.owner_references = None;
    assert!(index.apply(&Event::Apply(one.clone())).matters);
    one.metadata.resource_version = Some("2".into());
    assert!(!index.apply(&Event::Apply(one.clone())).matters);
    index.apply(&Event::Delete(one.clone()));
    index.apply(&Event::Init);
    index.apply(&Event::InitApply(one.clone()));
    let looked_at: Vec<_> = index.apply(&Event::InitDone).others;
    assert_eq!(looked_at.len(), 1, "also after a new list");
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
fn a_condition_seen_after_its_clearing_reconcile_triggers_another() {
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
fn a_living_peerpod_is_requeued_only_with_a_sibling_or_a_condition() {
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
fn queued_and_pending_peerpods_are_counted_through_every_change() {
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
    let kept = Condition { type_: "Stalled".into(), reason: "DeveloperMode".into(), ..condition() };
    let start = Timestamp::now().as_second();
    for (conditions, is_overdue) in [
        (vec![waits.clone()], false),
        (vec![idle, condition()], true),
        (vec![waits.clone()], false),
        (vec![kept], false),
        (Vec::new(), true),
    ] {
        a.status = Some(PeerPodStatus { conditions, ..PeerPodStatus::default() });
        index.apply(&Event::Apply(a.clone()));
        let oldest = population(&index).oldest;
        assert_eq!(oldest.is_some(), is_overdue);
        assert!(oldest.is_none_or(|it| it >= start), "the time of the wait counts: {oldest:?}");
    }
    a.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    index.apply(&Event::Apply(a.clone()));
    index.reconcile_started(&key(&a), &metrics);
    assert!(population(&index).oldest.is_some_and(|it| it >= start), "another change makes it count");
    index.apply(&Event::Init);
    index.apply(&Event::InitApply(a.clone()));
    index.apply(&Event::InitDone);
    index.reconcile_started(&key(&a), &metrics);
    assert!(population(&index).oldest.is_some_and(|it| it >= start), "a new list makes it count");
    let relisted = |index: &Index, conditions| {
        let mut waiting = peerpod("waiting", "pod-3", "");
        waiting.metadata.deletion_timestamp = Some(Timestamp::from_second(20).unwrap().into());
        waiting.status = Some(PeerPodStatus { conditions, ..PeerPodStatus::default() });
        index.apply(&Event::Init);
        index.apply(&Event::InitApply(waiting));
        index.apply(&Event::InitDone);
        population(index).oldest
    };
    let other = Index::default();
    assert_eq!(relisted(&other, vec![waits.clone()]), None);
    assert!(relisted(&other, Vec::new()).is_some_and(|it| it >= start), "it ended while the watch was down");
    a.metadata.finalizers = None;
    index.apply(&Event::Apply(a.clone()));
    shows(1, 0, None);
    index.apply(&Event::Delete(a));
    shows(0, 0, None);
}
