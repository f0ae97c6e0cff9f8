//! Reads the state of a Pod *(no client)*.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use operator_kit::{
    metadata,
    projection::{Members, Part, Projection},
};
use serde::Deserialize;

use super::decide::Owner;

/// The condition in which the kubelet reports since when a Pod's sandbox is ready.
const SANDBOX_READY: &str = "PodReadyToStartContainers";

/// The annotation of a mirror Pod: the object by which a kubelet shows a Pod that its own files define.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The grace period of a Pod that states none. An API server always sets it when a Pod is deleted.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The fields of a Pod that the operator reads. Everything that shows since when the Pod is in its sandbox is among them.
pub(crate) static POD: Projection = Projection {
    metadata: &[
        ("annotations", Part::Only(&[(MIRROR, Part::All)])),
        ("managedFields", Part::Only(&[("subresource", Part::All), ("time", Part::All)])),
    ],
    rest: &[
        ("spec", Part::Only(&[("nodeName", Part::All), ("runtimeClassName", Part::All)])),
        (
            "status",
            Part::Only(&[
                ("phase", Part::All),
                (
                    "conditions",
                    Part::Only(&[
                        ("type", Part::All),
                        ("status", Part::All),
                        ("lastTransitionTime", Part::All),
                    ]),
                ),
                ("containerStatuses", Part::Only(CONTAINER)),
                ("initContainerStatuses", Part::Only(CONTAINER)),
                ("ephemeralContainerStatuses", Part::Only(CONTAINER)),
            ]),
        ),
    ],
    most: usize::MAX,
};

const CONTAINER: Members =
    &[("state", Part::Only(&[("running", Part::Only(STARTED)), ("terminated", Part::Only(STARTED))]))];

const STARTED: Members = &[("startedAt", Part::All)];

