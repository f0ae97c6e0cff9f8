use proptest::prelude::*;

use super::*;

const POD: &str = "web-0";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn id(text: &str) -> InstanceId {
    InstanceId::parse("aws", text).unwrap()
}

fn vm(name: &str) -> Vm {
    Vm { id: id("i-1"), name: name.to_owned(), marked: true, own_disks: Vec::new() }
}

fn own_vm() -> Vm {
    vm("podvm-web-0-1a2b3c4d")
}

/// A deleted PeerPod whose Pod is gone and whose machine is there.
pub(in crate::peerpod) fn dangling() -> Facts {
    Facts {
        now: at(100),
        deleted: Some(at(99)),
        finalizer: true,
        abandoned: false,
        created: at(0),
        pod: Some(POD.to_owned()),
        owner: Owner::Gone,
        sandbox_ready: None,
        instance: Ok(id("i-1")),
        claimed_by: None,
        machine: Machine::Present(own_vm()),
        deletion_accepted: false,
    }
}

fn live_one() -> Facts {
    Facts { deleted: None, owner: Owner::NotAsked, ..dangling() }
}

#[test]
fn a_dangling_machine_is_deleted_then_waited_for_then_its_finalizer_released() {
    assert!(matches!(decide(dangling()), Decision::Delete(_)));
    let accepted = Facts { deletion_accepted: true, ..dangling() };
    assert!(matches!(decide(accepted), Decision::Wait(Wait::MachineGoes)));
    let absent = Facts { machine: Machine::Absent, ..dangling() };
    assert_eq!(decide(absent), Decision::Release(Release::Absent));
}

#[test]
fn a_running_pod_keeps_its_machine() {
    let runs = Facts { owner: Owner::Running, ..dangling() };
    assert_eq!(decide(runs.clone()), Decision::Wait(Wait::PodRuns));
    let absent = Facts { machine: Machine::Absent, ..runs };
    assert_eq!(decide(absent), Decision::Release(Release::Absent), "there is nothing to keep");
}

#[test]
fn an_identifier_that_names_no_machine_and_a_cloud_that_is_not_served_are_refused() {
    let problem = IdProblem::Empty;
    let unnamed = Facts { instance: Err(problem.clone()), machine: Machine::NotAsked, ..dangling() };
    assert_eq!(decide(unnamed), Decision::Refuse(Refusal::BadInstance(problem)));
    let unserved = Machine::Unanswered(Error::new(ErrorClass::NotSupported, "no"));
    let expected = Decision::Refuse(Refusal::NotSupported("no".to_owned()));
    assert_eq!(decide(Facts { machine: unserved, ..dangling() }), expected);
}

#[test]
fn an_ending_pod_keeps_its_machine_for_its_grace_period_and_the_slack() {
    let ending = |until| decide(Facts { owner: Owner::Ending { until: at(until) }, ..dangling() });
    assert_eq!(ending(110), Decision::Wait(Wait::PodEnds(Duration::from_secs(40))));
    assert_eq!(ending(71), Decision::Wait(Wait::PodEnds(Duration::from_secs(1))));
    assert!(matches!(ending(70), Decision::Delete(_)));
}

#[test]
fn a_finished_pod_needs_no_machine() {
    assert!(matches!(decide(Facts { owner: Owner::Finished, ..dangling() }), Decision::Delete(_)));
}

#[test]
fn without_an_owner_nothing_is_deleted_and_absence_releases() {
    let ownerless = Facts { pod: None, ..dangling() };
    assert_eq!(decide(ownerless.clone()), Decision::Refuse(Refusal::NoOwner));
    assert_eq!(decide(Facts { machine: Machine::Absent, ..ownerless }), Decision::Release(Release::Absent));
}

#[test]
fn a_machine_of_another_name_or_claimed_by_another_is_refused() {
    let foreign = Facts { machine: Machine::Present(vm("database")), ..dangling() };
    assert!(matches!(decide(foreign), Decision::Refuse(Refusal::NotOwn(_))));
    let claimed = Facts { claimed_by: Some("shop/web".into()), ..dangling() };
    assert_eq!(decide(claimed), Decision::Refuse(Refusal::Claimed("shop/web".into())));
}

