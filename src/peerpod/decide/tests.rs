use proptest::prelude::*;

use super::*;
use crate::{
    provider::{Bears, IdProblem, InstanceId, NAME_LIMIT},
    sweep::LostState,
};
use operator_kit::Message;

const POD: &str = "web-0";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn id(text: &str) -> InstanceId {
    InstanceId::scoped("", text)
}

fn vm(name: &str) -> Vm {
    Vm::named(id("i-1"), name)
}

pub(in crate::peerpod) fn own_vm() -> Vm {
    vm("podvm-web-0-1a2b3c4d")
}

/// A deleted PeerPod whose Pod is gone and whose VM is there.
pub(in crate::peerpod) fn dangling() -> Facts {
    Facts {
        deleted: Some(at(99)),
        finalizer: true,
        abandoned: false,
        recorded: at(0),
        pod: Some(POD.to_owned()),
        name_limit: NAME_LIMIT,
        owner: Owner::Gone,
        in_sandbox: InSandbox::Unknown,
        instance: Ok(id("i-1")),
        has_younger: false,
        siblings: Vec::new(),
        claimed_by: None,
        vm: VmState::Present(own_vm()),
        lost: None,
        developer_mode: false,
        deletion_accepted: false,
    }
}

#[test]
fn a_running_pods_lost_vm_is_told_and_nothing_is_done() {
    for state in LostState::ALL {
        let lost = |facts| decide(Facts { lost: Some(state), ..facts });
        assert_eq!(lost(live_one()), Decision::Keep(Blocked::Lost(state)));
        assert_eq!(lost(dangling()), decide(dangling()), "its deletion goes on");
    }
}

fn ending(grace: u64, known_for: u64) -> Owner {
    Owner::Terminating { grace: Duration::from_secs(grace), known_for: Duration::from_secs(known_for) }
}

fn live_one() -> Facts {
    Facts { deleted: None, owner: Owner::Running, ..dangling() }
}

fn sibling(created: i64, vm_created: Option<i64>) -> Sibling {
    Sibling {
        recorded: at(created),
        vm: VmState::Present(Vm { id: id("i-2"), created: vm_created.map(at), ..own_vm() }),
    }
}

fn present(created: Option<i64>) -> VmState {
    VmState::Present(Vm { created: created.map(at), ..own_vm() })
}

#[test]
fn a_dangling_vm_is_deleted_then_waited_for_then_its_finalizer_released() {
    assert!(matches!(decide(dangling()), Decision::Delete(_)));
    let accepted = Facts { deletion_accepted: true, ..dangling() };
    assert!(matches!(decide(accepted), Decision::Wait(Wait::VmDeletion(_))));
    let absent = Facts { vm: VmState::Absent, ..dangling() };
    assert_eq!(decide(absent), Decision::Release(Release::Absent));
}

