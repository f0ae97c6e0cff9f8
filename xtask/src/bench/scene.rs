//! The Pods, machines and PeerPods that benchmarks measure operators with.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::{Host, PodVm};
use serde_json::json;
use testbed::{Caa, Testbed, vm_name};
use tokio::time::timeout;
use uuid::Uuid;

/// Objects made at the same time.
pub(super) const CONCURRENCY: usize = 16;
const DEADLINE: Duration = Duration::from_secs(120);

/// The namespace of the PeerPods, and their clients.
pub(super) struct Bench<'a> {
    pub(super) testbed: &'a Testbed,
    pub(super) host: &'a Host,
    pub(super) caa: Caa,
    namespace: String,
}

/// A PeerPod whose Pod has ended, and its machine.
pub(super) struct Dangling {
    pub(super) peerpod: String,
    pub(super) machine: PodVm,
}

impl<'a> Bench<'a> {
    /// For a cluster with the installation's rights.
    pub(super) async fn new(testbed: &'a Testbed, host: &'a Host) -> Result<Self> {
        let (caa, namespace) = (Caa::install(testbed).await?, testbed.namespace("bench").await?);
        Ok(Self { testbed, host, caa, namespace })
    }

    fn client(&self) -> Client {
        self.testbed.client()
    }

    pub(super) fn peerpods(&self) -> Api<PeerPod> {
        Api::namespaced(self.client(), &self.namespace)
    }

    pub(super) async fn delete(&self, count: usize) -> Result<()> {
        let dangling = self.dangling(count).await?;
        self.delete_and_wait(&dangling, &dangling).await.map(drop)
    }

    /// Machines of ended Pods that cloud-api-adaptor made and left behind.
    pub(super) async fn dangling(&self, count: usize) -> Result<Vec<Dangling>> {
        let pods = self.pods(count).await?;
        let ended = pods.iter().map(|pod| self.end(pod));
        stream::iter(ended).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
        let (machines, peerpods) = self.machines(&pods).await?;
        let dangling = peerpods.iter().map(ResourceExt::name_any).zip(machines);
        Ok(dangling.map(|(peerpod, machine)| Dangling { peerpod, machine }).collect())
    }

    /// Deletes PeerPods one after the other. Returns the seconds until the last call returned, and the seconds until all of
    /// `should_go` were gone.
    pub(super) async fn delete_and_wait(
        &self,
        dangling: &[Dangling],
        should_go: &[Dangling],
    ) -> Result<(f64, f64)> {
        let api = self.peerpods();
        let mut left: HashSet<_> = should_go.iter().map(|gone| gone.peerpod.as_str()).collect();
        let mut events = pin!(watcher::watcher(api.clone(), watcher::Config::default()));
        while !matches!(events.try_next().await?, Some(watcher::Event::InitDone) | None) {}
        let started = Instant::now();
        let calls = async {
            for Dangling { peerpod, .. } in dangling {
                api.delete(peerpod, &DeleteParams::background()).await?;
            }
            anyhow::Ok(started.elapsed().as_secs_f64())
        };
        let gone = async {
            while !left.is_empty() {
                if let Some(watcher::Event::Delete(peerpod)) = events.try_next().await? {
                    left.remove(peerpod.name_any().as_str());
                }
            }
            anyhow::Ok(started.elapsed().as_secs_f64())
        };
        timeout(DEADLINE, async { tokio::try_join!(calls, gone) }).await.context("PeerPods do not go")?
    }

    /// Fills the cluster with living PeerPods.
    pub(super) async fn populate(&self, count: usize) -> Result<()> {
        let pods = self.pods(count).await?;
        let ids = pods.iter().map(|_| Uuid::new_v4().to_string());
        self.recorded(&pods, ids).await.map(drop)
    }

    /// The machine of each of these Pods, and the PeerPod that records it.
    pub(super) async fn machines(&self, pods: &[Pod]) -> Result<(Vec<PodVm>, Vec<PeerPod>)> {
        let names: Vec<_> = pods.iter().map(|pod| vm_name(&pod.name_any())).collect();
        let machines = self.host.start_pod_vms(&names).await?;
        let ids = machines.iter().map(|machine| machine.domain.uuid.to_string());
        let peerpods = self.recorded(pods, ids).await?;
        Ok((machines, peerpods))
    }

    /// The PeerPods with which cloud-api-adaptor records that these Pods have the machines with these identifiers.
    async fn recorded(&self, pods: &[Pod], ids: impl Iterator<Item = String>) -> Result<Vec<PeerPod>> {
        let recorded = pods.iter().zip(ids).map(async |(pod, id)| self.caa.record(pod, "libvirt", &id).await);
        stream::iter(recorded).buffered(CONCURRENCY).try_collect().await
    }

    /// Pods that no scheduler places.
    pub(super) async fn pods(&self, count: usize) -> Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.client(), &self.namespace);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "generateName": "bench-" },
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "any" }] },
        }))?;
        let params = PostParams::default();
        let made = (0..count).map(|_| api.create(&params, &pod));
        Ok(stream::iter(made).buffer_unordered(CONCURRENCY).try_collect().await?)
    }

    pub(super) async fn end(&self, pod: &Pod) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client(), &self.namespace);
        let patch = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
        api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// Counts of requests that only the operator makes here.
pub(super) struct Requests {
    /// Patches of PeerPods and their status; events.
    pub(super) writes: f64,
    /// Single Pods read.
    pub(super) pods_read: f64,
}

impl Requests {
    pub(super) async fn read(testbed: &Testbed) -> Result<Self> {
        let metrics =
            testbed::Metrics::parse(testbed.cluster().kubectl(&["get", "--raw", "/metrics"]).await?)?;
        let count = |verb, group, resource| {
            metrics
                .sum("apiserver_request_total", &[("verb", verb), ("group", group), ("resource", resource)])
        };
        let events = count("POST", "events.k8s.io", "events") + count("PATCH", "events.k8s.io", "events");
        Ok(Self {
            writes: count("PATCH", "confidentialcontainers.org", "peerpods") + events,
            pods_read: count("GET", "", "pods"),
        })
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        Self { writes: self.writes - before.writes, pods_read: self.pods_read - before.pods_read }
    }
}
