//! Reads what the deployment of cloud-api-adaptor depends on *(client required)*.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{ContainerStatus, Pod, PodCondition},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ListParams,
    runtime::reflector::{ObjectRef, Store},
};
use operator_kit::api_call::{self, ApiError};
use serde::{Deserialize, Serialize};

use super::super::{
    capacity::Nodes,
    resources::{self, CONFIG_LABEL, Names, Unmanaged},
    sources::Sources,
};
use super::waiting::{self, Unready};
use crate::api::v1alpha1::PeerPodConfig;

pub(super) struct Observer {
    pub(super) client: Client,
    /// The operator's own namespace.
    pub(super) namespace: String,
    pub(super) daemon_sets: Store<DaemonSet>,
    pub(super) nodes: Nodes,
}

/// What is known of one configuration's cloud-api-adaptor.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The object that has the name of its DaemonSet.
    pub(super) current: Option<DaemonSet>,
    /// A cloud-api-adaptor that this configuration does not manage, on its nodes.
    pub(super) unmanaged: Option<Unmanaged>,
}

/// The part of a Pod that the operator reads: there is one on each of thousands of nodes.
#[derive(Clone, Debug, Resource, Serialize, Deserialize)]
#[resource(inherit = Pod)]
struct PodView {
    metadata: ObjectMeta,
    spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecView {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    conditions: Vec<PodCondition>,
    container_statuses: Vec<ContainerStatus>,
}

impl Observer {
    /// What the stores have.
    pub(super) fn observe(&self, config: &PeerPodConfig) -> Observed {
        Observed { current: self.current(config), unmanaged: self.unmanaged(config) }
    }

    pub(super) fn current(&self, config: &PeerPodConfig) -> Option<DaemonSet> {
        let key = ObjectRef::new(&Names::of(config).adaptor).within(&self.namespace);
        self.daemon_sets.get(&key).map(|found| (*found).clone())
    }

    pub(super) fn unmanaged(&self, config: &PeerPodConfig) -> Option<Unmanaged> {
        let mut candidates = self.daemon_sets.state();
        candidates.retain(|it| resources::runs_anothers_adaptor(it, config));
        // Usually there is none, which saves a loop over thousands of nodes.
        if candidates.is_empty() {
            return None;
        }
        let nodes: Vec<_> = self.nodes.snapshot().unwrap_or_default().iter().map(|it| it.as_node()).collect();
        let unmanaged = resources::unmanaged_adaptors(candidates.iter().map(AsRef::as_ref), config, &nodes);
        unmanaged.into_iter().next()
    }

    /// What cloud-api-adaptor would start with.
    pub(super) async fn sources(&self, config: &PeerPodConfig) -> Result<Sources, ApiError> {
        Sources::read(&self.client, &self.namespace, config).await
    }

    /// The Pods of its cloud-api-adaptor that run since before `since`, by name; none without it. One that is being deleted is on
    /// its way to another.
    pub(super) async fn pods_older_than(
        &self,
        config: &PeerPodConfig,
        since: Option<Timestamp>,
    ) -> Result<Vec<String>, ApiError> {
        let Some(since) = since else { return Ok(Vec::new()) };
        let mut older = Vec::new();
        let take = |pod: PodView| {
            if started(&pod).is_some_and(|started| started < since) {
                older.push(pod.name_any());
            }
        };
        self.for_each_pod(config, take).await?;
        older.sort();
        Ok(older)
    }

    /// The peer pods that its cloud-api-adaptor waits for, if it runs and is not ready.
    pub(super) async fn waits_for(&self, config: &PeerPodConfig) -> Result<Option<String>, ApiError> {
        let mut unready = Vec::new();
        let take = |pod: PodView| {
            let is_ready = pod.status.conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
            let restarts = pod.status.container_statuses.iter().map(|it| it.restart_count).sum();
            if let (false, Some(since), Some(node)) = (is_ready, started(&pod), pod.spec.node_name)
                && waiting::is_waiting(since, restarts, Timestamp::now())
            {
                unready.push(Unready { node, since });
            }
        };
        self.for_each_pod(config, take).await?;
        waiting::blocking_pods(&self.client, &config.spec.admission.runtime_class_name, unready).await
    }

    /// Takes the Pods of its cloud-api-adaptor that are not being deleted.
    async fn for_each_pod(
        &self,
        config: &PeerPodConfig,
        mut take: impl FnMut(PodView),
    ) -> Result<(), ApiError> {
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = config.name_any();
        let params = ListParams::default()
            .labels(&format!("{CONFIG_LABEL}={config},app.kubernetes.io/component=adaptor"));
        let staying = |pod: PodView| {
            if pod.metadata.deletion_timestamp.is_none() {
                take(pod);
            }
        };
        api_call::for_each(&api, &params, staying).await
    }
}

/// When the Pod's adaptor read its settings: at the start of its container.
fn started(pod: &PodView) -> Option<Timestamp> {
    let running = pod.status.container_statuses.first()?.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}
