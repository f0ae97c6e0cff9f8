//! Hundreds of small objects of one tenant, each of which would take many times its size in memory.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};
use testbed::{
    Operator,
    wait::{self, DEADLINE},
};
use tokio::time::sleep;

use crate::peerpodconfig::configuration::stage::{Stage, configuring};

const DAEMON_SETS: usize = 75;
const PEERPODS: usize = 150;
/// Objects made at the same time.
const CONCURRENCY: usize = 16;

/// The most memory that all of them may take, in KiB: an eighth of the operator's limit. Either kind would take more if all that its
/// objects have were kept. A DaemonSet has 240 KB of empty terms and 96 KiB of annotations, which is 24 MiB for all. A PeerPod has
/// 150 KB of finalizers and 32 KiB of text, which is 26 MiB for all.
const MOST: u64 = 16 << 10;

/// What stands for the number of an object in its name.
const NUMBER: &str = "NUMBER";

/// The memory that the operator has to itself, in KiB.
fn anonymous_memory(operator: &Operator) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", operator.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Creates so many objects. They go out as bytes and come back unread: types for thousands of entries each would take most of the time.
async fn make<K: Resource>(client: &Client, api: &Api<K>, count: usize, object: &Value) -> Result<()> {
    let text = object.to_string();
    let made = (0..count).map(|index| {
        let body = text.replace(NUMBER, &index.to_string()).into_bytes();
        let request = Request::new(api.resource_url()).create(&PostParams::default(), body);
        async move { anyhow::Ok(client.request_text(request?).await.map(drop)?) }
    });
    let made = stream::iter(made).buffer_unordered(CONCURRENCY);
    made.try_for_each(|()| async { Ok(()) }).await.context("making small objects")
}

/// A finalizer of three letters.
fn finalizer(index: usize) -> String {
    let letter = |index: usize| char::from(b'a' + u8::try_from(index % 26).unwrap_or_default());
    [index / 676, index / 26, index].into_iter().map(letter).collect()
}

#[test]
fn small_objects_of_a_tenant_take_little_memory_and_delay_no_deletion() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        stage.configure("config", json!({ "limit": 1 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let before = anonymous_memory(&alone.operator)?;

        let daemon_sets: Api<DaemonSet> = Api::namespaced(alone.testbed.client(), &alone.namespace);
        let labels = json!({ "app": "cloud-api-adaptor" });
        let long = "x".repeat(32 << 10);
        let annotations: serde_json::Map<_, _> = ["built-from", "settings", "settings-since"]
            .into_iter()
            .map(|name| (format!("peerpods.confidentialcontainers.org/{name}"), json!(long)))
            .collect();
        // A term without requirements matches no node. Only the last term does, and so each DaemonSet has a Pod.
        let name = json!({ "key": "metadata.name", "operator": "In", "values": stage.nodes.names() });
        let mut terms = vec![json!({}); 5_000];
        terms.push(json!({ "matchFields": [name] }));
        let required = json!({ "nodeSelectorTerms": terms });
        let affinity =
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
        let pod = json!({
            "hostNetwork": true, "affinity": affinity,
            "containers": [{ "name": "main", "image": "cloud-api-adaptor" }],
        });
        let daemon_set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": format!("set-{NUMBER}"), "labels": labels, "annotations": annotations },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": pod },
            },
        });
        make(&stage.client, &daemon_sets, DAEMON_SETS, &daemon_set).await?;
        let pods: Api<Pod> = Api::namespaced(alone.testbed.client(), &alone.namespace);
        wait::eventually("each DaemonSet has a Pod", DEADLINE, async || {
            let count = pods.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(count >= DAEMON_SETS, "{count} Pods");
            Ok(())
        })
        .await?;
        let peerpods = alone.scene().peerpods;
        let finalizers: Vec<_> = (0..2_700).map(finalizer).collect();
        let peerpod = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
            "metadata": {
                "name": format!("small-{NUMBER}"), "finalizers": finalizers,
                "annotations": { "peerpods.confidentialcontainers.org/release": "x".repeat(30 << 10) },
            },
            "spec": { "cloudProvider": "libvirt", "instanceID": "x".repeat(512) },
        });
        make(&stage.client, &peerpods, PEERPODS, &peerpod).await?;
        wait::eventually("the operator knows all PeerPods", DEADLINE, async || {
            let known = alone.operator.metrics().await?.sum("peerpod_operator_peerpods", &[]);
            ensure!(known > f64::from(u32::try_from(PEERPODS)?) - 0.5, "it knows {known}");
            Ok(())
        })
        .await?;
        // The watch of DaemonSets may be a little later.
        for _ in 0..10 {
            sleep(std::time::Duration::from_secs(1)).await;
            let growth = anonymous_memory(&alone.operator)?.saturating_sub(before);
            ensure!(growth <= MOST, "{growth} KiB more than the {before} before");
        }

        let scene = alone.scene();
        peerpods.delete("small-0", &DeleteParams::default()).await?;
        let condition = scene.held("small-0", "TooManyFinalizers").await?;
        ensure!(condition.message.contains("more than 16 finalizers"), "{}", condition.message);
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        let left = peerpods.get("small-0").await?;
        ensure!(left.finalizers() == finalizers, "the operator removes no finalizer of others");
        daemon_sets.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
        stage.clear("config").await
    })
}
