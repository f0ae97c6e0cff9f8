//! Five thousand nodes: the writes to them, how many at once, and the memory that the operator uses for them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use cluster::progress::Progress;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{PeerPodConfig, PeerPodConfigStatus},
    peerpodconfig::resources::SERVICE_ACCOUNT,
};
use serde_json::{Value, json};
use testbed::{FakeNodes, Operator, Options, Request, wait};
use tokio::time::{interval, sleep};

use super::{BOTH, LABEL, NAME, Stage};
use crate::bench::{figures::Figures, usage};

const NODES: usize = 5_000;
/// Two for each node, so that a node that joins takes one from another.
const LIMIT: usize = 2 * NODES;
/// The operator does not see renewals of leases. So they are so rare that two processors are left for the rest.
const NODE_LEASE: Duration = Duration::from_secs(400);
/// After this pause no earlier event still causes work.
const SETTLED: Duration = Duration::from_secs(5);
/// How long the operator must write nothing.
const QUIET: Duration = Duration::from_secs(60);
/// How often the bench writes a node's status while nothing changes. A kubelet does so every five minutes.
const HEARTBEAT: Duration = Duration::from_millis(60);
/// The most writes to nodes that may be in flight at once.
const IN_FLIGHT: f64 = 16.0;
/// The most resident memory, in MiB.
const MEMORY: f64 = 60.0;
const DEADLINE: Duration = Duration::from_secs(600);

pub(super) async fn measure(program: &Path, progress: &mut Progress, figures: &mut Figures) -> Result<()> {
    progress.step(format!("starting a control plane with {NODES} nodes"));
    let dir = tempfile::tempdir()?;
    let options = Options { audit: true, node_lease: NODE_LEASE, ..Options::new(dir.path().join("testbed")) };
    let stage = Stage::set(dir.path(), program, options).await?;
    let nodes = join(&stage, NODES).await?;
    let operator = stage.operator("operator", BOTH).await?;
    let mut bench = Bench { stage, operator, position: 0 };

    progress.step("the first advertisement");
    bench.advertise(figures).await?;
    progress.step("one node joins");
    bench.one_joins(figures).await?;
    progress.step(format!("nothing but heartbeats, for {QUIET:?}"));
    bench.keep_quiet(&nodes, figures).await?;
    progress.step("cloud-api-adaptor on every node, and then other settings");
    bench.deploy(figures).await?;
    bench.operator.stop().await?;
    Ok(())
}

async fn join(stage: &Stage, count: usize) -> Result<FakeNodes> {
    let labels = [(LABEL.to_owned(), String::new())].into();
    FakeNodes::join(stage.testbed.client(), "bench", count, &labels).await
}

struct Bench {
    stage: Stage,
    operator: Operator,
    /// The position up to which the audit log was read.
    position: u64,
}

