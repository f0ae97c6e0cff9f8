//! VMs on nodes, without an operator: only the part of it that advertises them, with that part's rights.

mod refused;
mod room;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    NAMESPACE,
    peerpodconfig::capacity::{Capacity, MARK, NodeRequest, Nodes, PERMISSIONS, Summary},
};
use serde_json::{Value, json};
use testbed::{
    Request, Testbed,
    wait::{self, DEADLINE},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use crate::support::without_operator;

/// The extended resource.
const VM: &str = "kata.peerpods.io/vm";

/// The ServiceAccount of the part under test.
const ACCOUNT: &str = "capacity";

/// The request that lists Pods.
const LIST: (&str, &str) = ("list", "pods");

/// The pause of a program that fights after each of its writes. Without a pause it would take the processors from the operator.
const FIGHT_PAUSE: Duration = Duration::from_millis(20);

/// Too short for a timer to have fired.
const SOON: Duration = Duration::from_secs(14);

/// The part that advertises, and the nodes.
struct Stage<'a> {
    testbed: &'a Testbed,
    nodes: Api<Node>,
    /// The nodes as that part sees them.
    known: Nodes,
    requests: watch::Sender<Vec<NodeRequest>>,
    summaries: watch::Receiver<Vec<Summary>>,
    /// Ends with the stage.
    _tasks: JoinSet<()>,
    /// The position in the audit log at the start.
    logged: u64,
    /// How many writes the method `written` has returned so far.
    written: usize,
}

impl<'a> Stage<'a> {
    async fn new(testbed: &'a Testbed) -> Result<Self> {
        let logged = testbed.audit()?.end()?;
        let (capacity, changes) = Capacity::watch(&client(testbed).await?);
        let known = capacity.nodes().clone();
        let (requests, mut wanted) = watch::channel(Vec::new());
        let (told, summaries) = watch::channel(Vec::new());
        let news = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let seen = news.clone();
        tasks.spawn(changes.for_each(move |()| {
            seen.notify_one();
            std::future::ready(())
        }));
        tasks.spawn(async move {
            let mut again = None;
            loop {
                let later = tokio::time::sleep(again.unwrap_or(DEADLINE));
                tokio::select! {
                    () = news.notified() => {}
                    open = wanted.changed() => if open.is_err() { return },
                    () = later => {}
                }
                let requests = wanted.borrow_and_update().clone();
                let pass = capacity.pass(&requests).await.expect("Pods can be listed");
                again = pass.as_ref().and_then(|pass| pass.again);
                if let Some(pass) = pass {
                    told.send_replace(pass.summaries);
                }
            }
        });
        let nodes = Api::all(testbed.client());
        Ok(Self { testbed, nodes, known, requests, summaries, _tasks: tasks, logged, written: 0 })
    }

    /// Adds a worker without a kubelet, so it is never ready. Returns when the part that advertises has seen it.
    async fn join(&self, name: &str) -> Result<()> {
        let labels = json!({ "node.kubernetes.io/worker": "" });
        let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        self.nodes.create(&PostParams::default(), &node).await.with_context(|| format!("adding {name}"))?;
        wait::eventually(&format!("{name} is seen"), DEADLINE, async || {
            let seen = self.known.snapshot().unwrap_or_default();
            ensure!(seen.iter().any(|node| **node.name() == *name), "there are {} others", seen.len());
            Ok(())
        })
        .await
    }

