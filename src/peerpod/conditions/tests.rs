use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::{
    peerpod::{decide::Release, reasons::Blocked},
    provider::{Error, InstanceId, NAME_LIMIT, Vm, ownership},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_normal_deletion_sets_no_condition() {
    assert_eq!(condition_update(&Decision::Wait(Wait::VmDeletion(std::time::Duration::ZERO))), None);
    assert_eq!(condition_update(&Decision::Release(Release::Absent)), None);
}

#[test]
fn one_condition_is_true_and_a_transition_time_moves_only_with_its_status() {
    let stalled = ConditionUpdate { reason: Reason::NoOwner, message: "a".into() };
    let first = conditions(Some(&stalled), false, &[], Some(2), at(10));
    assert_eq!(first.iter().map(|c| c.status.as_str()).collect::<Vec<_>>(), ["False", "True"]);
    let other = ConditionUpdate { reason: Reason::ClaimedByAnother, message: "b".into() };
    let second = conditions(Some(&other), false, &first, Some(2), at(20));
    assert_eq!(second[1].last_transition_time, Time(at(10)));
    let waiting = ConditionUpdate { reason: Reason::WaitingForPod, message: "c".into() };
    let third = conditions(Some(&waiting), false, &second, Some(2), at(30));
    assert_eq!(third[1].last_transition_time, Time(at(30)));
}

/// Every decision that carries a text from outside.
fn decisions() -> Vec<Decision> {
    let message = || Message::new("public text", "root@host-7, bank/payroll");
    let reported = |class: &ErrorClass| !matches!(class, ErrorClass::Unsettled { .. });
    let errors = ErrorClass::ALL.into_iter().filter(reported);
    let errors = errors.map(|class| Decision::Retry(Error::new(class, message())));
    let id = InstanceId::scoped("", "i-1");
    let vm = Vm::named(id, "podvm-payroll-1");
    let refusals = [
        Blocked::NotOwn(ownership::verify(vm, "web", NAME_LIMIT).unwrap_err()),
        Blocked::Claimed(message()),
        Blocked::NotSupported(message()),
    ];
    errors.chain(refusals.map(Decision::Refuse)).collect()
}

#[test]
fn a_condition_never_shows_what_only_the_log_may() {
    for decision in decisions() {
        let update = condition_update(&decision).unwrap();
        for update in [slow(at(0), &update.message), update] {
            for condition in conditions(Some(&update), false, &[], None, at(0)) {
                for private in ["host-7", "root", "bank", "payroll"] {
                    assert!(!condition.message.contains(private), "{condition:?}");
                }
            }
            let throttled =
                update.reason == Reason::CloudThrottled || update.message.for_log().contains("fewer calls");
            assert!(throttled || update.message.for_log().contains("payroll"), "{update:?}");
        }
    }
}

#[test]
fn kept_for_pod_is_set_with_or_without_other_conditions() {
    let stalled = ConditionUpdate { reason: Reason::AmbiguousSiblings, message: "a".into() };
    let types = |conditions: &[Condition]| conditions.iter().map(|it| it.type_.clone()).collect::<Vec<_>>();
    let first = conditions(Some(&stalled), true, &[], None, at(10));
    assert_eq!(types(&first), ["Reconciling", "Stalled", "KeptForPod"]);
    let alone = conditions(None, true, &first, None, at(20));
    assert_eq!(alone, first[2..]);
    let mut peerpod = PeerPod::new("a", serde_json::from_value(serde_json::json!({})).unwrap());
    assert!(!is_kept_for_pod(&peerpod) && !has_clearable_condition(&peerpod));
    for (conditions, says) in [(first, true), (alone, false)] {
        peerpod.status = Some(crate::api::v1alpha1::PeerPodStatus { conditions, observed_generation: None });
        assert!(is_kept_for_pod(&peerpod));
        assert_eq!(has_clearable_condition(&peerpod), says);
    }
    assert_eq!(conditions(None, false, &[], None, at(30)), []);
}

#[test]
fn a_long_message_of_a_cloud_is_cut_between_characters() {
    let error = Error::new(ErrorClass::Transient, Message::public("é".repeat(1 << 20)));
    let update = condition_update(&Decision::Retry(error)).unwrap();
    assert_eq!(update.message.for_status().len(), MESSAGE_LIMIT);
    assert_eq!(update.message.for_log().len(), MESSAGE_LIMIT);
}