#[test]
fn a_vm_that_its_cloud_is_deleting_is_waited_for_and_not_deleted_again() {
    let leaving = |vm: Vm| Facts { vm: VmState::Present(Vm { stage: Stage::Leaving, ..vm }), ..dangling() };
    assert_eq!(decide(leaving(own_vm())), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    assert!(matches!(decide(leaving(vm("database"))), Decision::Refuse(Blocked::NotOwn(_))));
}

#[test]
fn what_remains_of_a_vm_is_deleted_and_supersedes_nothing() {
    let remains = |bears| Vm { stage: Stage::Remains(bears), ..own_vm() };
    for vm in [remains(Bears::Name), Vm { name: "eip-i-1".to_owned(), ..remains(Bears::Id) }] {
        let facts = Facts { vm: VmState::Present(vm), ..dangling() };
        assert!(matches!(decide(facts.clone()), Decision::Delete(_)));
        let accepted = Facts { deletion_accepted: true, ..facts };
        assert_eq!(decide(accepted), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    }
    let newer =
        Sibling { vm: VmState::Present(Vm { id: id("i-2"), ..remains(Bears::Name) }), ..sibling(5, None) };
    assert_eq!(decide(Facts { siblings: vec![newer], ..live_one() }), Decision::Nothing);
}

#[test]
fn a_running_pod_keeps_its_vm() {
    let runs = Facts { owner: Owner::Running, ..dangling() };
    assert_eq!(decide(runs.clone()), Decision::Wait(Wait::PodRuns));
    let absent = Facts { vm: VmState::Absent, ..runs };
    assert_eq!(decide(absent), Decision::Release(Release::Absent), "there is nothing to keep");
}

#[test]
fn an_identifier_that_names_no_vm_and_a_cloud_that_is_not_served_are_refused() {
    let problem = IdProblem::Empty;
    let unnamed = Facts { instance: Err(problem.clone()), vm: VmState::NotAsked, ..dangling() };
    assert_eq!(decide(unnamed), Decision::Refuse(Blocked::BadInstance(problem)));
    let unserved = VmState::Unanswered(Error::new(ErrorClass::NotSupported, "no"));
    let expected = Decision::Refuse(Blocked::NotSupported("no".into()));
    assert_eq!(decide(Facts { vm: unserved, ..dangling() }), expected);
}

#[test]
fn an_ending_pod_keeps_its_vm_for_its_grace_period_and_the_slack() {
    let ending = |known_for| decide(Facts { owner: ending(10, known_for), ..dangling() });
    assert_eq!(ending(0), Decision::Wait(Wait::PodEnds(Duration::from_secs(40))));
    assert_eq!(ending(39), Decision::Wait(Wait::PodEnds(Duration::from_secs(1))));
    assert!(matches!(ending(40), Decision::Delete(_)));
    assert!(matches!(ending(u64::MAX), Decision::Delete(_)));
    let forever =
        Facts { owner: Owner::Terminating { grace: Duration::MAX, known_for: SLACK }, ..dangling() };
    assert!(matches!(decide(forever), Decision::Wait(Wait::PodEnds(_))));
}

#[test]
fn a_finished_pod_needs_no_vm() {
    assert!(matches!(decide(Facts { owner: Owner::Finished, ..dangling() }), Decision::Delete(_)));
}

#[test]
fn without_an_owner_nothing_is_deleted_and_absence_releases() {
    let ownerless = Facts { pod: None, ..dangling() };
    assert_eq!(decide(ownerless.clone()), Decision::Refuse(Blocked::NoOwner));
    assert_eq!(decide(Facts { vm: VmState::Absent, ..ownerless }), Decision::Release(Release::Absent));
}

#[test]
fn a_vm_of_another_name_or_claimed_by_another_is_refused() {
    let foreign = Facts { vm: VmState::Present(vm("database")), ..dangling() };
    assert!(matches!(decide(foreign), Decision::Refuse(Blocked::NotOwn(_))));
    let claimed = Facts { claimed_by: Some("shop/web".into()), ..dangling() };
    assert_eq!(decide(claimed), Decision::Refuse(Blocked::Claimed("shop/web".into())));
}

#[test]
fn an_administrators_word_releases_only_what_is_being_deleted() {
    let abandoned = Facts { abandoned: true, ..dangling() };
    assert_eq!(decide(abandoned.clone()), Decision::Release(Release::Abandoned));
    assert_eq!(decide(Facts { deleted: None, ..abandoned }), Decision::Nothing);
}

#[test]
fn in_developer_mode_no_vm_is_deleted_and_all_else_goes_on() {
    let developing = |facts| Facts { developer_mode: true, ..facts };
    assert_eq!(decide(developing(dangling())), Decision::Refuse(Blocked::DeveloperMode));
    let superseded = Facts { siblings: vec![sibling(1, None)], ..live_one() };
    assert_eq!(decide(superseded.clone()), Decision::Supersede);
    assert_eq!(decide(developing(superseded)), Decision::Keep(Blocked::DeveloperMode));
    for (facts, expected) in [
        (live_one(), Decision::Nothing),
        (Facts { vm: VmState::Absent, ..dangling() }, Decision::Release(Release::Absent)),
        (Facts { abandoned: true, ..dangling() }, Decision::Release(Release::Abandoned)),
        (Facts { deletion_accepted: true, ..dangling() }, Decision::Wait(Wait::VmDeletion(Duration::ZERO))),
        (Facts { pod: None, ..dangling() }, Decision::Refuse(Blocked::NoOwner)),
    ] {
        assert_eq!(decide(developing(facts)), expected);
    }
}

#[test]
fn the_older_of_two_living_siblings_goes_where_both_clocks_agree() {
    let decide_with = |created, own: Option<i64>, other| {
        decide(Facts { recorded: at(created), vm: present(own), siblings: vec![other], ..live_one() })
    };
    assert_eq!(decide_with(0, None, sibling(1, None)), Decision::Supersede);
    assert_eq!(decide_with(1, None, sibling(0, None)), Decision::Nothing);
    assert_eq!(decide_with(0, Some(0), sibling(0, Some(1))), Decision::Supersede, "the cloud breaks the tie");
    let unclear = Decision::Keep(Blocked::Ambiguous);
    assert_eq!(decide_with(0, None, sibling(0, None)), unclear, "a tie that nothing breaks");
    assert_eq!(decide_with(0, Some(3), sibling(0, Some(3))), unclear, "a tie of both clocks");
    assert_eq!(decide_with(0, Some(3), sibling(1, Some(3))), unclear, "a tie of the cloud's clock");
    assert_eq!(decide_with(0, Some(5), sibling(1, Some(3))), unclear, "clocks that disagree");
    let by_start = |own: Option<u32>, recorded, other: Option<u32>| {
        let vm = VmState::Present(Vm { start: own, ..own_vm() });
        let other_vm = VmState::Present(Vm { id: id("i-2"), start: other, ..own_vm() });
        let other = Sibling { recorded: at(recorded), vm: other_vm };
        decide(Facts { recorded: at(0), vm, siblings: vec![other], ..live_one() })
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
fn a_released_peerpod_goes_where_its_vm_is_absent_and_its_pod_has_a_younger_one() {
    let released = Facts { finalizer: false, has_younger: true, vm: VmState::Absent, ..live_one() };
    assert_eq!(decide(released.clone()), Decision::Tidy);
    for kept in [
        Facts { has_younger: false, ..released.clone() },
        Facts { deleted: Some(at(99)), ..released.clone() },
        Facts { vm: VmState::NotAsked, ..released.clone() },
        Facts { vm: present(None), ..released.clone() },
        Facts { vm: VmState::Unanswered(Error::new(ErrorClass::NotSupported, "no")), ..released.clone() },
    ] {
        assert_eq!(decide(kept.clone()), Decision::Nothing, "{kept:?}");
    }
    let busy = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Facts { vm: VmState::Unanswered(busy.clone()), ..released };
    assert_eq!(decide(unanswered), Decision::Retry(busy));
}

#[test]
fn a_released_peerpods_vm_is_deleted_where_a_newer_one_superseded_it() {
    let released =
        Facts { finalizer: false, has_younger: true, siblings: vec![sibling(1, None)], ..live_one() };
    assert!(matches!(decide(released.clone()), Decision::Delete(_)));
    let accepted = Facts { deletion_accepted: true, ..released.clone() };
    assert_eq!(decide(accepted), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    let claimed = Facts { claimed_by: Some("shop/web".into()), ..released.clone() };
    assert_eq!(decide(claimed), Decision::Refuse(Blocked::Claimed("shop/web".into())), "it is asked again");
    for unclear in [
        Facts { siblings: vec![sibling(0, None)], ..released.clone() },
        Facts { in_sandbox: InSandbox::By(at(0)), ..released.clone() },
    ] {
        assert_eq!(decide(unclear), Decision::Keep(Blocked::Ambiguous), "it is asked again");
    }
    let stayed = Facts { in_sandbox: InSandbox::By(at(0)), ..released.clone() };
    assert!(contradicted(&stayed), "what comes later is no evidence");
    let busy = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Sibling { vm: VmState::Unanswered(busy.clone()), ..sibling(1, None) };
    assert_eq!(decide(Facts { siblings: vec![unanswered], ..released.clone() }), Decision::Retry(busy));
    for kept in [
        Facts { abandoned: true, ..released.clone() },
        Facts { developer_mode: true, ..released.clone() },
        Facts { has_younger: false, ..released.clone() },
        Facts { pod: None, ..released },
    ] {
        assert_eq!(decide(kept.clone()), Decision::Nothing, "{kept:?}");
    }
}

#[test]
fn a_newer_sibling_that_records_a_foreign_vm_or_the_same_one_takes_nobodys_place() {
    let foreign =
        Sibling { vm: VmState::Present(Vm { id: id("i-2"), ..vm("database") }), ..sibling(5, None) };
    let unmarked = Vm { id: id("i-2"), marked: false, ..own_vm() };
    let unmarked = Sibling { vm: VmState::Present(unmarked), ..sibling(5, None) };
    let same = Sibling { vm: VmState::Present(own_vm()), ..sibling(5, None) };
    for sibling in [foreign, unmarked, same] {
        let siblings = vec![sibling];
        assert_eq!(decide(Facts { siblings: siblings.clone(), ..live_one() }), Decision::Nothing);
        let deleted = Facts { owner: Owner::Running, siblings, ..dangling() };
        assert_eq!(decide(deleted), Decision::Wait(Wait::PodRuns));
    }
}

#[test]
fn siblings_that_the_cloud_cannot_tell_about_are_asked_for_again() {
    let error = Error::new(ErrorClass::Transient, "busy");
    let unanswered = Sibling { vm: VmState::Unanswered(error.clone()), ..sibling(1, None) };
    assert_eq!(decide(Facts { siblings: vec![unanswered], ..live_one() }), Decision::Retry(error));
}

#[test]
fn a_superseded_vm_goes_while_the_pod_runs_on_the_newer_one() {
    let superseded = Facts { owner: Owner::Running, siblings: vec![sibling(5, None)], ..dangling() };
    assert!(matches!(decide(superseded), Decision::Delete(_)));
    let tied = Facts { owner: Owner::Running, siblings: vec![sibling(0, None)], ..dangling() };
    assert_eq!(decide(tied), Decision::Wait(Wait::PodRuns));
}

#[test]
fn a_newer_sibling_replaces_nothing_while_the_pod_is_in_a_sandbox_of_before() {
    let facts = |in_sandbox: i64, siblings: &[Sibling]| Facts {
        in_sandbox: InSandbox::By(at(in_sandbox)),
        siblings: siblings.to_vec(),
        ..live_one()
    };
    let deleted = |facts: &Facts| decide(Facts { deleted: Some(at(99)), ..facts.clone() });
    let newer = sibling(5, None);
    // Before this one was made, the two clocks differ.
    for by in [-1, 0, 4] {
        let facts = facts(by, std::slice::from_ref(&newer));
        assert_eq!(decide(facts.clone()), Decision::Keep(Blocked::Ambiguous), "at {by}");
        assert_eq!(deleted(&facts), Decision::Wait(Wait::PodRuns), "at {by}");
        assert!(contradicted(&facts), "at {by}");
    }
    for by in [5, 60] {
        let facts = facts(by, std::slice::from_ref(&newer));
        assert_eq!(decide(facts.clone()), Decision::Supersede, "at {by}");
        assert!(matches!(deleted(&facts), Decision::Delete(_)), "at {by}");
        assert!(!contradicted(&facts), "at {by}");
    }
    let between = facts(3, &[newer, sibling(2, None)]);
    assert_eq!(decide(between.clone()), Decision::Supersede, "the Pod is in the VM of another one");
    assert!(!contradicted(&between));
}

#[test]
fn doubt_does_not_pass_with_what_showed_where_the_pod_runs() {
    // Recorded at 10, the other one at 60; the sandbox is ready since 20, and later it seems since 100.
    let seen =
        |in_sandbox| Facts { recorded: at(10), in_sandbox, siblings: vec![sibling(60, None)], ..live_one() };
    assert!(contradicted(&seen(InSandbox::By(at(20)))));
    assert_eq!(decide(seen(InSandbox::By(at(100)))), Decision::Supersede, "where that was never seen");
    let later = seen(InSandbox::Doubted);
    assert_eq!(decide(later.clone()), Decision::Keep(Blocked::Ambiguous));
    assert_eq!(decide(Facts { deleted: Some(at(99)), ..later.clone() }), Decision::Wait(Wait::PodRuns));
    let through = Facts { deleted: Some(at(99)), owner: Owner::Finished, ..later };
    assert!(matches!(decide(through), Decision::Delete(_)), "the Pod runs nowhere any more");
}

#[test]
fn doubt_does_not_pass_with_what_showed_which_vm_was_started_first() {
    // The VM that was started last was recorded first.
    let started = |own, other| {
        let vm = |named: &str, start| VmState::Present(Vm { id: id(named), start, ..own_vm() });
        let siblings = vec![Sibling { recorded: at(60), vm: vm("i-2", other) }];
        Facts { recorded: at(10), vm: vm("i-1", own), siblings, ..live_one() }
    };
    let seen = started(Some(4), Some(3));
    assert_eq!(decide(seen.clone()), Decision::Keep(Blocked::Ambiguous));
    assert!(contradicted(&seen));
    for later in [started(None, None), started(Some(1), Some(2))] {
        assert_eq!(decide(later.clone()), Decision::Supersede, "where that was never seen");
        let later = Facts { in_sandbox: InSandbox::Doubted, ..later };
        assert_eq!(decide(later), Decision::Keep(Blocked::Ambiguous));
    }
    assert!(!contradicted(&started(Some(3), Some(4))) && !contradicted(&started(Some(3), Some(3))));
}

#[test]
fn only_what_may_be_the_pods_newer_vm_is_a_reason_for_doubt() {
    let with = |vm| {
        let siblings = vec![Sibling { vm, ..sibling(60, None) }];
        contradicted(&Facts { in_sandbox: InSandbox::By(at(20)), siblings, ..live_one() })
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
    assert!(!contradicted(&older));
}

fn any_vm_state() -> impl Strategy<Value = VmState> {
    let class = prop_oneof![
        Just(ErrorClass::Transient),
        Just(ErrorClass::Unauthorized),
        Just(ErrorClass::Invalid),
        Just(ErrorClass::NotSupported),
        Just(ErrorClass::Throttled { retry_after: Duration::from_secs(3) }),
        Just(ErrorClass::Queued { retry_after: Duration::from_secs(3) }),
    ];
    let present = (
        prop_oneof![Just("podvm-web-0-1a2b3c4d"), Just("database"), Just("podvm-web-00-1a2b3c4d")],
        any::<bool>(),
        prop::option::of(0i64..4),
        prop::option::weighted(0.3, 0u32..4),
    )
        .prop_map(|(name, marked, created, start)| {
            VmState::Present(Vm { marked, created: created.map(at), start, ..vm(name) })
        });
    prop_oneof![
        1 => Just(VmState::NotAsked),
        1 => Just(VmState::Absent),
        4 => present,
        1 => class.prop_map(|class| VmState::Unanswered(Error::new(class, "no")))
    ]
}

prop_compose! {
    fn any_sibling()(created in 0i64..4, vm in any_vm_state(), other in prop::bool::weighted(0.8)) -> Sibling {
        let vm = match vm {
            VmState::Present(vm) if other => VmState::Present(Vm { id: id("i-2"), ..vm }),
            vm => vm,
        };
        Sibling { recorded: at(created), vm }
    }
}

fn any_owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        Just(Owner::Gone),
        Just(Owner::Finished),
        Just(Owner::Running),
        (0u64..200, 0u64..300).prop_map(|(grace, known_for)| ending(grace, known_for)),
    ]
}

prop_compose! {
    fn any_facts()(
        (deleted, finalizer, abandoned) in (any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.1)),
        has_younger in any::<bool>(),
        created in 0i64..4,
        pod in prop_oneof![1 => Just(None), 5 => Just(Some(POD.to_owned()))],
        owner in any_owner(),
        instance in prop_oneof![1 => Just(Err(IdProblem::Empty)), 5 => Just(Ok(id("i-1")))],
        in_sandbox in prop_oneof![
            3 => Just(InSandbox::Unknown),
            3 => (-1i64..5).prop_map(|second| InSandbox::By(at(second))),
            1 => Just(InSandbox::Doubted),
        ],
        siblings in prop::collection::vec(any_sibling(), 0..4),
        claimed_by in prop::option::weighted(0.2, Just(Message::from("shop/other"))),
        (vm, lost) in (any_vm_state(), prop::option::of(prop::sample::select(&LostState::ALL[..]))),
        developer_mode in prop::bool::weighted(0.2),
        deletion_accepted in any::<bool>(),
    ) -> Facts {
        let deleted = deleted.then(|| at(99));
        Facts { deleted, finalizer, abandoned, recorded: at(created), pod, name_limit: NAME_LIMIT, owner, in_sandbox, instance, has_younger, siblings, claimed_by, vm, lost, developer_mode, deletion_accepted }
    }
}

/// Whether some sibling is newer beyond doubt; written anew, so that it can disagree with the code under test.
fn replaced(facts: &Facts) -> bool {
    facts.siblings.iter().any(|sibling| {
        let VmState::Present(other) = &sibling.vm else { return false };
        let (own_created, own_start) = match &facts.vm {
            VmState::Present(own) => (own.created, own.start),
            VmState::Absent => (None, None),
            _ => return false,
        };
        let this_pods = facts.pod.is_some() && other.name == "podvm-web-0-1a2b3c4d" && other.marked;
        let stayed = facts.in_sandbox == InSandbox::Doubted
            || matches!(facts.in_sandbox, InSandbox::By(time) if time < sibling.recorded);
        this_pods
            && !stayed
            && facts.instance != Ok(other.id.clone())
            && match (own_start, other.start, own_created, other.created) {
                (Some(a), Some(b), ..) => a < b && facts.recorded <= sibling.recorded,
                (Some(_), None, ..) => false,
                (_, _, Some(a), Some(b)) => a < b && facts.recorded <= sibling.recorded,
                _ => facts.recorded < sibling.recorded,
            }
    })
}

fn pod_may_run(owner: Owner) -> bool {
    match owner {
        Owner::Gone | Owner::Finished => false,
        Owner::Running => true,
        Owner::Terminating { grace, known_for } => known_for < grace + SLACK,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_vm_is_deleted_only_when_it_is_this_pods_and_going(facts in any_facts()) {
        let decision = decide(facts.clone());
        if let Decision::Delete(own) = decision {
            prop_assert!(!facts.abandoned);
            if facts.finalizer {
                prop_assert!(facts.deleted.is_some());
            } else {
                prop_assert!(facts.deleted.is_none() && facts.has_younger && replaced(&facts));
            }
            prop_assert!(facts.claimed_by.is_none() && !facts.developer_mode);
            prop_assert_eq!(&own.vm().name, "podvm-web-0-1a2b3c4d");
            prop_assert!(own.vm().marked);
            prop_assert!(!pod_may_run(facts.owner) || replaced(&facts));
        }
    }

    #[test]
    fn the_finalizer_goes_only_after_absence_or_by_an_administrators_word(facts in any_facts()) {
        if let Decision::Release(release) = decide(facts.clone()) {
            prop_assert!(facts.deleted.is_some());
            match release {
                Release::Absent => prop_assert_eq!(facts.vm, VmState::Absent),
                Release::Abandoned => prop_assert!(facts.abandoned),
            }
        }
    }

    #[test]
    fn a_living_peerpod_is_superseded_or_left_alone(facts in any_facts()) {
        let facts = Facts { deleted: None, finalizer: true, ..facts };
        let decision = decide(facts.clone());
        prop_assert!(!matches!(decision, Decision::Delete(_) | Decision::Tidy | Decision::Release(_) | Decision::Wait(_)));
        let goes = if facts.developer_mode { Decision::Keep(Blocked::DeveloperMode) } else { Decision::Supersede };
        prop_assert_eq!(decision == goes, replaced(&facts));
        prop_assert!(decision != Decision::Supersede || !facts.developer_mode);
    }

    #[test]
    fn a_released_peerpod_goes_only_after_absence_and_never_the_youngest(facts in any_facts()) {
        let facts = Facts { finalizer: false, ..facts };
        let decision = decide(facts.clone());
        prop_assert!(!matches!(decision, Decision::Supersede | Decision::Release(_)));
        let goes = facts.deleted.is_none() && facts.has_younger && facts.vm == VmState::Absent;
        prop_assert_eq!(decision == Decision::Tidy, goes);
    }

    #[test]
    fn of_any_siblings_one_survives(
        made in prop::collection::vec((0i64..3, prop::option::of(0i64..3), prop::option::of(0u32..3)), 1..6)
    ) {
        let vm = |named: &str, (_, created, start): (i64, Option<i64>, Option<u32>)| {
            VmState::Present(Vm { id: id(named), created: created.map(at), start, ..own_vm() })
        };
        let survivors = (0..made.len()).filter(|&index| {
            let siblings = made.iter().enumerate().filter(|(other, _)| *other != index)
                .map(|(_, it)| Sibling { recorded: at(it.0), vm: vm("i-2", *it) }).collect();
            let own = made[index];
            decide(Facts { recorded: at(own.0), vm: vm("i-1", own), siblings, ..live_one() }) != Decision::Supersede
        });
        prop_assert!(survivors.count() >= 1);
    }

    #[test]
    fn a_pod_that_is_going_is_never_waited_for_beyond_its_grace_period_and_slack(facts in any_facts(), grace in 0u64..300) {
        let late = Facts { owner: ending(grace, grace + SLACK.as_secs()), ..facts };
        prop_assert!(!matches!(decide(late), Decision::Wait(Wait::PodRuns | Wait::PodEnds(_))));
    }

    /// Plays the decisions against a cloud that carries out every call: whatever the start, it ends released, or refused with
    /// the VM untouched, or waits for a Pod that still runs.
    #[test]
    fn it_converges(facts in any_facts()) {
        let mut facts = Facts { deleted: Some(at(99)), ..facts };
        if facts.vm == VmState::NotAsked {
            facts.vm = present(None);
        }
        for _ in 0..4 {
            match decide(facts.clone()) {
                Decision::Delete(_) => { facts.vm = VmState::Absent; facts.deletion_accepted = true; }
                Decision::Wait(Wait::VmDeletion(_)) => facts.deletion_accepted = false,
                Decision::Wait(Wait::PodEnds(left)) => {
                    let Owner::Terminating { known_for, .. } = &mut facts.owner else { panic!("{facts:?}") };
                    *known_for += left;
                }
                _ => break,
            }
        }
        let end = decide(facts.clone());
        prop_assert!(
            matches!(end, Decision::Release(_) | Decision::Nothing | Decision::Refuse(_) | Decision::Retry(_) | Decision::Wait(Wait::PodRuns)),
            "{end:?} from {facts:?}"
        );
        if matches!(end, Decision::Nothing) { prop_assert!(!facts.finalizer); }
        if matches!(end, Decision::Wait(Wait::PodRuns)) { prop_assert_eq!(facts.owner, Owner::Running); }
    }
}

#[test]
fn every_decision_has_a_label_of_the_table() {
    let error = Error::new(ErrorClass::Transient, "");
    let own = ownership::verify(vm("podvm-web-0-1a2b3c4d"), "web-0", NAME_LIMIT).unwrap();
    let decisions = [
        Decision::Nothing,
        Decision::Supersede,
        Decision::Tidy,
        Decision::Keep(Blocked::Ambiguous),
        Decision::Delete(own),
        Decision::Wait(Wait::PodRuns),
        Decision::Wait(Wait::VmDeletion(Duration::ZERO)),
        Decision::Retry(error),
        Decision::Release(Release::Absent),
        Decision::Refuse(Blocked::NoOwner),
    ];
    assert_eq!(decisions.map(|decision| decision.as_str()), Decision::LABELS.map(|(label, _)| label));
}
