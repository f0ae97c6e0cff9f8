//! A Pod with several PeerPods.

use super::*;

#[test]
fn the_older_of_two_living_siblings_is_superseded_if_both_clocks_agree() {
    let decide_with = |created, own: Option<i64>, other| {
        decide(&Facts { recorded: at(created), vm: present(own), siblings: vec![other], ..live_one() })
    };
    assert_eq!(decide_with(0, None, sibling(1, None)), Decision::Supersede);
    assert_eq!(decide_with(1, None, sibling(0, None)), Decision::Nothing);
    assert_eq!(decide_with(0, Some(0), sibling(0, Some(1))), Decision::Supersede, "the cloud breaks the tie");
    let unclear = Decision::Keep(Kept::Ambiguous);
    assert_eq!(decide_with(0, None, sibling(0, None)), unclear, "a tie that nothing breaks");
    assert_eq!(decide_with(0, Some(3), sibling(0, Some(3))), unclear, "a tie of both clocks");
    assert_eq!(decide_with(0, Some(3), sibling(1, Some(3))), unclear, "a tie of the cloud's clock");
    assert_eq!(decide_with(0, Some(5), sibling(1, Some(3))), unclear, "clocks that disagree");
    let by_start = |own: Option<u32>, recorded, other: Option<u32>| {
        let vm = VmState::Present(Vm { start: own, ..own_vm() });
        let other_vm = VmState::Present(Vm { id: id("i-2"), start: other, ..own_vm() });
        let other = Sibling { recorded: at(recorded), vm: other_vm };
        decide(&Facts { recorded: at(0), vm, siblings: vec![other], ..live_one() })
    };
    assert_eq!(by_start(Some(3), 1, Some(4)), Decision::Supersede);
    assert_eq!(by_start(Some(3), 0, Some(4)), Decision::Supersede, "the cloud's count breaks the tie");
    assert_eq!(by_start(None, 1, Some(4)), Decision::Supersede, "a VM that is stopped");
    assert_eq!(by_start(Some(4), 1, Some(3)), unclear, "a first start that was recorded last");
    assert_eq!(by_start(Some(3), 1, None), unclear, "a newer VM that is stopped");
    let gone = Sibling { vm: VmState::Absent, ..sibling(1, None) };
    assert_eq!(decide_with(0, None, gone), Decision::Nothing, "a newer PeerPod whose VM is gone");
}

#[test]
fn every_vm_that_the_cloud_was_asked_for_is_counted() {
    let with = |vm| Sibling { vm, ..sibling(1, None) };
    let siblings = vec![sibling(2, None), with(VmState::Absent), with(VmState::NotAsked)];
    assert_eq!(Facts { siblings, ..live_one() }.asked(), 3);
    assert_eq!(Facts { vm: VmState::NotAsked, ..live_one() }.asked(), 0);
}

#[test]
fn a_newer_sibling_that_spells_the_same_vm_in_another_way_supersedes_nothing() {
    let gcp = |raw: &str| InstanceId::parse("gcp", raw).unwrap();
    let name = "podvm-web-0-1a2b3c4d";
    let by = |path: &str| {
        let vm = VmState::Present(Vm { id: gcp(path), ..own_vm() });
        let siblings = vec![Sibling { recorded: at(5), vm }];
        decide(&Facts { instance: Ok(gcp(name)), siblings, ..live_one() })
    };
    assert_eq!(by("projects/p/zones/z/instances/podvm-web-0-1a2b3c4d"), Decision::Nothing);
    assert_eq!(by("projects/p/zones/z/instances/podvm-web-0-5e6f7a8b"), Decision::Supersede, "another VM");
}

