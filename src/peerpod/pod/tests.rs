use operator_kit::testing::read_and_projected;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    super::{
        decide::{
            Decision, Facts, InSandbox, Sibling, VmState, Wait, decide, must_keep_for_pod,
            tests::{dangling, own_vm},
        },
        reasons::Kept,
    },
    *,
};
use crate::provider::{InstanceId, Vm};

#[test]
fn a_pod_may_run_until_its_phase_is_final_or_its_uid_differs() {
    let ending = Owner::Terminating { grace: Duration::from_secs(7), known_for: Duration::from_secs(14) };
    let state = |phase: Option<&str>, deleted: bool, uid: &str| {
        // The deletion's time by the API server's clock, past or future, does not matter.
        let until = Timestamp::from_second(1000).unwrap();
        let metadata = json!({
            "uid": "own", "deletionTimestamp": deleted.then_some(until),
            "deletionGracePeriodSeconds": deleted.then_some(7),
        });
        let status = phase.map(|phase| json!({ "phase": phase }));
        let pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status });
        state_of(Some(serde_json::from_value(pod).unwrap()), uid, |grace| 2 * grace).owner
    };
    for phase in [None, Some(""), Some("Pending"), Some("Running"), Some("Unknown")] {
        assert_eq!(state(phase, false, "own"), Owner::Running, "{phase:?}");
        assert_eq!(state(phase, true, "own"), ending, "{phase:?}");
        assert_eq!(state(phase, false, "another"), Owner::Gone, "{phase:?}");
    }
    let left = Duration::from_secs(7 + 30 - 14);
    assert_eq!(state(None, true, "own").may_run(), Some(Wait::PodEnds(left)), "long past by the clock");
    for phase in ["Succeeded", "Failed"] {
        assert_eq!([false, true].map(|deleted| state(Some(phase), deleted, "own")), [Owner::Finished; 2]);
    }
    assert_eq!(state_of(None, "own", |_| Duration::ZERO).owner, Owner::Gone);
}

#[test]
fn a_static_pod_runs_on_when_its_mirror_was_created_again() {
    let state = |uid: &str, phase: &str| {
        let metadata = json!({
            "uid": uid, "annotations": { MIRROR: "0123" },
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        let pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "phase": phase } });
        let [_, found] = read_and_projected(&POD, &pod);
        state_of(Some(found), "own", |_| Duration::ZERO)
    };
    for uid in ["own", "another"] {
        assert_eq!(state(uid, "Running").owner, Owner::Running, "{uid}");
        assert_eq!(state(uid, "Failed").owner, Owner::Finished, "{uid}");
        assert_eq!(state(uid, "Running").created, None, "the Pod is older than its mirror");
    }
}

