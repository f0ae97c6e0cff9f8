mod properties;
mod siblings;

use super::{super::reasons::LostState, *};
use crate::provider::{Bears, IdProblem, InstanceId, NAME_LIMIT};
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
        unread_finalizers: false,
        abandoned: false,
        recorded: at(0),
        age: SignedDuration::from_hours(1),
        pod: Some(POD.to_owned()),
        name_limit: NAME_LIMIT,
        owner: Owner::Gone,
        clean_up: Duration::ZERO,
        pod_created: Some(at(-100)),
        in_sandbox: InSandbox::Unknown,
        instance: Ok(id("i-1")),
        has_younger: false,
        siblings: Vec::new(),
        claimed_by: None,
        vm: VmState::Present(own_vm()),
        finding: None,
        developer_mode: false,
        deletion_accepted: false,
    }
}

#[test]
fn a_lost_vm_of_a_running_pod_is_reported_and_kept() {
    for state in LostState::ALL {
        let lost = |facts| decide(&Facts { finding: Some(PeerPodFinding::Lost(state)), ..facts });
        assert_eq!(lost(live_one()), Decision::Keep(Kept::Lost(state)));
        assert_eq!(lost(dangling()), decide(&dangling()), "its deletion goes on");
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
    assert!(matches!(decide(&dangling()), Decision::Delete(_)));
    let accepted = Facts { deletion_accepted: true, ..dangling() };
    assert!(matches!(decide(&accepted), Decision::Wait(Wait::VmDeletion(_))));
    let absent = Facts { vm: VmState::Absent, ..dangling() };
    assert_eq!(decide(&absent), Decision::Release(Release::Absent));
}

#[test]
fn a_vm_that_its_cloud_is_deleting_is_waited_for_and_not_deleted_again() {
    let leaving = |vm: Vm| Facts { vm: VmState::Present(Vm { stage: Stage::Leaving, ..vm }), ..dangling() };
    assert_eq!(decide(&leaving(own_vm())), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    assert!(matches!(decide(&leaving(vm("database"))), Decision::Refuse(Blocked::NotOwn(_))));
}

#[test]
fn remains_of_a_vm_are_deleted_and_supersede_nothing() {
    let remains = |bears| Vm { stage: Stage::Remains(bears), ..own_vm() };
    for vm in [remains(Bears::Name), Vm { name: "eip-i-1".to_owned(), ..remains(Bears::Id) }] {
        let facts = Facts { vm: VmState::Present(vm), ..dangling() };
        assert!(matches!(decide(&facts), Decision::Delete(_)));
        let accepted = Facts { deletion_accepted: true, ..facts };
        assert_eq!(decide(&accepted), Decision::Wait(Wait::VmDeletion(Duration::ZERO)));
    }
    let newer =
        Sibling { vm: VmState::Present(Vm { id: id("i-2"), ..remains(Bears::Name) }), ..sibling(5, None) };
    assert_eq!(decide(&Facts { siblings: vec![newer], ..live_one() }), Decision::Nothing);
}

#[test]
fn a_vm_that_is_much_older_than_its_record_is_not_deleted() {
    let made = |before: i64| Facts { vm: present(Some(-before)), ..dangling() };
    assert!(matches!(decide(&made(3600)), Decision::Delete(_)));
    assert!(matches!(decide(&made(-60)), Decision::Delete(_)), "the cloud's clock is ahead");
    let Decision::Refuse(blocked) = decide(&made(3601)) else { panic!("it is deleted") };
    assert!(matches!(blocked, Blocked::NotOwn(ownership::NotOwn::Older { .. })), "{blocked:?}");
    assert_eq!(decide(&Facts { abandoned: true, ..made(3601) }), Decision::Release(Release::Abandoned));
}

#[test]
fn a_running_pod_keeps_its_vm() {
    let runs = Facts { owner: Owner::Running, ..dangling() };
    assert_eq!(decide(&runs), Decision::Wait(Wait::PodRuns));
    let absent = Facts { vm: VmState::Absent, ..runs };
    assert_eq!(decide(&absent), Decision::Release(Release::Absent), "there is nothing to keep");
}

#[test]
fn an_identifier_that_names_no_vm_and_a_cloud_that_is_not_served_are_refused() {
    let problem = IdProblem::Empty;
    let unnamed = Facts { instance: Err(problem.clone()), vm: VmState::NotAsked, ..dangling() };
    assert_eq!(decide(&unnamed), Decision::Refuse(Blocked::BadInstance(problem)));
    let unserved = VmState::Unanswered(Error::new(ErrorClass::NotSupported, "no"));
    let expected = Decision::Refuse(Blocked::NotSupported("no".into()));
    assert_eq!(decide(&Facts { vm: unserved, ..dangling() }), expected);
}

#[test]
fn an_ending_pod_keeps_its_vm_for_its_grace_period_and_the_slack() {
    let ending = |known_for| decide(&Facts { owner: ending(10, known_for), ..dangling() });
    assert_eq!(ending(0), Decision::Wait(Wait::PodEnds(Duration::from_secs(40))));
    assert_eq!(ending(39), Decision::Wait(Wait::PodEnds(Duration::from_secs(1))));
    assert!(matches!(ending(40), Decision::Delete(_)));
    assert!(matches!(ending(u64::MAX), Decision::Delete(_)));
    let forever =
        Facts { owner: Owner::Terminating { grace: Duration::MAX, known_for: SLACK }, ..dangling() };
    assert!(matches!(decide(&forever), Decision::Wait(Wait::PodEnds(_))));
}

#[test]
fn what_cloud_api_adaptor_may_still_clean_up_is_left_to_it_and_released_once_that_is_done() {
    let left = Duration::from_secs(300);
    let ended = Facts { clean_up: left, ..dangling() };
    assert_eq!(decide(&ended), Decision::Wait(Wait::CleanUp(left)));
    assert_eq!(decide(&Facts { vm: VmState::Absent, ..ended.clone() }), Decision::Release(Release::Absent));
    let runs = Facts { owner: Owner::Running, ..ended };
    assert_eq!(decide(&runs), Decision::Wait(Wait::PodRuns));
}

#[test]
fn a_finished_pod_needs_no_vm() {
    assert!(matches!(decide(&Facts { owner: Owner::Finished, ..dangling() }), Decision::Delete(_)));
}

#[test]
fn a_live_peerpod_is_retired_after_its_pod_ended_and_a_sweep_saw_it() {
    let left = Facts { finding: Some(PeerPodFinding::Ended), owner: Owner::Finished, ..live_one() };
    assert_eq!(decide(&left), Decision::Retire);
    let siblings = vec![sibling(0, None)];
    assert_eq!(decide(&Facts { siblings, ..left.clone() }), Decision::Retire, "it needs none of its VMs");
    assert_eq!(decide(&Facts { developer_mode: true, ..left.clone() }), Decision::Keep(Kept::DeveloperMode));
    for owner in [Owner::Running, Owner::Gone, ending(0, 0)] {
        assert_eq!(decide(&Facts { owner, ..left.clone() }), Decision::Nothing, "{owner:?}");
    }
    for finding in [None, Some(PeerPodFinding::NoVm)] {
        let unseen = Facts { finding, ..left.clone() };
        assert_eq!(decide(&unseen), Decision::Nothing, "cloud-api-adaptor may still delete the VM");
    }
    let without_finalizer = Facts { finalizer: false, ..left };
    assert_eq!(decide(&without_finalizer), Decision::Nothing);
}

#[test]
fn without_an_owner_nothing_is_deleted_and_absence_releases() {
    let ownerless = Facts { pod: None, ..dangling() };
    assert_eq!(decide(&ownerless), Decision::Refuse(Blocked::NoOwner));
    let older = Facts { vm: present(Some(-2 * 3600)), ..ownerless.clone() };
    assert!(matches!(decide(&older), Decision::Refuse(Blocked::NotOwn(ownership::NotOwn::Older { .. }))));
    assert_eq!(decide(&Facts { vm: VmState::Absent, ..ownerless }), Decision::Release(Release::Absent));
}

#[test]
fn a_live_peerpod_without_an_owner_is_reported_and_no_sibling_replaces_it() {
    let ownerless = Facts { pod: None, siblings: vec![sibling(1, None)], ..live_one() };
    assert_eq!(decide(&ownerless), Decision::Keep(Kept::NoOwner));
    assert_eq!(decide(&Facts { finalizer: false, ..ownerless }), Decision::Nothing);
}

#[test]
fn a_vm_of_another_name_or_claimed_by_another_is_refused() {
    let foreign = Facts { vm: VmState::Present(vm("database")), ..dangling() };
    assert!(matches!(decide(&foreign), Decision::Refuse(Blocked::NotOwn(_))));
    let claimed = Facts { claimed_by: Some("shop/web".into()), ..dangling() };
    assert_eq!(decide(&claimed), Decision::Refuse(Blocked::Claimed("shop/web".into())));
}

#[test]
fn an_administrators_word_releases_only_what_is_being_deleted() {
    let abandoned = Facts { abandoned: true, ..dangling() };
    assert_eq!(decide(&abandoned), Decision::Release(Release::Abandoned));
    assert_eq!(decide(&Facts { deleted: None, ..abandoned }), Decision::Nothing);
}

#[test]
fn developer_mode_blocks_vm_deletions_and_no_other_decision() {
    let developing = |facts| Facts { developer_mode: true, ..facts };
    assert_eq!(decide(&developing(dangling())), Decision::Refuse(Blocked::DeveloperMode));
    let superseded = Facts { siblings: vec![sibling(1, None)], ..live_one() };
    assert_eq!(decide(&superseded), Decision::Supersede);
    assert_eq!(decide(&developing(superseded)), Decision::Keep(Kept::DeveloperMode));
    for (facts, expected) in [
        (live_one(), Decision::Nothing),
        (Facts { vm: VmState::Absent, ..dangling() }, Decision::Release(Release::Absent)),
        (Facts { abandoned: true, ..dangling() }, Decision::Release(Release::Abandoned)),
        (Facts { deletion_accepted: true, ..dangling() }, Decision::Wait(Wait::VmDeletion(Duration::ZERO))),
        (Facts { pod: None, ..dangling() }, Decision::Refuse(Blocked::NoOwner)),
    ] {
        assert_eq!(decide(&developing(facts)), expected);
    }
}

#[test]
fn every_decision_has_a_label_of_the_table() {
    let error = Error::new(ErrorClass::Transient, "");
    let own = ownership::verify(vm("podvm-web-0-1a2b3c4d"), "web-0", NAME_LIMIT).unwrap();
    let decisions = [
        Decision::Nothing,
        Decision::Supersede,
        Decision::Retire,
        Decision::Tidy,
        Decision::Keep(Kept::Ambiguous),
        Decision::Delete(own),
        Decision::Wait(Wait::Start),
        Decision::Wait(Wait::VmDeletion(Duration::ZERO)),
        Decision::Retry(error),
        Decision::Release(Release::Absent),
        Decision::Refuse(Blocked::NoOwner),
    ];
    assert_eq!(decisions.map(|decision| decision.as_str()), Decision::LABELS.map(|(label, _)| label));
}
