//! Which PeerPods claim a VM.

use super::*;

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
fn living_peerpods_claim_their_vm_and_deleted_ones_once_per_other_pod() {
    let index = Index::default();
    let own = deleted(made("own", "pod", UUID, 10));
    let claimants = || {
        let Claimants { living, deleting, .. } = index.claimants(&own, 3);
        (living.map(|key| key.name.clone()), names(&deleting))
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
    let (living, deleting) = claimants();
    assert_eq!((living, deleting.len()), (None, 3));
    assert!(deleting.iter().all(|name| name.ends_with("-0")), "{deleting:?}");
    assert!(index.claimants(&own, 4).one_more.is_some() && index.claimants(&own, 5).one_more.is_none());
    apply(without_finalizer(made("failed", "another", UUID, 0)));
    assert_eq!(claimants().0.as_deref(), Some("failed"));
    let unnamed = deleted(made("own", "pod", "17", 10));
    let Claimants { living, deleting, one_more } = index.claimants(&unnamed, 3);
    assert!(living.is_none() && deleting.is_empty() && one_more.is_none());
}

#[test]
fn an_earlier_start_of_the_same_pod_that_was_released_claims_no_vm() {
    let index = Index::default();
    let own = deleted(made("own", "pod", UUID, 10));
    let living = || index.claimants(&own, 3).living.map(|key| key.name.clone());
    let apply = |peerpod| drop(index.apply(&Event::Apply(peerpod)));
    apply(own.clone());
    for number in 0..MOST_EARLIER_STARTS {
        apply(without_finalizer(made(&format!("failed-{number}"), "pod", UUID, 0)));
    }
    assert_eq!(living(), None);
    apply(without_finalizer(made("later", "pod", UUID, 10)));
    assert_eq!(living().as_deref(), Some("later"), "the Pod may have got the VM again");
    apply(made("later", "pod", UUID, 0));
    assert_eq!(living().as_deref(), Some("later"), "it has the finalizer");
    apply(without_finalizer(made("later", "pod", UUID, 0)));
    assert!(living().is_some(), "so many starts do not fail");
}

#[test]
fn the_end_of_the_last_claim_requeues_what_waits_although_an_earlier_start_was_released() {
    let index = Index::default();
    let apply = |peerpod| drop(index.apply(&Event::Apply(peerpod)));
    apply(deleted(made("own", "pod", UUID, 10)));
    apply(without_finalizer(made("failed", "pod", UUID, 0)));
    let other = made("other", "another", UUID, 5);
    apply(other.clone());
    assert_eq!(requeued(&index, &Event::Delete(other)), ["own"]);
    let late = made("late", "pod", UUID, 0);
    apply(late.clone());
    assert_eq!(requeued(&index, &Event::Apply(without_finalizer(late))), ["own"]);
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
        let Claimants { living, deleting, .. } = index.claimants(&own, 200);
        (living.map(|key| key.name.clone()), deleting.len())
    };
    assert_eq!(claimants(), (None, 0));
    let Claimants { living, deleting, .. } = index.claimants_of_any_name(&own, 200);
    assert_eq!((living.is_some(), deleting.len()), (true, 100));

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
fn each_pod_whose_peerpod_waits_for_a_vm_is_requeued_when_another_claim_is_removed() {
    let index = Index::default();
    let going = |number: usize| deleted(made(&format!("{number:02}"), &number.to_string(), UUID, 0));
    for number in 0..MOST_PODS {
        index.apply(&Event::Apply(going(number)));
    }
    assert_eq!(requeued(&index, &Event::Delete(going(0))).len(), MOST_PODS - 1);
}

#[test]
fn a_deleted_peerpod_claims_no_vm_once_its_pod_has_ended() {
    let index = Index::default();
    let own = deleted(made("own", "pod", UUID, 10));
    index.apply(&Event::Apply(own.clone()));
    let others: Vec<_> = (0..MOST_PODS + 5)
        .map(|number| deleted(made(&format!("{number:02}"), &number.to_string(), UUID, 0)))
        .collect();
    for other in &others {
        index.apply(&Event::Apply(other.clone()));
    }
    let claiming = || index.claimants(&own, 100).deleting.len();
    assert_eq!(claiming(), others.len());
    for (number, other) in others.iter().enumerate() {
        let requeued = index.pod_has_ended(other, true);
        assert!(index.pod_has_ended(other, true).is_empty(), "nothing changed");
        assert_eq!(claiming(), others.len() - 1 - number);
        let is_few = others.len() - number <= MOST_PODS;
        assert_eq!(requeued.iter().any(|key| key.name == "own"), is_few, "{number}: {requeued:?}");
        assert!(requeued.len() <= MOST_PODS + 1);
    }

    index.apply(&Event::Apply(others[0].clone()));
    assert_eq!(claiming(), 0, "a mere write of the status changes nothing");
    index.pod_has_ended(&others[0], false);
    assert_eq!(claiming(), 1, "the kubelet made its mirror Pod again");
    index.pod_has_ended(&others[0], true);
    let mut changed = others[0].clone();
    changed.metadata.owner_references.as_mut().unwrap()[0].uid = "another".into();
    index.apply(&Event::Apply(changed));
    assert_eq!(claiming(), 1, "its new Pod may run");
    index.pod_has_ended(&others[0], true);
    assert_eq!(claiming(), 1, "that was found out about the former one");
    let living = made("living", "x", UUID, 0);
    index.apply(&Event::Apply(living.clone()));
    index.pod_has_ended(&living, true);
    assert!(index.claimants(&own, 3).living.is_some(), "it is not being deleted");
}