#[test]
fn the_creation_time_counts_if_no_earlier_pod_had_the_name() {
    let created = |name: &str, start: Option<&str>| {
        let metadata = json!({
            "uid": "own", "name": name, "generateName": start, "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        read_and_projected(&POD, &pod)
            .map(|found| state_of(Some(found), "own", |_| Duration::ZERO).created.is_some())
    };
    assert_eq!(created("web-5d4f8c7b9-x7k2p", Some("web-5d4f8c7b9-")), [true; 2], "a ReplicaSet's");
    let long = "a".repeat(70);
    assert_eq!(
        created(&format!("{}x7k2p", &long[..58]), Some(&long)),
        [true; 2],
        "an API server cuts the start"
    );
    for (name, start) in [
        ("web-x7k2p", None),
        ("web-0", Some("web-")),
        ("web-24567", Some("web-")),
        ("job-ps-12", Some("job-")),
        ("job-worker-0", Some("job-")),
        ("another-x7k2p", Some("web-")),
    ] {
        assert_eq!(created(name, start), [false; 2], "{name}");
    }
}

/// Since when a Pod with this status was in its sandbox: the time of the sandbox' condition (ready or not), the start times
/// of its containers, and the time when the status was written.
fn in_sandbox(condition: Option<(&str, i64)>, status: &Value, written: &[(&str, i64)]) -> Option<i64> {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let conditions: Vec<_> = condition
        .iter()
        .map(|(status, since)| json!({ "type": SANDBOX_READY, "status": status, "lastTransitionTime": at(*since) }))
        .chain([json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": at(1) })])
        .collect();
    let writers: Vec<_> = written
        .iter()
        .map(|(subresource, time)| json!({ "manager": "m", "subresource": subresource, "time": at(*time) }))
        .collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "uid": "own", "managedFields": writers }, "spec": {},
        "status": status,
    });
    pod["status"]["conditions"] = json!(conditions);
    let state = |uid| {
        let [_, found] = read_and_projected(&POD, &pod);
        state_of(Some(found), uid, |_| Duration::ZERO).in_sandbox.map(Timestamp::as_second)
    };
    assert_eq!(state("another"), None);
    state("own")
}

fn container(state: &str, started: i64) -> Value {
    json!([{ "name": "a", "state": { state: { "startedAt": Timestamp::from_second(started).unwrap() } } }])
}

#[test]
fn the_sandbox_is_ready_since_its_condition_or_the_earlier_status_write() {
    let none = json!({});
    assert_eq!(in_sandbox(Some(("True", 1000)), &none, &[]), Some(1000));
    assert_eq!(in_sandbox(Some(("False", 1000)), &none, &[("status", 1010)]), None);
    assert_eq!(in_sandbox(None, &none, &[("status", 1010)]), None);
    // The kubelet's clock is ahead.
    assert_eq!(
        in_sandbox(Some(("True", 1000)), &none, &[("status", 900), ("status", 910), ("", 800)]),
        Some(910)
    );
    assert_eq!(in_sandbox(Some(("True", 1000)), &none, &[("", 800)]), Some(1000));
}

#[test]
fn a_container_shows_that_its_pod_was_in_its_sandbox_when_it_started() {
    for kind in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        let with = |state| json!({ kind: container(state, 500) });
        for condition in [None, Some(("True", 1000)), Some(("False", 1000))] {
            assert_eq!(in_sandbox(condition, &with("running"), &[]), Some(500), "{kind}");
        }
        // It may have been in the sandbox before.
        assert_eq!(in_sandbox(Some(("False", 1000)), &with("terminated"), &[]), None, "{kind}");
        assert_eq!(in_sandbox(None, &with("terminated"), &[]), None, "{kind}");
        assert_eq!(in_sandbox(Some(("True", 1000)), &with("terminated"), &[]), Some(500), "{kind}");
        let never_ran = json!({ kind: container("terminated", 0) });
        assert_eq!(in_sandbox(Some(("True", 1000)), &never_ran, &[]), Some(1000), "{kind}");
        let waits = json!({ kind: [{ "state": { "waiting": {} }, "lastState": { "terminated": { "startedAt": "2020-01-01T00:00:00Z" } } }] });
        assert_eq!(in_sandbox(Some(("True", 1000)), &waits, &[]), Some(1000), "{kind}");
    }
}

prop_compose! {
    /// What a kubelet says at some later time: whether a sandbox is ready and since when, and when its containers started.
    fn any_later()(
        condition in prop::option::of((prop_oneof![Just("True"), Just("False")], 1i64..2000)),
        started in prop::option::of((prop_oneof![Just("running"), Just("terminated")], 1i64..2000)),
        written in 1i64..2000,
    ) -> Option<i64> {
        let containers = started.map_or(json!([]), |(state, second)| container(state, second));
        in_sandbox(condition, &json!({ "containerStatuses": containers }), &[("status", written)])
    }
}

proptest! {
    /// A Pod on the older of two VMs, whose kubelet's clock is off by any time. Its status was written, by the API server's
    /// clock, when it had come there and before the newer one was recorded. Whatever it says later, the VM stays.
    #[test]
    fn a_vm_that_its_pod_runs_on_survives_any_later_kubelet_status(
        (ready, container_after, written_after) in (1000i64..1100, 0i64..50, 0i64..50),
        recorded_after in 1i64..100,
        clock in -500i64..500,
        says_container in any::<bool>(),
        later in prop::collection::vec(any_later(), 0..8),
    ) {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let started = ready + container_after;
        let written = started + written_after;
        let containers = if says_container { container("running", started + clock) } else { json!([]) };
        let first = in_sandbox(
            Some(("True", ready + clock)),
            &json!({ "containerStatuses": containers }),
            &[("status", written)],
        );
        let newer = Vm { id: InstanceId::scoped("", "i-2"), ..own_vm() };
        let sibling = Sibling { recorded: at(written + recorded_after), vm: VmState::Present(newer) };
        let mut kept = false;
        for seen in std::iter::once(first).chain(later) {
            let in_sandbox = match seen {
                _ if kept => InSandbox::BeforeAllNewer,
                Some(second) => InSandbox::By(at(second)),
                None => InSandbox::Unknown,
            };
            let recorded = at(ready);
            let going = Facts { owner: Owner::Running, recorded, in_sandbox, siblings: vec![sibling.clone()], ..dangling() };
            let living = Facts { deleted: None, ..going.clone() };
            kept |= must_keep_for_pod(&living);
            prop_assert_eq!(decide(&living), Decision::Keep(Kept::Ambiguous));
            prop_assert_eq!(decide(&going), Decision::Wait(Wait::PodRuns));
        }
    }
}
