//! Three nodes: how soon all objects of a configuration exist, and what it costs to keep configurations up to date.

use std::{
    collections::HashSet,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use cluster::progress::Progress;
use futures::{
    StreamExt as _,
    stream::{BoxStream, select_all},
};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Service,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject},
    runtime::watcher::{self, Event, watcher},
};
use peerpod_operator::peerpodconfig::resources::CONFIG_LABEL;
use serde_json::json;
use testbed::{FakeNodes, Options, wait};
use tokio::time::{sleep, timeout};

use super::{BOTH, LABEL, NAME, Stage};
use crate::bench::{
    figures::{Figures, median_and_slowest},
    usage,
};

const NODES: usize = 3;
/// How many objects a configuration with a webhook has before the webhook runs, each of another kind. The webhook is registered only
/// once its certificate exists, and no Pod here would make one.
const KINDS: usize = 4;
/// The number of configurations, made one after the other. The median counts.
const RUNS: usize = 9;
/// After this pause no work of a start is left.
const SETTLED: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) async fn measure(program: &Path, progress: &mut Progress, figures: &mut Figures) -> Result<()> {
    progress.step("starting a control plane and libvirtd");
    let dir = tempfile::tempdir()?;
    let stage = Stage::set(dir.path(), program, Options::new(dir.path().join("testbed"))).await?;
    let labels = [(LABEL.to_owned(), String::new())].into();
    let _nodes = FakeNodes::join(stage.testbed.client(), "bench", NODES, &labels).await?;
    progress.step("memory, with and without a controller of configurations");
    let operator = stage.operator("peerpods", "--controllers=peerpod").await?;
    sleep(SETTLED).await;
    let (alone, _) = usage::memory(operator.pid())?;
    operator.stop().await?;
    let operator = stage.operator("both", BOTH).await?;
    sleep(SETTLED).await;
    let (both, _) = usage::memory(operator.pid())?;

    progress.step(format!("{RUNS} configurations on {NODES} nodes, one after the other"));
    let mut applied = Vec::new();
    for _ in 0..RUNS {
        applied.push(until_applied(&stage).await?);
    }
    let [median, slowest] = median_and_slowest(&applied);
    let (used, _) = usage::memory(operator.pid())?;
    operator.stop().await?;
    figures.at_most("created until all objects are there", median * 1e3, "ms", 300.0);
    figures.info("the slowest of these", slowest * 1e3, "ms");
    figures.at_most("resident memory, idle, PeerPods alone", alone, "MiB", 14.0);
    figures.info("resident memory, idle, configurations too", both, "MiB");
    figures.info("the same after these configurations", used, "MiB");
    Ok(())
}

/// Makes a configuration, and removes it again. Returns the time from the API server's answer until the last of its objects was seen.
async fn until_applied(stage: &Stage) -> Result<Duration> {
    let mut objects = Objects::watch(&stage.testbed.client()).await?;
    // Like a first installation: settings that do not change, and a webhook of the operator's own image.
    stage.configure(json!({ "limit": 10, "admission": { "mode": "Webhook" } })).await?;
    let created = Instant::now();
    objects.until(|there| there.len() == KINDS).await?;
    let took = created.elapsed();
    stage.configs.delete(NAME, &DeleteParams::default()).await?;
    wait::gone(&stage.configs, NAME, DEADLINE).await?;
    objects.until(HashSet::is_empty).await?;
    Ok(took)
}

/// The objects of a configuration, as watches see them.
struct Objects {
    events: BoxStream<'static, (String, watcher::Result<Event<DynamicObject>>)>,
    /// The kinds that have an object.
    there: HashSet<String>,
}

impl Objects {
    async fn watch(client: &Client) -> Result<Self> {
        let kinds: [ApiResource; KINDS] = [
            ApiResource::erase::<DaemonSet>(&()),
            ApiResource::erase::<Deployment>(&()),
            ApiResource::erase::<Service>(&()),
            ApiResource::erase::<PodDisruptionBudget>(&()),
        ];
        let watches = kinds.map(|kind| {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
            let config = watcher::Config::default().labels(&format!("{CONFIG_LABEL}={NAME}"));
            watcher(api, config).map(move |event| (kind.kind.clone(), event)).boxed()
        });
        let mut events = select_all(watches).boxed();
        let mut listed = HashSet::new();
        while listed.len() < KINDS {
            let (kind, event) = timeout(DEADLINE, events.next()).await?.context("the watches ended")?;
            if matches!(event?, Event::InitDone) {
                listed.insert(kind);
            }
        }
        Ok(Self { events, there: HashSet::new() })
    }

    async fn until(&mut self, holds: impl Fn(&HashSet<String>) -> bool) -> Result<()> {
        let seen = async {
            while !holds(&self.there) {
                let (kind, event) = self.events.next().await.context("the watches ended")?;
                match event? {
                    Event::Apply(_) => self.there.insert(kind),
                    Event::Delete(_) => self.there.remove(&kind),
                    Event::Init | Event::InitApply(_) | Event::InitDone => false,
                };
            }
            Ok(())
        };
        timeout(DEADLINE, seen).await.context("the objects do not come, or do not go")?
    }
}
