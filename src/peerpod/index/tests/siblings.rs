//! PeerPods of one Pod.

use super::*;

#[test]
fn peerpods_without_finalizer_with_a_younger_one_are_requeued_a_few_at_a_time() {
    let index = Index::default();
    let failed = |number: u64| {
        without_finalizer(made(
            &format!("web-{number:03}"),
            "pod",
            &vm(number),
            i64::try_from(number).unwrap(),
        ))
    };
    assert!(!index.apply(&Event::Apply(failed(0))).matters, "it is the youngest");
    for number in 1..100 {
        assert!(requeued(&index, &Event::Apply(failed(number))).len() <= 2 * MOST_RELATIVES);
    }
    assert!(index.siblings(&failed(98)).has_younger && !index.siblings(&failed(99)).has_younger);
    assert_eq!(names(&index.to_resync()).len(), 2 * MOST_RELATIVES);
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
    let others = [of_another_pod(failed(2)), deleted(failed(3)), without_finalizer(made("x", "pod", "", 0))];
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
    assert!(index.apply(&Event::Apply(without_finalizer(held))).matters);
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
    index.apply(&Event::Apply(without_finalizer(made("failed", "other", &vm(2), 10))));
    assert!(!index.has_another_vm(&pod("shop", "other"), &own));
    index.apply(&Event::Apply(made("held", "other", &vm(3), 10)));
    assert!(index.has_another_vm(&pod("shop", "other"), &own));
    assert!(!index.has_another_vm(&pod("bank", "other"), &own));
    assert!(!index.has_another_vm(&pod("shop", "pod"), &own), "it has this one alone");
}

#[test]
fn many_peerpods_of_one_vm_are_no_siblings_and_are_not_requeued() {
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
fn a_change_requeues_a_bounded_number_of_siblings() {
    let index = Index::default();
    for number in 0..100 {
        let change = index.apply(&Event::Apply(made(&format!("{number:02}"), "pod", &vm(number), 0)));
        assert!(change.others.len() <= MOST_RELATIVES + 1, "{change:?}");
        assert_eq!(change.matters, number > 0);
    }
    let newest = made("newest", "pod", &vm(1000), 1);
    let change = index.apply(&Event::Apply(newest.clone()));
    assert!(!change.matters && change.others.len() == MOST_RELATIVES + 1, "{change:?}");
    assert_eq!(requeued(&index, &Event::Delete(newest)).len(), MOST_RELATIVES + 1);
    assert_eq!(names(&index.to_resync()).len(), 100);
}

#[test]
fn an_older_record_of_a_vm_requeues_its_siblings_and_namesakes() {
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