    async fn leave(&self, name: &str) -> Result<()> {
        self.nodes
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("removing {name}"))?;
        wait::gone(&self.nodes, name, DEADLINE).await
    }

    /// Asks for these VMs.
    fn want(&self, specs: &[Value]) -> Result<()> {
        self.requests.send_replace(specs.iter().map(node_request).collect::<Result<_>>()?);
        Ok(())
    }

    /// Waits until a node advertises this number of VMs, or none. Returns how long that took.
    async fn advertises(&self, name: &str, vms: Option<&str>) -> Result<Duration> {
        let start = Instant::now();
        let what = format!("{name} advertises {vms:?}");
        let holds = |node: &Node| {
            let mark =
                node.metadata.annotations.iter().flatten().any(|(key, value)| key == MARK && value == VM);
            levels(node) == [vms, vms].map(|vms| vms.map(str::to_owned)) && mark == vms.is_some()
        };
        // The longest pause between two attempts at a failing write is a minute.
        wait::present(&self.nodes, name, &what, 2 * DEADLINE, holds).await?;
        Ok(start.elapsed())
    }

    /// Waits until these nodes advertise these VMs.
    async fn shares(&self, expected: &[(&str, &str)]) -> Result<()> {
        for (name, vms) in expected {
            self.advertises(name, Some(vms)).await?;
        }
        Ok(())
    }

    /// Writes the resource of a node, as another program would.
    async fn reset(&self, name: &str, vms: Option<&str>) -> Result<()> {
        let level = json!({ VM: vms });
        self.patch_status(name, &json!({ "capacity": level, "allocatable": level })).await
    }

    async fn patch_status(&self, name: &str, status: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.nodes.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn label(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { key: value } } }));
        self.nodes.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// How often the audit log has this verb and resource so far.
    fn asked(&self, (verb, resource): (&str, &str)) -> Result<usize> {
        let all = self.logged()?;
        Ok(all.iter().filter(|it| (it.verb.as_str(), it.resource.as_str()) == (verb, resource)).count())
    }

    /// The nodes that were written to since the last call, once a summary says that nothing is pending. The audit log lags a moment
    /// behind the summary, so this waits for `at_least` so many writes.
    async fn written(&mut self, at_least: usize) -> Result<Vec<String>> {
        let settled = |summaries: &Vec<Summary>| summaries.iter().all(|summary| summary.pending.is_empty());
        tokio::time::timeout(DEADLINE, self.summaries.wait_for(settled)).await??;
        let logged = async || {
            let mut requests = self.logged()?;
            requests.retain(Request::is_write);
            ensure!(requests.len() >= self.written + at_least, "no more than {requests:?}");
            Ok(requests)
        };
        let requests = wait::eventually("the audit log has every write", DEADLINE, logged).await?;
        let new = &requests[self.written..];
        self.written = requests.len();
        for request in new {
            ensure!((request.resource.as_str(), request.code) == ("nodes/status", 200), "{request:?}");
        }
        let mut names: Vec<_> = new.iter().map(|request| request.name.clone()).collect();
        names.sort();
        Ok(names)
    }

    /// All requests under the ServiceAccount so far, also refused ones.
    fn logged(&self) -> Result<Vec<Request>> {
        let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
        let mut requests = self.testbed.audit()?.requests(&mut { self.logged })?;
        requests.retain(|request| request.user == user);
        Ok(requests)
    }
}

/// A client with exactly the rights of this part.
async fn client(testbed: &Testbed) -> Result<kube::Client> {
    let rule = |permission: &operator_kit::Permission| json!({ "apiGroups": [permission.group], "resources": permission.resources, "verbs": permission.verbs });
    let rules: Vec<_> = PERMISSIONS.iter().map(rule).collect();
    let subject = json!({ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE });
    let reference =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT });
    let rbac = "rbac.authorization.k8s.io/v1";
    let metadata = json!({ "name": ACCOUNT });
    let account = json!({ "name": ACCOUNT, "namespace": NAMESPACE });
    let objects = [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": account }),
        json!({ "apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": reference, "subjects": [subject],
        }),
    ];
    testbed.apply("capacity", &objects).await?;
    testbed.client_of(ACCOUNT).await
}

fn node_request(spec: &Value) -> Result<NodeRequest> {
    let config = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": "config", "deletionTimestamp": spec["deleted"] },
        "spec": spec,
    }))?;
    Ok(NodeRequest::of(&config))
}

/// What a node has of the resource, in capacity and allocatable.
fn levels(node: &Node) -> [Option<String>; 2] {
    let status = node.status.clone().unwrap_or_default();
    [status.capacity, status.allocatable].map(|level| Some(level?.remove(VM)?.0))
}