impl Bench {
    /// The first configuration. The ServiceAccount of its DaemonSet is missing, so that no Pod is made. Pods would cost the cluster
    /// more than the measured work, and are made later.
    async fn advertise(&mut self, figures: &mut Figures) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.stage.testbed.client(), NAMESPACE);
        accounts.delete(SERVICE_ACCOUNT, &DeleteParams::default()).await?;
        sleep(SETTLED).await;
        let (known, _) = self.memory()?;
        figures.info("resident memory, 5,000 nodes seen", known, "MiB");
        self.writes()?;
        let cpu = usage::cpu(self.operator.pid())?;
        let created = Instant::now();
        let spec = json!({ "limit": LIMIT, "admission": { "mode": "Webhook" } });
        self.stage.configure(spec).await?;
        self.until("all nodes advertise their shares", |status| {
            status.nodes == as_count(NODES) && status.advertised == as_count(LIMIT)
        })
        .await?;
        figures.info("5,000 nodes: first advertisement", created.elapsed().as_secs_f64(), "s");
        figures.info("5,000 nodes: operator CPU for it", usage::cpu(self.operator.pid())? - cpu, "s");
        sleep(SETTLED).await;
        let writes = of_nodes(self.writes()?);
        figures.exactly("5,000 nodes: node writes", count(&writes)?, 5_000.0);
        figures.at_most("5,000 nodes: node writes under way at once", most_at_once(&writes), "", IN_FLIGHT);
        let (resident, peak) = self.memory()?;
        figures.at_most("resident memory, 5,000 nodes, peak", peak, "MiB", MEMORY);
        figures.at_most("resident memory, 5,000 nodes, afterwards", resident, "MiB", MEMORY);
        Ok(())
    }

    /// One more node: first with a limit for all, then with one for each.
    async fn one_joins(&mut self, figures: &mut Figures) -> Result<()> {
        join(&self.stage, 1).await?;
        self.until("it has a share", |status| {
            status.nodes == as_count(NODES + 1) && status.advertised == as_count(LIMIT)
        })
        .await?;
        sleep(SETTLED).await;
        let all = self.writes()?;
        // A write of the status is expected, because the status has the number of nodes.
        let others =
            all.iter().filter(|it| !it.resource.starts_with("nodes") && !it.resource.ends_with("/status"));
        let others: Vec<_> = others.cloned().collect();
        figures.at_most("one node joins: writes of other objects", count(&others)?, "", 0.0);
        figures.at_most("one node joins, limit for all: node writes", count(&of_nodes(all))?, "", 2.0);

        self.change(json!({ "distribution": "PerNode", "limit": 2 })).await?;
        let evenly = |nodes: usize| {
            move |status: &PeerPodConfigStatus| {
                status.nodes == as_count(nodes) && status.advertised == as_count(2 * nodes)
            }
        };
        self.until("each node advertises two", evenly(NODES + 1)).await?;
        sleep(SETTLED).await;
        self.writes()?;
        join(&self.stage, 1).await?;
        self.until("each node advertises two", evenly(NODES + 2)).await?;
        sleep(SETTLED).await;
        let writes = of_nodes(self.writes()?);
        figures.at_most("one node joins, limit for each: node writes", count(&writes)?, "", 1.0);
        Ok(())
    }

    /// Nothing happens except for the usual writes of kubelets.
    async fn keep_quiet(&mut self, nodes: &FakeNodes, figures: &mut Figures) -> Result<()> {
        self.writes()?;
        let cpu = usage::cpu(self.operator.pid())?;
        let mut beats = 0_u32;
        let mut beat = interval(HEARTBEAT);
        let end = Instant::now() + QUIET;
        for name in nodes.names().iter().cycle() {
            if Instant::now() >= end {
                break;
            }
            beat.tick().await;
            let ready = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": Timestamp::now().strftime("%FT%TZ").to_string() });
            let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
            nodes.api().patch_status(name, &PatchParams::default(), &patch).await?;
            beats += 1;
        }
        let spent = usage::cpu(self.operator.pid())? - cpu;
        let writes = self.writes()?;
        figures.info("steady state, 60 s: heartbeats of nodes", f64::from(beats), "");
        figures.at_most("steady state, 60 s: writes of any kind", count(&writes)?, "", 0.0);
        figures.info("steady state, 60 s: operator CPU", spent * 1e3 / QUIET.as_secs_f64(), "ms/s");
        Ok(())
    }

    /// Makes the operator look at Pods: Pods start on all nodes, then the settings change, then the shares shrink.
    async fn deploy(&mut self, figures: &mut Figures) -> Result<()> {
        self.writes()?;
        let changed = Instant::now();
        self.stage.testbed.install_objects().await?;
        // The DaemonSet controller has failed often and waits. It tries a changed DaemonSet at once.
        self.change(json!({ "adaptor": { "podAnnotations": { "bench": "deployed" } } })).await?;
        self.until("cloud-api-adaptor runs on every node", is("AdaptorReady", "AdaptorRunning")).await?;
        figures.info(
            "5,000 nodes: until cloud-api-adaptor runs on all",
            changed.elapsed().as_secs_f64(),
            "s",
        );
        sleep(SETTLED).await;
        let writes = of_nodes(self.writes()?);
        figures.at_most("5,000 nodes: node writes meanwhile", count(&writes)?, "", 0.0);
        self.stage.apply_settings(&[("LIBVIRT_CPU", "4")]).await?;
        let older = is("SettingsPending", "OlderSettings");
        self.until("its Pods are said to run on older settings", older).await?;
        self.change(json!({ "limit": 1 })).await?;
        self.until("each node advertises one", |status| status.advertised == as_count(NODES + 2)).await?;
        sleep(SETTLED).await;
        let (resident, peak) = self.memory()?;
        figures.at_most("resident memory, Pods looked at on 5,000 nodes, peak", peak, "MiB", MEMORY);
        figures.at_most("resident memory, Pods looked at, afterwards", resident, "MiB", MEMORY);
        Ok(())
    }

    async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.stage.configs.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn until(&self, what: &str, holds: impl Fn(&PeerPodConfigStatus) -> bool) -> Result<()> {
        let is_there = |config: &PeerPodConfig| {
            let seen = config
                .status
                .as_ref()
                .filter(|status| status.observed_generation == config.metadata.generation);
            seen.is_some_and(&holds)
        };
        wait::present(&self.stage.configs, NAME, what, DEADLINE, is_there).await?;
        Ok(())
    }

    fn memory(&self) -> Result<(f64, f64)> {
        usage::memory(self.operator.pid())
    }

    /// The operator's writes since the last call, also refused ones, without those of leases.
    fn writes(&mut self) -> Result<Vec<Request>> {
        let audit = self.stage.testbed.audit()?;
        let mut requests = audit.requests(&mut self.position)?;
        requests
            .retain(|request| request.is_operators() && request.is_write() && request.resource != "leases");
        Ok(requests)
    }
}

fn as_count(number: usize) -> i64 {
    // A count of nodes is far below 2^63.
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn is(type_: &str, reason: &str) -> impl Fn(&PeerPodConfigStatus) -> bool {
    move |status| status.conditions.iter().any(|it| it.type_ == type_ && it.reason == reason)
}

fn of_nodes(mut writes: Vec<Request>) -> Vec<Request> {
    writes.retain(|request| request.resource.starts_with("nodes"));
    writes
}

fn count(writes: &[Request]) -> Result<f64> {
    Ok(f64::from(u32::try_from(writes.len())?))
}

/// The most of these requests that were in flight at once, by the API server's times.
fn most_at_once(requests: &[Request]) -> f64 {
    let begun = requests.iter().map(|request| (request.time, 1.0));
    let mut changes: Vec<_> = begun.chain(requests.iter().map(|request| (request.answered, -1.0))).collect();
    changes.sort_by(|a, b| a.0.cmp(&b.0).then(f64::total_cmp(&a.1, &b.1)));
    let mut under_way = 0.0;
    changes.iter().fold(0.0, |most, (_, change)| {
        under_way += change;
        f64::max(most, under_way)
    })
}