#[test]
fn an_administrators_word_releases_only_what_is_being_deleted() {
    let abandoned = Facts { abandoned: true, ..dangling() };
    assert_eq!(decide(abandoned.clone()), Decision::Release(Release::Abandoned));
    assert_eq!(decide(Facts { deleted: None, ..abandoned }), Decision::Nothing);
}

/// The last moment in which the sandbox of a PeerPod that was made at the second 0 may become ready.
const LATEST: i64 = LONGEST_START.as_secs();

fn ready_at(second: i64, facts: Facts) -> Facts {
    Facts { sandbox_ready: Some(at(second)), owner: Owner::Running, ..facts }
}

#[test]
fn one_whose_pod_left_the_machine_for_a_newer_one_goes() {
    assert_eq!(decide(ready_at(LATEST + 1, live_one())), Decision::Supersede);
    let kept = Decision::Wait(Wait::PodRuns);
    assert_eq!(decide(ready_at(LATEST, live_one())), kept, "the sandbox may be this machine's");
    assert_eq!(decide(ready_at(-1, live_one())), kept, "clocks differ");
    let silent = Facts { owner: Owner::Running, ..live_one() };
    assert_eq!(decide(silent), kept, "no kubelet says anything");
}

#[test]
fn a_newer_sibling_of_a_pod_that_is_through_changes_nothing() {
    for owner in [Owner::Gone, Owner::Finished] {
        assert_eq!(decide(Facts { owner, ..live_one() }), Decision::Nothing);
    }
}

#[test]
fn a_machine_that_the_pod_left_goes_while_the_pod_runs_or_ends() {
    assert!(matches!(decide(ready_at(LATEST + 1, dangling())), Decision::Delete(_)));
    assert_eq!(decide(ready_at(LATEST, dangling())), Decision::Wait(Wait::PodRuns));
    let ends = Facts { owner: Owner::Ending { until: at(500) }, ..ready_at(LATEST + 1, dangling()) };
    assert!(matches!(decide(ends), Decision::Delete(_)));
}

fn any_machine() -> impl Strategy<Value = Machine> {
    let class = prop_oneof![
        Just(ErrorClass::Transient),
        Just(ErrorClass::Unauthorized),
        Just(ErrorClass::Invalid),
        Just(ErrorClass::NotSupported),
        Just(ErrorClass::Throttled { retry_after: Duration::from_secs(3) }),
    ];
    let present = (
        prop_oneof![Just("podvm-web-0-1a2b3c4d"), Just("database"), Just("podvm-web-00-1a2b3c4d")],
        any::<bool>(),
    )
        .prop_map(|(name, marked)| Machine::Present(Vm { marked, ..vm(name) }));
    prop_oneof![
        1 => Just(Machine::NotAsked),
        1 => Just(Machine::Absent),
        4 => present,
        1 => class.prop_map(|class| Machine::Unanswered(Error::new(class, "no")))
    ]
}

fn any_owner() -> impl Strategy<Value = Owner> {
    prop_oneof![
        Just(Owner::NotAsked),
        Just(Owner::Gone),
        Just(Owner::Finished),
        Just(Owner::Running),
        (0i64..300).prop_map(|until| Owner::Ending { until: at(until) }),
    ]
}

prop_compose! {
    fn any_facts()(
        (deleted, finalizer, abandoned) in (any::<bool>(), prop::bool::weighted(0.9), prop::bool::weighted(0.1)),
        created in 0i64..4,
        pod in prop_oneof![1 => Just(None), 5 => Just(Some(POD.to_owned()))],
        owner in any_owner(),
        instance in prop_oneof![1 => Just(Err(IdProblem::Empty)), 5 => Just(Ok(id("i-1")))],
        sandbox_ready in prop::option::of(prop_oneof![Just(1i64), (0i64..6).prop_map(|late| LATEST + late)]),
        claimed_by in prop::option::weighted(0.2, Just("shop/other".to_owned())),
        machine in any_machine(),
        deletion_accepted in any::<bool>(),
    ) -> Facts {
        let deleted = deleted.then(|| at(99));
        Facts { now: at(100), deleted, finalizer, abandoned, created: at(created), pod, owner, sandbox_ready: sandbox_ready.map(at), instance, claimed_by, machine, deletion_accepted }
    }
}

/// Whether the Pod's sandbox cannot be this machine's; written anew, so that it can disagree with the code under test.
fn left(facts: &Facts) -> bool {
    facts.sandbox_ready.is_some_and(|ready| ready.as_second() > facts.created.as_second() + LATEST)
}

