//! The PeerPod controller with a real API server and libvirt's test driver, whose answers take almost no time.

use std::{
    collections::HashSet,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::{process::Lifetime, progress::Progress};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::{Host, Libvirtd, PodVm};
use serde_json::json;
use testbed::{Caa, Operator, OperatorOptions, Options, Settings, Testbed, vm_name};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::{
    build_operator,
    figures::{Figures, median_and_slowest},
    handover, slow, usage,
};

/// The number of measured deletions.
const DELETIONS: usize = 400;
/// The number of PeerPods that live while memory is measured.
const LIVING: usize = 4_200;
/// The number of starts. The median counts.
const STARTS: usize = 9;
/// Objects made at the same time.
pub(super) const CONCURRENCY: usize = 16;
/// How long the operator must write nothing.
const QUIET: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(120);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(8);
    let program = build_operator(&mut progress)?;
    progress.step("starting the control plane and libvirtd");
    let dir = tempfile::tempdir()?;
    let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
    let libvirtd = Libvirtd::start(&dir.path().join("libvirtd"), Lifetime::Owned).await?;
    let bench = Bench::new(&testbed, libvirtd.host()).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(&program, dir.path().join("operator"), settings.clone());
    let mut operator = Operator::start(&testbed, &options).await?;

    let mut figures = Figures::default();
    progress.step("starting the operator again and again");
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(start(&bench, &mut operator).await?);
    }
    let [median, _] = median_and_slowest(starts);
    figures.at_most("start to ready", median * 1e3, "ms", 50.0);

    progress.step(format!("{DELETIONS} deletions"));
    bench.delete(5).await.context("deleting a few, so that everything is connected")?;
    let (idle, _) = usage::memory(operator.pid())?;
    figures.at_most("resident memory, idle", idle, "MiB", 11.0);
    bench.measure_deletions(&operator, &mut figures).await?;

    progress.step("deletions from a slow cloud, and from one that hangs for a third of them");
    operator.stop().await?;
    slow::measure(&bench, &libvirtd, &program, dir.path(), &mut figures).await?;
    progress.step("two replicas, one after the other");
    handover::measure(&bench, &settings, &program, dir.path(), &mut figures).await?;
    operator.start_again()?;
    operator.ready().await?;

    progress.step(format!("memory with {LIVING} PeerPods"));
    bench.populate(LIVING).await?;
    let (grown, _) = usage::memory(operator.pid())?;
    figures.info("resident memory, PeerPods arrived one by one", grown, "MiB");
    start(&bench, &mut operator).await?;
    bench.delete(5).await?;
    let (resident, peak) = usage::memory(operator.pid())?;
    figures.info("resident memory, PeerPods found at start", resident, "MiB");
    figures.at_most("resident memory, PeerPods found at start, peak", peak, "MiB", 20.0);

    progress.step(format!("nothing, for {QUIET:?}"));
    let (before, cpu) = (Requests::read(&testbed).await?, usage::cpu(operator.pid())?);
    sleep(QUIET).await;
    let spent = usage::cpu(operator.pid())? - cpu;
    figures.at_most(
        "API writes while nothing changes",
        Requests::read(&testbed).await?.writes - before.writes,
        "",
        0.0,
    );
    figures.info("operator CPU while nothing changes", spent * 1e3 / QUIET.as_secs_f64(), "ms/s");
    progress.finish();
    Ok(figures)
}

/// Stops the operator and starts it again. Returns the time until it is ready.
async fn start(bench: &Bench<'_>, operator: &mut Operator) -> Result<Duration> {
    operator.stop().await?;
    // After any write, such as one of the lease, the API server delays the next list by up to 100 ms, until its cache has seen the
    // write. That is not the operator's time.
    bench.peerpods().list(&ListParams::default().limit(1)).await?;
    let started = Instant::now();
    operator.start_again()?;
    let ready = async {
        while !operator.health("/readyz").await.is_ok_and(|(status, _)| status == 200) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(DEADLINE, ready).await.context("the operator does not become ready")?;
    Ok(started.elapsed())
}

/// The namespace of the PeerPods, and their clients.
pub(super) struct Bench<'a> {
    pub(super) testbed: &'a Testbed,
    host: &'a Host,
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

    /// Deletes machines of Pods that have ended. The time starts at the first call.
    async fn measure_deletions(&self, operator: &Operator, figures: &mut Figures) -> Result<()> {
        let dangling = self.dangling(DELETIONS).await?;
        let pid = operator.pid();
        let (before, cpu) = (Requests::read(self.testbed).await?, usage::cpu(pid)?);
        let (calls, all) = self.delete_and_wait(&dangling, &dangling).await?;
        let cpu = usage::cpu(pid)? - cpu;
        let requests = Requests::read(self.testbed).await?.since(&before);
        let count = f64::from(u32::try_from(DELETIONS)?);
        figures.info("400 deletions: the delete calls themselves", calls, "s");
        figures.at_most("400 deletions: until all were gone, after that", all - calls, "s", 0.3);
        figures.at_most("400 deletions: operator CPU", cpu, "s", 0.4);
        figures.at_most("API writes for each deletion", requests.writes / count, "", 1.0);
        figures.info("Pods read for each deletion", requests.pods_read / count, "");
        let left = self.host.virsh().domains().await?;
        ensure!(!left.iter().any(|domain| domain.starts_with("podvm-")), "domains are left: {left:?}");
        Ok(())
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
        let machines: Vec<_> = pods.iter().map(|pod| vm_name(&pod.name_any())).collect();
        let machines = self.host.start_pod_vms(&machines).await?;
        let recorded = pods.iter().zip(machines).map(|(pod, machine)| async {
            let peerpod = self.caa.record(pod, "libvirt", &machine.domain.uuid.to_string()).await?;
            anyhow::Ok(Dangling { peerpod: peerpod.name_any(), machine })
        });
        stream::iter(recorded).buffer_unordered(CONCURRENCY).try_collect().await
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
        let recorded =
            pods.iter().map(async |pod| self.caa.record(pod, "libvirt", &Uuid::new_v4().to_string()).await);
        stream::iter(recorded).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
        Ok(())
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
