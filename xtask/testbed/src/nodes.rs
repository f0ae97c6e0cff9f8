//! Further fake nodes.

use std::{
    collections::{BTreeMap, HashSet},
    pin::pin,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::wait::DEADLINE;

/// The label with a node's own name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The annotation of every node whose kubelet is simulated.
const FAKE: &str = "kwok.x-k8s.io/node";

/// How much longer each node may make the wait.
const EACH: Duration = Duration::from_millis(30);

/// How many nodes are made or removed at the same time.
const CONCURRENCY: usize = 32;

/// A few fake nodes with labels of their own. Pods that are bound to one of them run, such as those of DaemonSets.
#[derive(Clone)]
pub struct FakeNodes {
    api: Api<Node>,
    names: Vec<String>,
}

impl FakeNodes {
    /// Adds `count` nodes with these labels, and waits until the scheduler uses them. Their names start with `purpose`.
    pub async fn join(
        client: Client,
        purpose: &str,
        count: usize,
        labels: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let api: Api<Node> = Api::all(client);
        let mut names: Vec<_> =
            (0..count).map(|_| format!("{purpose}-{:012x}", fastrand::u64(..1 << 48))).collect();
        names.sort();
        let made = names.iter().map(async |name| {
            // As kubelets set it: the scheduler identifies nodes by this label if Pods must not share one.
            let mut labels = labels.clone();
            labels.insert(HOSTNAME.to_owned(), name.clone());
            let node: Node = serde_json::from_value(json!({
                "metadata": {
                    "name": name,
                    "annotations": { FAKE: "fake" },
                    "labels": labels,
                },
            }))?;
            anyhow::Ok(api.create(&PostParams::default(), &node).await?)
        });
        stream::iter(made).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
        let nodes = Self { api, names };
        nodes.until_ready().await?;
        Ok(nodes)
    }

    async fn until_ready(&self) -> Result<()> {
        let mut left: HashSet<_> = self.names.iter().map(String::as_str).collect();
        let deadline = DEADLINE + EACH * u32::try_from(self.names.len())?;
        let mut events = pin!(watcher(self.api.clone(), watcher::Config::default()).default_backoff());
        let end = Instant::now() + deadline;
        while !left.is_empty() {
            let event = timeout_at(end, events.next()).await.ok().flatten();
            let event = event.with_context(|| {
                format!("{} of {} fake nodes are not ready after {deadline:?}", left.len(), self.names.len())
            })?;
            // A failed watch restarts by itself.
            if let Ok(Event::Apply(node) | Event::InitApply(node)) = event
                && is_ready(&node)
            {
                left.remove(node.name_any().as_str());
            }
        }
        Ok(())
    }

    /// Their names, in order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The nodes themselves.
    pub fn api(&self) -> &Api<Node> {
        &self.api
    }

    /// How much of an extended resource each node advertises to the scheduler, in the order of their names; `None`: nothing.
    pub async fn advertised(&self, resource: &str) -> Result<Vec<Option<u32>>> {
        let all = self.api.list(&ListParams::default()).await?;
        let of = |name: &String| -> Result<Option<u32>> {
            let node = all.iter().find(|node| node.name_any() == *name).context("a node is gone")?;
            let status = node.status.as_ref().context("a node without a status")?;
            let level = |levels: &Option<BTreeMap<String, _>>| {
                let level: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> =
                    levels.as_ref().and_then(|levels| levels.get(resource).cloned());
                level.map(|level| level.0.parse()).transpose()
            };
            let (capacity, allocatable) = (level(&status.capacity)?, level(&status.allocatable)?);
            ensure!(capacity == allocatable, "{name}: {capacity:?} of which {allocatable:?} is allocatable");
            Ok(capacity)
        };
        self.names.iter().map(of).collect()
    }

    /// Makes the kubelet of a node report that it is not ready, and then nothing more.
    pub async fn lose(&self, name: &str) -> Result<()> {
        let params = PatchParams::default();
        self.api
            .patch(name, &params, &Patch::Merge(json!({ "metadata": { "annotations": { FAKE: null } } })))
            .await?;
        let ready = json!({ "type": "Ready", "status": "False", "reason": "Test", "message": "it is lost" });
        let status = json!({ "status": { "conditions": [ready] } });
        self.api.patch_status(name, &params, &Patch::Strategic(status)).await?;
        Ok(())
    }

    /// Makes the kubelet of a [lost](Self::lose) node answer again. The Pods there stay unready.
    pub async fn find(&self, name: &str) -> Result<()> {
        let found = json!({ "metadata": { "annotations": { FAKE: "fake" } } });
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(found)).await?;
        Ok(())
    }

    /// Removes the nodes. Their Pods should be gone before.
    pub async fn leave(self) -> Result<()> {
        let params = DeleteParams::default();
        let removed = self.names.iter().map(|name| self.api.delete(name, &params));
        stream::iter(removed).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
        Ok(())
    }
}

/// Whether the scheduler uses a node.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let tainted = node.spec.as_ref().is_some_and(|spec| spec.taints.is_some());
    !tainted && conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True")
}