#[test]
fn nodes_advertise_their_shares_by_one_write_each_and_lose_them_again() -> Result<()> {
    without_operator(async |testbed| {
        let mut stage = Stage::new(testbed).await?;
        for name in ["a", "b", "c"] {
            stage.join(name).await?;
        }
        stage.join("foreign").await?;
        stage.label("foreign", "node.kubernetes.io/worker", None).await?;
        stage.reset("foreign", Some("7")).await?;
        stage.want(&[json!({ "limit": 10 })])?;
        stage.shares(&[("a", "4"), ("b", "3"), ("c", "3")]).await?;
        assert_eq!(stage.written(3).await?, ["a", "b", "c"]);

        // Heartbeats and cordons cause no pass. A node that joins costs two writes.
        let ready =
            json!({ "type": "Ready", "status": "Unknown", "lastHeartbeatTime": "2026-01-01T00:00:00Z" });
        stage.patch_status("a", &json!({ "conditions": [ready] })).await?;
        let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        stage.nodes.patch("b", &PatchParams::default(), &cordon).await?;
        stage.join("d").await?;
        stage.shares(&[("a", "2"), ("b", "3"), ("c", "3"), ("d", "2")]).await?;
        assert_eq!(stage.written(2).await?, ["a", "d"]);

        // The API server writes 1000 as 1k.
        stage.want(&[json!({ "limit": 1000, "distribution": "PerNode" })])?;
        stage.shares(&[("a", "1k"), ("b", "1k"), ("c", "1k"), ("d", "1k")]).await?;
        assert_eq!(stage.written(4).await?.len(), 4);

        stage.want(&[json!({ "limit": "8" })])?;
        stage.shares(&[("a", "2"), ("b", "2"), ("c", "2"), ("d", "2")]).await?;
        stage.label("d", "node.kubernetes.io/worker", None).await?;
        stage.advertises("d", None).await?;
        stage.shares(&[("a", "3"), ("b", "3"), ("c", "2")]).await?;
        stage.leave("b").await?;
        stage.shares(&[("a", "4"), ("c", "4")]).await?;
        stage.join("b").await?;
        stage.shares(&[("a", "3"), ("b", "2"), ("c", "3")]).await?;
        // Four writes, then one for the node that leaves, two, two, and three.
        stage.written(12).await?;

        stage.want(&[json!({ "limit": "8", "deleted": "2026-01-01T00:00:00Z" })])?;
        for name in ["a", "b", "c"] {
            stage.advertises(name, None).await?;
        }
        assert_eq!(stage.written(3).await?, ["a", "b", "c"]);
        assert_eq!(levels(&stage.nodes.get("foreign").await?), [Some("7".to_owned()), Some("7".to_owned())]);
        for name in ["a", "b", "c", "d", "foreign"] {
            stage.leave(name).await?;
        }
        Ok(())
    })
}

#[test]
fn a_reset_is_put_right_at_once_and_a_fight_is_not_taken_up() -> Result<()> {
    without_operator(async |testbed| {
        let mut stage = Stage::new(testbed).await?;
        for name in ["a", "b", "c"] {
            stage.join(name).await?;
        }
        stage.want(&[json!({ "limit": 9 })])?;
        stage.shares(&[("a", "3"), ("b", "3"), ("c", "3")]).await?;
        stage.written(3).await?;
        for (name, vms) in [("a", Some("0")), ("b", None)] {
            stage.reset(name, vms).await?;
            let took = stage.advertises(name, Some("3")).await?;
            ensure!(took < SOON, "{name}, set to {vms:?}, was put right after {took:?}");
        }
        // When cloud-api-adaptor ends, it removes the capacity alone. A kubelet would then remove the allocatable VMs.
        stage.patch_status("c", &json!({ "capacity": { VM: null } })).await?;
        let took = stage.advertises("c", Some("3")).await?;
        ensure!(took < SOON, "the capacity was put right after {took:?}");
        assert_eq!(stage.written(3).await?, ["a", "b", "c"]);

        // After its second reset a node waits for seconds. Then the operator sets it right again.
        let start = Instant::now();
        let mut resets = 0;
        while start.elapsed() < Duration::from_secs(3) {
            stage.reset("a", Some("0")).await?;
            tokio::time::sleep(FIGHT_PAUSE).await;
            resets += 1;
        }
        stage.shares(&[("a", "3"), ("b", "3"), ("c", "3")]).await?;
        let written = stage.written(1).await?;
        ensure!(written.len() <= 3 && written.iter().all(|name| name == "a"), "{resets} resets: {written:?}");
        for name in ["a", "b", "c"] {
            stage.leave(name).await?;
        }
        Ok(())
    })
}

#[test]
fn many_nodes_in_a_fight_are_not_asked_about_while_they_wait() -> Result<()> {
    without_operator(async |testbed| {
        let stage = Stage::new(testbed).await?;
        // More nodes than the operator lists Pods for one by one.
        let names: Vec<_> = (0..20).map(|number| format!("fought-{number:02}")).collect();
        for name in &names {
            stage.join(name).await?;
        }
        stage.want(&[json!({ "limit": 60 })])?;
        for name in &names {
            stage.advertises(name, Some("3")).await?;
        }
        // The first reset of each node is set right at once.
        for name in &names {
            stage.reset(name, None).await?;
        }
        for name in &names {
            stage.advertises(name, Some("3")).await?;
        }
        let before = stage.asked(LIST)?;
        let start = Instant::now();
        let mut resets = 0;
        while start.elapsed() < Duration::from_secs(5) {
            for name in &names {
                stage.reset(name, Some(["0", "1"][resets % 2])).await?;
                tokio::time::sleep(FIGHT_PAUSE).await;
            }
            resets += 1;
        }
        let lists = stage.asked(LIST)? - before;
        // When a node's turn comes, the operator lists the Pods of that node alone.
        ensure!(lists <= 2 * names.len(), "{resets} resets of each: Pods were listed {lists} times");
        for name in &names {
            stage.advertises(name, Some("3")).await?;
        }
        for name in &names {
            stage.leave(name).await?;
        }
        Ok(())
    })
}