#[test]
fn a_peerpod_without_finalizer_and_vm_is_deleted_if_its_pod_has_a_younger_one() {
    let one = Facts { finalizer: false, has_younger: true, vm: VmState::Absent, ..live_one() };
    assert_eq!(decide(&one), Decision::Tidy);
    for kept in [
        Facts { has_younger: false, ..one.clone() },
        Facts { deleted: Some(at(99)), ..one.clone() },
        Facts { vm: VmState::NotAsked, ..one.clone() },
        Facts { vm: present(None), ..one.clone() },
        Facts { vm: VmState::Unanswered(Error::new(ErrorClass::NotSupported, "no")), ..one.clone() },
    ] {
        assert_eq!(decide(&kept), Decision::Nothing, "{kept:?}");
    }
    let busy = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Facts { vm: VmState::Unanswered(busy.clone()), ..one };
    assert_eq!(decide(&unanswered), Decision::Retry(busy));
}

#[test]
fn the_vm_of_a_peerpod_without_finalizer_is_deleted_where_a_newer_one_superseded_it() {
    let one = Facts { finalizer: false, has_younger: true, siblings: vec![sibling(1, None)], ..live_one() };
    assert!(matches!(decide(&one), Decision::Delete(_)));
    let accepted = Facts { deletion_accepted: true, ..one.clone() };
    assert_eq!(decide(&accepted), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    let left = Duration::from_secs(300);
    let late = Facts { clean_up: left, ..one.clone() };
    assert_eq!(decide(&Facts { developer_mode: true, ..late.clone() }), Decision::Nothing);
    assert_eq!(decide(&late), Decision::Wait(Wait::CleanUp(left)), "another start may still return it");
    let claimed = Facts { claimed_by: Some("shop/web".into()), ..one.clone() };
    assert_eq!(decide(&claimed), Decision::Refuse(Blocked::Claimed("shop/web".into())), "it is asked again");
    for unclear in [
        Facts { siblings: vec![sibling(0, None)], ..one.clone() },
        Facts { in_sandbox: InSandbox::By(at(0)), ..one.clone() },
    ] {
        assert_eq!(decide(&unclear), Decision::Keep(Kept::Ambiguous), "it is asked again");
    }
    let stayed = Facts { in_sandbox: InSandbox::By(at(0)), ..one.clone() };
    assert!(must_keep_for_pod(&stayed), "what comes later is no evidence");
    let busy = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Sibling { vm: VmState::Unanswered(busy.clone()), ..sibling(1, None) };
    assert_eq!(decide(&Facts { siblings: vec![unanswered], ..one.clone() }), Decision::Retry(busy));
    for kept in [
        Facts { abandoned: true, ..one.clone() },
        Facts { developer_mode: true, ..one.clone() },
        Facts { has_younger: false, ..one.clone() },
        Facts { pod: None, ..one },
    ] {
        assert_eq!(decide(&kept), Decision::Nothing, "{kept:?}");
    }
}

#[test]
fn a_newer_sibling_with_a_foreign_vm_or_the_same_vm_supersedes_nothing() {
    let foreign =
        Sibling { vm: VmState::Present(Vm { id: id("i-2"), ..vm("database") }), ..sibling(5, None) };
    let unmarked = Vm { id: id("i-2"), marked: false, ..own_vm() };
    let unmarked = Sibling { vm: VmState::Present(unmarked), ..sibling(5, None) };
    let same = Sibling { vm: VmState::Present(own_vm()), ..sibling(5, None) };
    for sibling in [foreign, unmarked, same] {
        let siblings = vec![sibling];
        assert_eq!(decide(&Facts { siblings: siblings.clone(), ..live_one() }), Decision::Nothing);
        let deleted = Facts { owner: Owner::Running, siblings, ..dangling() };
        assert_eq!(decide(&deleted), Decision::Wait(Wait::PodRuns));
    }
}

#[test]
fn a_newer_vm_that_is_being_deleted_supersedes_nothing() {
    let VmState::Present(newer) = sibling(5, None).vm else { panic!("it is there") };
    let with = |stage| {
        let vm = VmState::Present(Vm { stage, ..newer.clone() });
        decide(&Facts { siblings: vec![Sibling { vm, ..sibling(5, None) }], ..live_one() })
    };
    assert_eq!(with(Stage::Present), Decision::Supersede);
    assert_eq!(with(Stage::Leaving), Decision::Keep(Kept::Ambiguous));
}

#[test]
fn siblings_that_the_cloud_cannot_tell_about_are_asked_for_again() {
    let error = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Sibling { vm: VmState::Unanswered(error.clone()), ..sibling(1, None) };
    assert_eq!(decide(&Facts { siblings: vec![unanswered], ..live_one() }), Decision::Retry(error));
}

#[test]
fn a_superseded_vm_is_deleted_while_the_pod_runs_on_the_newer_one() {
    let superseded = Facts { owner: Owner::Running, siblings: vec![sibling(5, None)], ..dangling() };
    assert!(matches!(decide(&superseded), Decision::Delete(_)));
    let tied = Facts { owner: Owner::Running, siblings: vec![sibling(0, None)], ..dangling() };
    assert_eq!(decide(&tied), Decision::Wait(Wait::PodRuns));
}

#[test]
fn a_newer_sibling_replaces_nothing_while_the_pod_is_in_a_sandbox_of_before() {
    let facts = |in_sandbox: i64, siblings: &[Sibling]| Facts {
        in_sandbox: InSandbox::By(at(in_sandbox)),
        siblings: siblings.to_vec(),
        ..live_one()
    };
    let deleted = |facts: &Facts| decide(&Facts { deleted: Some(at(99)), ..facts.clone() });
    let newer = sibling(5, None);
    // Before this one was made, the two clocks differ.
    for by in [-1, 0, 4] {
        let facts = facts(by, std::slice::from_ref(&newer));
        assert_eq!(decide(&facts), Decision::Keep(Kept::Ambiguous), "at {by}");
        assert_eq!(deleted(&facts), Decision::Wait(Wait::PodRuns), "at {by}");
        assert!(must_keep_for_pod(&facts), "at {by}");
    }
    for by in [5, 60] {
        let facts = facts(by, std::slice::from_ref(&newer));
        assert_eq!(decide(&facts), Decision::Supersede, "at {by}");
        assert!(matches!(deleted(&facts), Decision::Delete(_)), "at {by}");
        assert!(!must_keep_for_pod(&facts), "at {by}");
    }
    let between = facts(3, &[newer, sibling(2, None)]);
    assert_eq!(decide(&between), Decision::Supersede, "the Pod is in the VM of another one");
    assert!(!must_keep_for_pod(&between));
}

#[test]
fn a_vm_kept_for_its_pods_sandbox_stays_kept_without_the_evidence() {
    // Recorded at 10, the other one at 60; the sandbox is ready since 20, and later it seems since 100.
    let seen =
        |in_sandbox| Facts { recorded: at(10), in_sandbox, siblings: vec![sibling(60, None)], ..live_one() };
    assert!(must_keep_for_pod(&seen(InSandbox::By(at(20)))));
    assert_eq!(decide(&seen(InSandbox::By(at(100)))), Decision::Supersede, "where that was never seen");
    let later = seen(InSandbox::BeforeAllNewer);
    assert_eq!(decide(&later), Decision::Keep(Kept::Ambiguous));
    assert_eq!(decide(&Facts { deleted: Some(at(99)), ..later.clone() }), Decision::Wait(Wait::PodRuns));
    let through = Facts { deleted: Some(at(99)), owner: Owner::Finished, ..later };
    assert!(matches!(decide(&through), Decision::Delete(_)), "the Pod runs nowhere any more");
}

#[test]
fn a_vm_kept_for_its_start_order_stays_kept_without_the_evidence() {
    // The VM that was started last was recorded first.
    let started = |own, other| {
        let vm = |named: &str, start| VmState::Present(Vm { id: id(named), start, ..own_vm() });
        let siblings = vec![Sibling { recorded: at(60), vm: vm("i-2", other) }];
        Facts { recorded: at(10), vm: vm("i-1", own), siblings, ..live_one() }
    };
    let seen = started(Some(4), Some(3));
    assert_eq!(decide(&seen), Decision::Keep(Kept::Ambiguous));
    assert!(must_keep_for_pod(&seen));
    for later in [started(None, None), started(Some(1), Some(2))] {
        assert_eq!(decide(&later), Decision::Supersede, "where that was never seen");
        let later = Facts { in_sandbox: InSandbox::BeforeAllNewer, ..later };
        assert_eq!(decide(&later), Decision::Keep(Kept::Ambiguous));
    }
    assert!(!must_keep_for_pod(&started(Some(3), Some(4))) && !must_keep_for_pod(&started(Some(3), Some(3))));
}

#[test]
fn a_vm_of_a_possibly_earlier_start_supersedes_nothing_while_the_pod_may_run() {
    // The first start hangs in the Pod's first minutes; the second one is recorded at 8, the first one at 10.
    let seen = |pod_created: Option<i64>, recorded| {
        let vm = |named: &str, start| VmState::Present(Vm { id: id(named), start: Some(start), ..own_vm() });
        let siblings = vec![Sibling { recorded: at(recorded), vm: vm("i-2", 6) }];
        let pod_created = pod_created.map(at);
        Facts { recorded: at(8), pod_created, vm: vm("i-1", 5), siblings, ..live_one() }
    };
    let unclear = Decision::Keep(Kept::Ambiguous);
    for (pod_created, recorded, expected) in [
        (None, 10, unclear.clone()),
        (Some(-230), 10, unclear.clone()),
        (Some(-229), 10, Decision::Supersede),
        (Some(-3600), 607, unclear.clone()),
        (Some(-3600), 608, Decision::Supersede),
    ] {
        let facts = seen(pod_created, recorded);
        assert_eq!(decide(&facts), expected, "{pod_created:?}, {recorded}");
        assert!(!must_keep_for_pod(&facts), "a later one may take the place");
        let young = decide(&Facts { age: SignedDuration::from_mins(9), ..facts.clone() });
        let expected_young = if expected == unclear { Decision::Wait(Wait::Start) } else { expected.clone() };
        assert_eq!(young, expected_young, "a failed start may still be cleaned up");
        let waits = decide(&Facts { deleted: Some(at(99)), ..facts }) == Decision::Wait(Wait::PodRuns);
        assert_eq!(waits, expected == unclear, "{pod_created:?}, {recorded}");
    }
    let overlapping = seen(None, 10);
    let siblings = [&overlapping.siblings[..], &seen(None, 608).siblings].concat();
    assert_eq!(
        decide(&Facts { siblings, ..overlapping.clone() }),
        Decision::Supersede,
        "a later one is newer than both"
    );
    for ended in [Owner::Gone, Owner::Finished] {
        assert_eq!(decide(&Facts { owner: ended, ..overlapping.clone() }), Decision::Supersede);
    }
    let remains = VmState::Present(Vm { stage: Stage::Remains(Bears::Name), start: Some(5), ..own_vm() });
    for vm in [VmState::Absent, remains] {
        assert_eq!(
            decide(&Facts { vm, ..overlapping.clone() }),
            Decision::Supersede,
            "there is no VM to lose"
        );
    }
}

#[test]
fn a_vm_is_kept_only_against_what_may_be_the_pods_newer_vm() {
    let with = |vm| {
        let siblings = vec![Sibling { vm, ..sibling(60, None) }];
        must_keep_for_pod(&Facts { in_sandbox: InSandbox::By(at(20)), siblings, ..live_one() })
    };
    assert!(with(sibling(60, None).vm) && with(VmState::NotAsked));
    assert!(with(VmState::Unanswered(Error::new(ErrorClass::Transient, "busy"))));
    assert!(!with(VmState::Absent) && !with(VmState::Present(Vm { id: id("i-2"), ..vm("database") })));
    assert!(!with(VmState::Present(own_vm())), "it is the same one");
    let older = Facts {
        recorded: at(70),
        in_sandbox: InSandbox::By(at(20)),
        siblings: vec![sibling(60, None)],
        ..live_one()
    };
    assert!(!must_keep_for_pod(&older));
}
