//! The operator's Pods, as users run it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, LogParams},
};
use peerpod_operator::{NAMESPACE, install::NAME};
use tokio::time::timeout;

use crate::{
    Metrics,
    wait::{self, DEADLINE},
};

/// The labels that only the operator's Pods have.
const LABELS: &str = "app.kubernetes.io/name=peerpod-operator,app.kubernetes.io/component=operator";

/// The time limit for the metrics of one Pod. An evicted Pod does not answer at all, and without this limit the
/// client would wait for minutes.
const METRICS_DEADLINE: Duration = Duration::from_secs(10);

/// The Pods of the operator's Deployment.
#[derive(Clone)]
pub struct OperatorPods {
    client: Client,
}

impl OperatorPods {
    /// Those of the installation in this client's cluster.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The Pods themselves, without those that are being deleted.
    pub async fn list(&self) -> Result<Vec<Pod>> {
        let mut pods = self.api().list(&ListParams::default().labels(LABELS)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Waits until all replicas of the newest Deployment are available, and no others are left.
    pub async fn available(&self) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        wait::present(&api, NAME, "the operator's Deployment is available", DEADLINE, |deployment| {
            let Some(status) = &deployment.status else { return false };
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            status.observed_generation == deployment.metadata.generation
                && counts.iter().all(|it| *it == wanted)
        })
        .await
        .map(drop)
    }

    /// The metrics of each, by the Pod's name.
    pub async fn metrics(&self) -> Result<BTreeMap<String, Metrics>> {
        let mut all = BTreeMap::new();
        for pod in self.list().await? {
            let name = pod.name_any();
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/metrics");
            let request = hyper::Request::get(path).body(Vec::new())?;
            let text = timeout(METRICS_DEADLINE, self.client.request_text(request)).await;
            let text = text.with_context(|| format!("{name} did not answer in {METRICS_DEADLINE:?}"))?;
            all.insert(name, Metrics::parse(text.context("asking an operator's Pod for its metrics")?)?);
        }
        ensure!(!all.is_empty(), "there is no Pod of the operator");
        Ok(all)
    }

    /// The last lines of each one's log, for error messages.
    pub async fn log_tail(&self) -> String {
        let params = LogParams { tail_lines: Some(20), ..LogParams::default() };
        let mut logs = Vec::new();
        for pod in self.list().await.unwrap_or_default() {
            let name = pod.name_any();
            let log = self.api().logs(&name, &params).await.unwrap_or_else(|error| error.to_string());
            logs.push(format!("{name}: {}\nthe last of its log:\n{log}\n", state(&pod)));
        }
        logs.concat()
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

/// A Pod's node and state, with a reason if there is one. An eviction leaves no trace in a log.
fn state(pod: &Pod) -> String {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
    let status = pod.status.clone().unwrap_or_default();
    let parts = [status.phase, status.reason, status.message].into_iter().flatten();
    format!("on {node}: {}", parts.collect::<Vec<_>>().join(", "))
}
