//! Reads what the deployment of cloud-api-adaptor depends on *(client required)*.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::reflector::{ObjectRef, Store},
};
use operator_kit::{
    api_call::{self, ApiError},
    projection::reading,
};

use super::super::{
    capacity::Nodes,
    resources::{self, Names, Part, Unmanaged},
};
use super::{
    daemon_sets::view::{DAEMON_SET, DaemonSetView},
    pod_view::{POD, PodView},
    rested_lists::{Listed, RestedLists},
    waiting::{self, Unready},
};
use crate::api::v1alpha1::PeerPodConfig;

pub(super) struct Observer {
    pub(super) client: Client,
    /// The operator's own namespace.
    pub(super) namespace: String,
    pub(super) daemon_sets: Store<DaemonSet>,
    pub(super) nodes: Nodes,
    pub(super) lists: Lists,
}

impl Observer {
    /// One that has listed nothing yet.
    pub(super) fn new(
        client: Client,
        namespace: String,
        daemon_sets: Store<DaemonSet>,
        nodes: Nodes,
    ) -> Self {
        Self { client, namespace, daemon_sets, nodes, lists: Lists::default() }
    }
}

/// What was last listed of the Pods of each configuration's cloud-api-adaptor.
#[derive(Default)]
pub(super) struct Lists {
    /// Those that run since before a time.
    older: RestedLists<Timestamp, Vec<String>>,
    /// What they wait for.
    waits: RestedLists<(), Option<String>>,
}

impl Lists {
    /// Forgets a configuration that is gone.
    pub(super) fn forget(&self, config: &str) {
        self.older.forget(config);
        self.waits.forget(config);
    }
}

impl Observer {
    /// The object that has the name of its DaemonSet, as the watch gave it last.
    pub(super) fn watched(&self, config: &PeerPodConfig) -> Option<DaemonSet> {
        let key = ObjectRef::new(&Names::of(config).adaptor).within(&self.namespace);
        self.daemon_sets.get(&key).map(|found| (*found).clone())
    }

    /// The same, as the API server has it. A new template is built from the settings that this one records, and a watch that lags
    /// may show an older record.
    pub(super) async fn current(&self, config: &PeerPodConfig) -> Result<Option<DaemonSet>, ApiError> {
        let api: Api<DaemonSetView> = Api::namespaced(reading(&self.client, &DAEMON_SET), &self.namespace);
        Ok(api_call::get_opt(&api, &Names::of(config).adaptor).await?.map(DaemonSet::from))
    }

    /// A cloud-api-adaptor that this configuration does not manage, on its nodes.
    pub(super) fn unmanaged(&self, config: &PeerPodConfig) -> Option<Unmanaged> {
        let mut candidates = self.daemon_sets.state();
        candidates.retain(|it| resources::runs_anothers_adaptor(it, config));
        // Usually there is none, which saves a loop over thousands of nodes.
        if candidates.is_empty() {
            return None;
        }
        let nodes = self.nodes.snapshot().unwrap_or_default();
        let nodes = nodes.iter().map(|node| (&**node.name(), move |key: &str| node.label(key)));
        let unmanaged = resources::unmanaged_adaptors(candidates.iter().map(AsRef::as_ref), config, nodes);
        unmanaged.into_iter().next()
    }

    /// The Pods of its cloud-api-adaptor that run since before `since`, by name; none without it. One that is being deleted is on
    /// its way to another.
    pub(super) async fn pods_older_than(
        &self,
        config: &PeerPodConfig,
        since: Option<Timestamp>,
    ) -> Result<Listed<Vec<String>>, ApiError> {
        let Some(since) = since else { return Ok((Vec::new(), None)) };
        self.lists.older.get(&config.name_any(), since, Box::pin(self.list_older_than(config, since))).await
    }

    async fn list_older_than(
        &self,
        config: &PeerPodConfig,
        since: Timestamp,
    ) -> Result<Vec<String>, ApiError> {
        let mut older = Vec::new();
        let take = |pod: PodView| {
            if pod.started().is_some_and(|started| started < since) {
                older.push(pod.name_any());
            }
        };
        self.for_each_pod(config, take).await?;
        older.sort();
        Ok(older)
    }

    /// The peer pods that its cloud-api-adaptor waits for, if it runs and is not ready.
    pub(super) async fn waits_for(&self, config: &PeerPodConfig) -> Result<Listed<Option<String>>, ApiError> {
        self.lists.waits.get(&config.name_any(), (), Box::pin(self.list_waits_of(config))).await
    }

    async fn list_waits_of(&self, config: &PeerPodConfig) -> Result<Option<String>, ApiError> {
        let mut unready = Vec::new();
        let take = |pod: PodView| {
            let is_ready = pod.ready().is_some_and(|it| it.status == "True");
            let (started, restarts) = (pod.started(), pod.restarts());
            if let (false, Some(since), Some(node)) = (is_ready, started, pod.spec.node_name)
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
        let api: Api<PodView> = Api::namespaced(reading(&self.client, &POD), &self.namespace);
        let params = ListParams::default().labels(&Part::Adaptor.label_selector(config));
        let staying = |pod: PodView| {
            if pod.metadata.deletion_timestamp.is_none() {
                take(pod);
            }
        };
        api_call::for_each(&api, &params, staying).await
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector;
    use operator_kit::testing::{Answer, ApiServer, Call, read_and_projected};
    use serde_json::{Value, json};

    use super::*;

    /// A Pod whose container started at this time. The operator reads neither its other times nor its annotations.
    fn pod(name: &str, started: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "ns", "annotations": { "fat": "x".repeat(1000) },
                "managedFields": [{ "manager": "m", "time": "9999-12-31T00:00:00Z", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": { "nodeName": "n", "containers": [{ "name": "adaptor", "image": "a" }] },
            "status": {
                "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": "9999-12-31T00:00:00Z" }],
                "containerStatuses": [
                    { "name": "adaptor", "restartCount": 2, "state": { "running": { "startedAt": started } } },
                ],
            },
        })
    }

    #[test]
    fn a_pod_is_read_by_the_fields_that_the_operator_uses_alone() {
        let time: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let views = read_and_projected::<PodView>(&POD, &pod("a", "2026-01-01T00:00:00Z"));
        for view in &views {
            assert_eq!((view.started(), view.restarts()), (Some(time), 2));
            assert_eq!(view.spec.node_name.as_deref(), Some("n"));
            assert_eq!(view.ready().map(|it| &*it.status), Some("False"));
        }
        let [_, projected] = views;
        assert_eq!((projected.metadata.annotations, projected.metadata.managed_fields), (None, None));
    }

    #[tokio::test]
    async fn unreadable_times_of_one_pod_do_not_hide_the_others() {
        let items = [
            pod("older", "2026-01-01T00:00:00Z"),
            pod("unreadable", "9999-12-31T00:00:00Z"),
            pod("newer", "2026-01-03T00:00:00Z"),
        ];
        let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
        let server =
            ApiServer::expecting([Call::get("/api/v1/namespaces/ns/pods").answer(Answer::json(200, &list))]);
        let (daemon_sets, _writer) = reflector::store();
        let observer = Observer::new(server.client(), "ns".to_owned(), daemon_sets, Nodes::default());
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config", "namespace": "ns" }, "spec": {},
        }));
        let since = "2026-01-02T00:00:00Z".parse().ok();
        let (older, _) = observer.pods_older_than(&config.unwrap(), since).await.unwrap();
        assert_eq!(older, ["older"]);
    }
}
