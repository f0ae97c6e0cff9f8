//! What holds whatever the facts are.

use proptest::prelude::*;

use super::*;

fn any_vm_state() -> impl Strategy<Value = VmState> {
    let class = prop_oneof![
        Just(ErrorClass::Transient),
        Just(ErrorClass::Unauthorized),
        Just(ErrorClass::Invalid),
        Just(ErrorClass::NotSupported),
        Just(ErrorClass::Throttled { retry_after: Some(Duration::from_secs(3)) }),
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
    fn any_sibling()(created in prop_oneof![0i64..4, 598i64..604], vm in any_vm_state(), other in prop::bool::weighted(0.8)) -> Sibling {
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

fn any_finding() -> impl Strategy<Value = Option<PeerPodFinding>> {
    prop_oneof![
        Just(None),
        Just(Some(PeerPodFinding::NoVm)),
        Just(Some(PeerPodFinding::Ended)),
        prop::sample::select(&LostState::ALL[..]).prop_map(|state| Some(PeerPodFinding::Lost(state))),
    ]
}

prop_compose! {
    fn any_facts()(
        (deleted, finalizer, abandoned) in (any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.1)),
        has_younger in any::<bool>(),
        created in 0i64..4,
        pod in prop_oneof![1 => Just(None), 5 => Just(Some(POD.to_owned()))],
        (owner, clean_up, pod_created, age) in (any_owner(), prop::sample::select(&[0, 60][..]), prop::option::of(-300i64..-200), prop::sample::select(&[0, 3600][..])),
        instance in prop_oneof![1 => Just(Err(IdProblem::Empty)), 5 => Just(Ok(id("i-1")))],
        in_sandbox in prop_oneof![
            3 => Just(InSandbox::Unknown),
            3 => (-1i64..5).prop_map(|second| InSandbox::By(at(second))),
            1 => Just(InSandbox::BeforeAllNewer),
        ],
        siblings in prop::collection::vec(any_sibling(), 0..4),
        claimed_by in prop::option::weighted(0.2, Just(Message::from("shop/other"))),
        (vm, finding) in (any_vm_state(), any_finding()),
        developer_mode in prop::bool::weighted(0.2),
        deletion_accepted in any::<bool>(),
    ) -> Facts {
        let deleted = deleted.then(|| at(99));
        Facts { deleted, finalizer, unread_finalizers: false, abandoned, recorded: at(created), age: SignedDuration::from_secs(age), pod, name_limit: NAME_LIMIT, owner, clean_up: Duration::from_secs(clean_up), pod_created: pod_created.map(at), in_sandbox, instance, has_younger, siblings, claimed_by, vm, finding, developer_mode, deletion_accepted }
    }
}

/// Whether some sibling is newer beyond doubt. Written independently, so that it can disagree with the code under test.
fn replaced(facts: &Facts) -> bool {
    facts.siblings.iter().any(|sibling| {
        let VmState::Present(other) = &sibling.vm else { return false };
        let (own_created, own_start) = match &facts.vm {
            VmState::Present(own) => (own.created, own.start),
            VmState::Absent => (None, None),
            _ => return false,
        };
        let this_pods = facts.pod.is_some() && other.name == "podvm-web-0-1a2b3c4d" && other.marked;
        let stayed = facts.in_sandbox == InSandbox::BeforeAllNewer
            || matches!(facts.in_sandbox, InSandbox::By(time) if time < sibling.recorded);
        let after = |time: Timestamp| sibling.recorded.as_second() - time.as_second();
        let in_turn = facts.pod_created.is_some_and(|created| after(created) < 240);
        let is_there = matches!(&facts.vm, VmState::Present(vm) if vm.stage == Stage::Present);
        let overlaps = is_there && pod_may_run(facts.owner);
        this_pods
            && !stayed
            && (!overlaps || in_turn || after(facts.recorded) >= 600)
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
        let decision = decide(&facts);
        if let Decision::Delete(own) = decision {
            prop_assert!(!facts.abandoned);
            prop_assert!(facts.clean_up.is_zero());
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
    fn the_finalizer_is_released_only_after_absence_or_abandonment(facts in any_facts()) {
        if let Decision::Release(release) = decide(&facts) {
            prop_assert!(facts.deleted.is_some());
            match release {
                Release::Absent => prop_assert_eq!(facts.vm, VmState::Absent),
                Release::Abandoned => prop_assert!(facts.abandoned),
            }
        }
    }

    #[test]
    fn nothing_is_done_while_not_all_finalizers_are_known(facts in any_facts()) {
        let facts = Facts { unread_finalizers: true, ..facts };
        prop_assert_eq!(decide(&facts), Decision::Refuse(Blocked::UnreadFinalizers));
    }

    #[test]
    fn a_living_peerpod_is_superseded_retired_or_left_alone(facts in any_facts()) {
        let facts = Facts { deleted: None, finalizer: true, ..facts };
        let decision = decide(&facts);
        prop_assert!(!matches!(decision, Decision::Delete(_) | Decision::Tidy | Decision::Release(_) | Decision::Wait(Wait::PodRuns | Wait::PodEnds(_) | Wait::CleanUp(_) | Wait::VmDeletion(_))));
        if facts.pod.is_none() {
            prop_assert_eq!(decision, Decision::Keep(Kept::NoOwner));
            return Ok(());
        }
        let has_ended = facts.finding == Some(PeerPodFinding::Ended) && facts.owner == Owner::Finished;
        let goes = match facts.developer_mode {
            true => Decision::Keep(Kept::DeveloperMode),
            false if has_ended => Decision::Retire,
            false => Decision::Supersede,
        };
        prop_assert_eq!(decision == goes, has_ended || replaced(&facts));
        prop_assert!(!matches!(decision, Decision::Supersede | Decision::Retire) || decision == goes);
    }

    #[test]
    fn a_released_peerpod_is_deleted_only_after_absence_and_if_not_the_youngest(facts in any_facts()) {
        let facts = Facts { finalizer: false, ..facts };
        let decision = decide(&facts);
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
            decide(&Facts { recorded: at(own.0), vm: vm("i-1", own), siblings, ..live_one() }) != Decision::Supersede
        });
        prop_assert!(survivors.count() >= 1);
    }

    #[test]
    fn a_pod_that_is_going_is_never_waited_for_beyond_its_grace_period_and_slack(facts in any_facts(), grace in 0u64..300) {
        let late = Facts { owner: ending(grace, grace + SLACK.as_secs()), ..facts };
        prop_assert!(!matches!(decide(&late), Decision::Wait(Wait::PodRuns | Wait::PodEnds(_))));
    }

    /// Plays the decisions against a cloud that carries out every call: whatever the start, it ends released, or refused with
    /// the VM untouched, or waits for a Pod that still runs.
    #[test]
    fn repeated_decisions_reach_a_final_state(facts in any_facts()) {
        let mut facts = Facts { deleted: Some(at(99)), ..facts };
        if facts.vm == VmState::NotAsked {
            facts.vm = present(None);
        }
        for _ in 0..5 {
            match decide(&facts) {
                Decision::Delete(_) => { facts.vm = VmState::Absent; facts.deletion_accepted = true; }
                Decision::Wait(Wait::VmDeletion(_)) => facts.deletion_accepted = false,
                Decision::Wait(Wait::PodEnds(left)) => {
                    let Owner::Terminating { known_for, .. } = &mut facts.owner else { panic!("{facts:?}") };
                    *known_for += left;
                }
                Decision::Wait(Wait::CleanUp(_)) => facts.clean_up = Duration::ZERO,
                _ => break,
            }
        }
        let end = decide(&facts);
        prop_assert!(
            matches!(end, Decision::Release(_) | Decision::Nothing | Decision::Refuse(_) | Decision::Retry(_) | Decision::Wait(Wait::PodRuns)),
            "{end:?} from {facts:?}"
        );
        if matches!(end, Decision::Nothing) { prop_assert!(!facts.finalizer); }
        if matches!(end, Decision::Wait(Wait::PodRuns)) { prop_assert_eq!(facts.owner, Owner::Running); }
    }
}
