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
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// What an API server appends to `generateName`: so many of these characters.
const SUFFIX: usize = 5;
/// How much of `generateName` is before it, at most.
const START: usize = 58;
const SUFFIX_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The grace period of a Pod that states none. An API server always sets it when a Pod is deleted.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The fields of a Pod that the operator reads. Everything that shows since when the Pod is in its sandbox is among them.
pub(crate) static POD: Projection = Projection {
    metadata: &[
        ("annotations", Part::Only(&[(MIRROR, Part::All)])),
        ("generateName", Part::All),
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
    /// When it was created; `None` if an earlier Pod may have had its name.
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
    let created =
        metadata.creation_timestamp.as_ref().filter(|_| !is_mirror && has_generated_name(&metadata));
    let created = created.map(|time| time.0);
    PodState { owner, created, in_sandbox: in_sandbox(&metadata, &status) }
}

/// Whether this is the metadata of a mirror Pod.
fn is_mirror(metadata: &ObjectMeta) -> bool {
    metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Whether an API server made the name, so that no earlier Pod had it. Controllers that name their Pods themselves may set
/// `generateName`, too: a `StatefulSet` appends a number to it.
fn has_generated_name(ObjectMeta { name, generate_name, .. }: &ObjectMeta) -> bool {
    let suffix = name.as_deref().zip(generate_name.as_deref()).and_then(|(name, start)| {
        let start = start.as_bytes();
        name.as_bytes().strip_prefix(&start[..start.len().min(START)])
    });
    suffix.is_some_and(|suffix| {
        suffix.len() == SUFFIX
            && suffix.iter().all(|it| SUFFIX_CHARACTERS.contains(it))
            && !suffix.iter().all(u8::is_ascii_digit)
    })
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
mod tests;