fn pod_may_run(owner: Owner, now: Timestamp) -> bool {
    match owner {
        Owner::Gone | Owner::Finished => false,
        Owner::NotAsked | Owner::Running => true,
        Owner::Ending { until } => now < until + SLACK,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_machine_is_deleted_only_when_it_is_this_pods_and_going(facts in any_facts()) {
        let decision = decide(facts.clone());
        if let Decision::Delete(own) = decision {
            prop_assert!(facts.deleted.is_some() && facts.finalizer && !facts.abandoned);
            prop_assert!(facts.claimed_by.is_none());
            prop_assert_eq!(&own.vm().name, "podvm-web-0-1a2b3c4d");
            prop_assert!(own.vm().marked);
            prop_assert!(!pod_may_run(facts.owner, facts.now) || left(&facts));
        }
    }

    #[test]
    fn the_finalizer_goes_only_after_absence_or_by_an_administrators_word(facts in any_facts()) {
        if let Decision::Release(release) = decide(facts.clone()) {
            prop_assert!(facts.deleted.is_some());
            match release {
                Release::Absent => prop_assert_eq!(facts.machine, Machine::Absent),
                Release::Abandoned => prop_assert!(facts.abandoned),
            }
        }
    }

    #[test]
    fn a_living_peerpod_is_superseded_or_left_alone(facts in any_facts()) {
        let facts = Facts { deleted: None, ..facts };
        let decision = decide(facts.clone());
        prop_assert!(matches!(
            decision,
            Decision::Nothing | Decision::Supersede | Decision::Wait(Wait::PodRuns | Wait::PodEnds(_))
        ));
        let superseded = facts.finalizer && facts.owner != Owner::NotAsked && left(&facts);
        prop_assert_eq!(decision == Decision::Supersede, superseded);
    }

    #[test]
    fn a_pod_that_is_going_is_never_waited_for_beyond_its_grace_period_and_slack(facts in any_facts(), until in 0i64..300) {
        let late = Facts { owner: Owner::Ending { until: at(until) }, now: at(until) + SLACK, ..facts };
        prop_assert!(!matches!(decide(late), Decision::Wait(Wait::PodRuns | Wait::PodEnds(_))));
    }

    /// Play the decisions against a cloud that does as it is told: whatever the start, it ends released, or refused with
    /// the machine untouched, or waits for a Pod that still runs.
    #[test]
    fn it_converges(facts in any_facts()) {
        let mut facts = Facts { deleted: Some(at(99)), ..facts };
        if facts.machine == Machine::NotAsked {
            facts.machine = Machine::Present(own_vm());
        }
        for _ in 0..4 {
            match decide(facts.clone()) {
                Decision::Delete(_) => { facts.machine = Machine::Absent; facts.deletion_accepted = true; }
                Decision::Wait(Wait::MachineGoes) => facts.deletion_accepted = false,
                Decision::Wait(Wait::PodEnds(left)) => facts.now += SignedDuration::try_from(left).unwrap(),
                _ => break,
            }
        }
        let end = decide(facts.clone());
        prop_assert!(
            matches!(end, Decision::Release(_) | Decision::Nothing | Decision::Refuse(_) | Decision::Retry(_) | Decision::Wait(Wait::PodRuns)),
            "{end:?} from {facts:?}"
        );
        if matches!(end, Decision::Nothing) { prop_assert!(!facts.finalizer); }
        if matches!(end, Decision::Wait(Wait::PodRuns)) { prop_assert!(matches!(facts.owner, Owner::NotAsked | Owner::Running)); }
    }
}

#[test]
fn every_decision_has_a_label_of_the_table() {
    let error = Error::new(ErrorClass::Transient, "");
    let own = guard::prove(vm("podvm-web-0-1a2b3c4d"), "web-0").unwrap();
    let decisions = [
        Decision::Nothing,
        Decision::Supersede,
        Decision::Delete(own),
        Decision::Wait(Wait::PodRuns),
        Decision::Wait(Wait::MachineGoes),
        Decision::Retry(error),
        Decision::Release(Release::Absent),
        Decision::Refuse(Refusal::NoOwner),
    ];
    assert_eq!(decisions.map(|decision| decision.as_str()), Decision::LABELS.map(|(label, _)| label));
}
