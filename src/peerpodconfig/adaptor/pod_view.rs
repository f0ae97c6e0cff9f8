//! The part of a Pod that this room reads *(no client)*: of cloud-api-adaptor's own Pods, one on each of thousands of nodes, and of the
//! Pods that it may wait for.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use operator_kit::{
    metadata,
    projection::{MOST, Part, Projection},
};
use serde::Deserialize;

/// The fields of a Pod that the room reads.
pub(super) static POD: Projection = Projection {
    metadata: &[],
    rest: &[
        ("spec", Part::Only(&[("nodeName", Part::All), ("runtimeClassName", Part::All)])),
        (
            "status",
            Part::Apart(&[
                (
                    "conditions",
                    Part::Only(&[
                        ("type", Part::All),
                        ("status", Part::All),
                        ("lastTransitionTime", Part::All),
                    ]),
                ),
                (
                    "containerStatuses",
                    Part::Only(&[
                        ("restartCount", Part::All),
                        ("state", Part::Only(&[("running", Part::Only(&[("startedAt", Part::All)]))])),
                    ]),
                ),
            ]),
        ),
    ],
    most: MOST,
};

/// The part of a Pod that is decoded.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = Pod)]
pub(super) struct PodView {
    #[serde(with = "metadata::Stored")]
    pub(super) metadata: ObjectMeta,
    pub(super) spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpecView {
    pub(super) node_name: Option<String>,
    pub(super) runtime_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    conditions: Vec<ConditionView>,
    container_statuses: Vec<ContainerView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConditionView {
    #[serde(rename = "type")]
    type_: String,
    pub(super) status: String,
    // The node's kubelet writes it.
    #[serde(default, deserialize_with = "metadata::time")]
    pub(super) last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerView {
    restart_count: i32,
    state: StateView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct StateView {
    running: Option<RunningView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunningView {
    // The node's kubelet writes it.
    #[serde(default, deserialize_with = "metadata::time")]
    started_at: Option<Time>,
}

impl PodView {
    /// Its condition `Ready`.
    pub(super) fn ready(&self) -> Option<&ConditionView> {
        self.status.conditions.iter().find(|condition| condition.type_ == "Ready")
    }

    /// When its first container started. cloud-api-adaptor reads its settings then.
    pub(super) fn started(&self) -> Option<Timestamp> {
        let running = self.status.container_statuses.first()?.state.running.as_ref()?;
        running.started_at.as_ref().map(|time| time.0)
    }

    /// How many times its containers have restarted.
    pub(super) fn restarts(&self) -> i32 {
        self.status.container_statuses.iter().map(|it| it.restart_count).sum()
    }
}