/// The part of a Pod that the operator reads.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = Pod)]
pub(crate) struct PodView {
    #[serde(with = "metadata::Stored")]
    metadata: ObjectMeta,
    spec: Option<SpecView>,
    status: Option<StatusView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SpecView {
    node_name: Option<String>,
    runtime_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    phase: String,
    conditions: Vec<ConditionView>,
    container_statuses: Vec<ContainerView>,
    init_container_statuses: Vec<ContainerView>,
    ephemeral_container_statuses: Vec<ContainerView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionView {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default, deserialize_with = "metadata::time")]
    last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerView {
    state: StateView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StateView {
    running: Option<Started>,
    terminated: Option<Started>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    #[serde(default, deserialize_with = "metadata::time")]
    started_at: Option<Time>,
}

impl PodView {
    /// Whether it may be a peer pod that has a sandbox or gets one: it has a runtime class and a node, and has not ended.
    pub(super) fn may_be_peer_pod(&self) -> bool {
        let is_on_node = |spec: &SpecView| spec.runtime_class_name.is_some() && spec.node_name.is_some();
        self.spec.as_ref().is_none_or(is_on_node) && self.state().owner.may_run().is_some()
    }

    /// Whether it shows that its sandbox is ready. Its containers show that only to a kubelet that reports no such condition.
    pub(super) fn is_in_sandbox(&self) -> bool {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        let ready = conditions.find(|it| it.type_ == SANDBOX_READY);
        ready.map_or_else(|| self.state().in_sandbox.is_some(), |it| it.status == "True")
    }

    fn state(&self) -> PodState {
        let uid = self.metadata.uid.clone().unwrap_or_default();
        state_of(Some(self.clone()), &uid, |_| Duration::ZERO)
    }
}

/// The state of a Pod.
pub(super) struct PodState {
    pub(super) owner: Owner,
    /// When it was created.
    pub(super) created: Option<Timestamp>,
    /// Since when it is in its present sandbox, by the earliest evidence.
    pub(super) in_sandbox: Option<Timestamp>,
}

/// The state of the Pod with this uid, by the Pod that has its name. `known_for`: for how long this process has known that the
/// Pod terminates with this grace period.
///
/// A mirror Pod of that name counts, whatever its uid, and its deletion does not: the kubelet creates it again, and the Pod runs on.
pub(super) fn state_of(
    found: Option<PodView>,
    uid: &str,
    known_for: impl FnOnce(Duration) -> Duration,
) -> PodState {
    let is_it = |it: &PodView| it.metadata.uid.as_deref() == Some(uid);
    let Some(PodView { metadata, status, .. }) = found.filter(|it| is_it(it) || is_mirror(&it.metadata))
    else {
        return PodState { owner: Owner::Gone, created: None, in_sandbox: None };
    };
    let is_mirror = is_mirror(&metadata);
    let status = status.unwrap_or_default();
    let owner = match (status.phase.as_str(), metadata.deletion_timestamp.is_some() && !is_mirror) {
        ("Succeeded" | "Failed", _) => Owner::Finished,
        (_, true) => {
            let seconds = metadata.deletion_grace_period_seconds.and_then(|it| u64::try_from(it).ok());
            let grace = seconds.map_or(DEFAULT_GRACE, Duration::from_secs);
            Owner::Terminating { grace, known_for: known_for(grace) }
        }
        (_, false) => Owner::Running,
    };
    let created = metadata.creation_timestamp.as_ref().filter(|_| !is_mirror).map(|time| time.0);
    PodState { owner, created, in_sandbox: in_sandbox(&metadata, &status) }
}

/// Whether this is the metadata of a mirror Pod.
fn is_mirror(metadata: &ObjectMeta) -> bool {
    metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// The state of the Pod with this uid, by the Pod that has its name. A terminating Pod counts as if it just began to terminate.
pub(crate) fn owner_by(found: Option<PodView>, uid: &str) -> Owner {
    state_of(found, uid, |_| Duration::ZERO).owner
}

/// Since when the Pod is in its present sandbox, at the latest.
///
/// - A ready sandbox is ready since the condition's transition time. The time is by the kubelet's clock, and it starts again when
///   the container runtime loses sight of the sandbox for a moment.
/// - Its containers started after that, by the same clock. While no sandbox is ready, a container that has ended may have run in
///   another one, so it does not count.
/// - A sandbox that is ready was so when the status was last written, by the API server's clock.
fn in_sandbox(metadata: &ObjectMeta, status: &StatusView) -> Option<Timestamp> {
    let ready = status.conditions.iter().find(|it| it.type_ == SANDBOX_READY && it.status == "True");
    let since = ready.and_then(|it| it.last_transition_time.as_ref());
    let writers = metadata.managed_fields.iter().flatten();
    let written =
        writers.filter(|it| it.subresource.as_deref() == Some("status")).filter_map(|it| it.time.as_ref());
    let written = written.max().filter(|_| ready.is_some());
    let StatusView { container_statuses, init_container_statuses, ephemeral_container_statuses, .. } = status;
    let containers = [container_statuses, init_container_statuses, ephemeral_container_statuses];
    let started = containers.into_iter().flatten().flat_map(|ContainerView { state }| {
        state.running.iter().chain(state.terminated.iter().filter(|_| ready.is_some()))
    });
    let started = started.filter_map(|it| it.started_at.as_ref());
    // A container that could not be started has the start time 1970-01-01.
    let times = since.into_iter().chain(written).chain(started).map(|time| time.0);
    times.filter(|time| *time > Timestamp::UNIX_EPOCH).min()
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{
        super::decide::{
            Blocked, Decision, Facts, InSandbox, Sibling, VmState, Wait, contradicted, decide,
            tests::{dangling, own_vm},
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
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status });
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
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "phase": phase } });
            let [_, found] = read_and_projected(&POD, &pod);
            state_of(Some(found), "own", |_| Duration::ZERO)
        };
        for uid in ["own", "another"] {
            assert_eq!(state(uid, "Running").owner, Owner::Running, "{uid}");
            assert_eq!(state(uid, "Failed").owner, Owner::Finished, "{uid}");
            assert_eq!(state(uid, "Running").created, None, "the Pod is older than its mirror");
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
            let mut doubted = false;
            for seen in std::iter::once(first).chain(later) {
                let in_sandbox = match seen {
                    _ if doubted => InSandbox::Doubted,
                    Some(second) => InSandbox::By(at(second)),
                    None => InSandbox::Unknown,
                };
                let recorded = at(ready);
                let going = Facts { owner: Owner::Running, recorded, in_sandbox, siblings: vec![sibling.clone()], ..dangling() };
                let living = Facts { deleted: None, ..going.clone() };
                doubted |= contradicted(&living);
                prop_assert_eq!(decide(living), Decision::Keep(Blocked::Ambiguous));
                prop_assert_eq!(decide(going), Decision::Wait(Wait::PodRuns));
            }
        }
    }
}
