//! Reads what the deployment of cloud-api-adaptor depends on *(client required)*.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{ContainerStatus, Pod},
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
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
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
        let api: Api<PodView> = Api::namespaced(self.client.clone(), &self.namespace);
        let config = config.name_any();
        let params = ListParams::default()
            .labels(&format!("{CONFIG_LABEL}={config},app.kubernetes.io/component=adaptor"));
        let mut older = Vec::new();
        let take = |pod: PodView| {
            let stays = pod.metadata.deletion_timestamp.is_none();
            if stays && started(&pod).is_some_and(|started| started < since) {
                older.push(pod.name_any());
            }
        };
        api_call::for_each(&api, &params, take).await?;
        older.sort();
        Ok(older)
    }
}

/// When the Pod's adaptor read its settings: at the start of its container.
fn started(pod: &PodView) -> Option<Timestamp> {
    let running = pod.status.container_statuses.first()?.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}
