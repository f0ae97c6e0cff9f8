//! Clouds that hang or want no calls. The operator runs in this process, embedded as another program would embed it, and the clouds
//! are in memory.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use operator_kit::Leadership;
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPod,
    metrics::Metrics,
    peerpod::{self, PeerPods},
    provider::{CloudSettings, Openers, Provider, contract::memory::Memory},
    settings::{self, Catalogue, Endpoint, Folders, Schema},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use testbed::wait::{self, DEADLINE};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::without_operator;

const HUNG: usize = 1000;
const HEALTHY: usize = 100;
/// Objects made or deleted at the same time.
const CONCURRENCY: usize = 32;
/// Longer than a crowd takes to be refused one after the other.
const PAUSE: Duration = Duration::from_secs(8);
/// A delay without effect on users. The operator gives up a call that hangs only after a minute.
const SOON: Duration = Duration::from_secs(45);

static DOCKER: Schema = schema("docker");
static VSPHERE: Schema = schema("vsphere");
static SCHEMAS: [&Schema; 2] = [&DOCKER, &VSPHERE];

const fn schema(cloud: &'static str) -> Schema {
    Schema { cloud, keys: &[], check: |_| Ok(Endpoint { setting: "none", address: "memory".to_owned() }) }
}

/// The operator for these clouds, until it is dropped.
async fn operator(client: &Client, dir: &Path, clouds: &[(&'static str, Memory)]) -> Result<JoinSet<()>> {
    let metrics = Metrics::new(&mut Registry::default());
    let (stop, leadership, mut tasks) = (CancellationToken::new(), Leadership::unlimited(), JoinSet::new());
    let openers = clouds.iter().fold(Openers::default(), |openers, (name, memory)| {
        let memory = memory.clone();
        openers.with(name, move |_, _| Ok(Box::new(memory.clone()) as Box<dyn Provider>))
    });
    let mut sources = Vec::new();
    for (name, _) in clouds {
        let folder = dir.join(name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("CLOUD_PROVIDER"), name)?;
        let folders = Folders { settings: folder, credentials: None };
        let (settings, _) = settings::watch(folders, Catalogue::new(&SCHEMAS), stop.clone(), |_| ()).await;
        sources.push(CloudSettings::any(settings));
    }
    let options = peerpod::Options { slow_after: DEADLINE, ..peerpod::Options::new(NAMESPACE) };
    let controller = PeerPods::new(client.clone(), sources, openers, leadership, metrics, &options);
    tasks.spawn(controller.run(|| (), stop));
    Ok(tasks)
}

/// So many VMs of Pods that are gone, each with its PeerPod.
async fn dangling(api: &Api<PeerPod>, cloud: &str, memory: &Memory, count: usize) -> Result<()> {
    stream::iter(0..count)
        .map(async |number| {
            let pod = format!("{cloud}-{number}");
            let vm = memory.vm(&pod);
            let peerpod = json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
                "metadata": {
                    "name": pod, "finalizers": ["peer.pod/finalizer"],
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": vm.name, "controller": true,
                    }],
                },
                "spec": { "cloudProvider": cloud, "instanceID": vm.id },
            });
            api.create(&PostParams::default(), &serde_json::from_value(peerpod)?).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(CONCURRENCY)
        .try_for_each(|()| async { Ok(()) })
        .await
}

/// Deletes the PeerPods of this cloud.
async fn delete(api: &Api<PeerPod>, cloud: &str, count: usize) -> Result<()> {
    let gone = stream::iter(0..count).map(async |number| {
        let deleted = api.delete(&format!("{cloud}-{number}"), &DeleteParams::background()).await;
        // The garbage collector may have been faster.
        wait::unless_gone(deleted).map(drop)
    });
    gone.buffer_unordered(CONCURRENCY).try_for_each(|()| async { Ok(()) }).await.context("deleting PeerPods")
}

/// Waits until the healthy cloud's VMs and PeerPods are gone. Returns how long that took.
async fn healthy_ones_go(api: &Api<PeerPod>, memory: &Memory) -> Result<Duration> {
    let start = Instant::now();
    delete(api, "vsphere", HEALTHY).await?;
    wait::eventually("the VMs of the healthy cloud are gone", DEADLINE, async || {
        let left = api.list_metadata(&ListParams::default()).await?.items;
        let left = left.iter().filter(|peerpod| peerpod.name_any().starts_with("vsphere-")).count();
        ensure!(left == 0 && memory.count() == 0, "{left} PeerPods and {} VMs are left", memory.count());
        Ok(())
    })
    .await?;
    Ok(start.elapsed())
}

#[test]
fn two_operators_in_one_process_delete_everything() -> Result<()> {
    without_operator(async |testbed| {
        let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
        let clouds = [("docker", Memory::default()), ("vsphere", Memory::default())];
        let client = testbed.client();
        let api: Api<PeerPod> = Api::namespaced(client.clone(), &testbed.namespace("twice").await?);
        let _one = operator(&client, dirs[0].path(), &clouds).await?;
        let _other = operator(&client, dirs[1].path(), &clouds).await?;
        for (cloud, memory) in &clouds {
            dangling(&api, cloud, memory, HEALTHY).await?;
        }
        delete(&api, "docker", HEALTHY).await?;
        let [(_, aws), (_, gcp)] = &clouds;
        healthy_ones_go(&api, gcp).await?;
        wait::eventually("the VMs of the other cloud are gone, too", DEADLINE, async || {
            ensure!(aws.count() == 0, "{} are left", aws.count());
            Ok(())
        })
        .await
    })
}

#[test]
fn a_thousand_on_a_cloud_that_hangs_do_not_delay_a_hundred_on_another_one() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let (hangs, healthy) = (Memory::default(), Memory::default());
        let client = testbed.client();
        let api: Api<PeerPod> = Api::namespaced(client.clone(), &testbed.namespace("clouds").await?);
        let clouds = [("docker", hangs.clone()), ("vsphere", healthy.clone())];
        let _operator = operator(&client, dir.path(), &clouds).await?;

        dangling(&api, "vsphere", &healthy, HEALTHY).await?;
        let alone = healthy_ones_go(&api, &healthy).await?;

        hangs.hang();
        dangling(&api, "docker", &hangs, HUNG).await?;
        delete(&api, "docker", HUNG).await?;
        dangling(&api, "vsphere", &healthy, HEALTHY).await?;
        let beside = healthy_ones_go(&api, &healthy).await?;
        println!("100 deletions: {alone:.2?} alone, {beside:.2?} beside 1,000 that hang");
        ensure!(beside < SOON, "it took {beside:?}, and {alone:?} before");
        ensure!(hangs.count() == HUNG, "{} VMs of the hung cloud are left", hangs.count());
        Ok(())
    })
}

/// Notes the names of the PeerPods to whose status the operator writes that the cloud asked for fewer calls.
async fn note_throttled(api: Api<PeerPod>, names: Arc<Mutex<HashSet<String>>>) {
    let changes = watcher(api, watcher::Config::default()).default_backoff().touched_objects();
    let throttled = changes.filter_map(async |peerpod| {
        let peerpod = peerpod.ok()?;
        let mut conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.reason == "CloudThrottled").then(|| peerpod.name_any())
    });
    throttled
        .for_each(async |name| {
            names.lock().unwrap().insert(name);
        })
        .await;
}

#[test]
fn a_pause_that_a_cloud_wants_reaches_few_of_a_crowd_and_all_go_on_after_it() -> Result<()> {
    const CROWD: usize = 600;
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let pauses = Memory::default();
        let (client, namespace) = (testbed.client(), testbed.namespace("pause").await?);
        let api: Api<PeerPod> = Api::namespaced(client.clone(), &namespace);
        dangling(&api, "docker", &pauses, CROWD).await?;
        delete(&api, "docker", CROWD).await?;
        let throttled = Arc::<Mutex<HashSet<String>>>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(note_throttled(api.clone(), throttled.clone()));
        pauses.pause_once(PAUSE);
        let _operator = operator(&client, dir.path(), &[("docker", pauses.clone())]).await?;
        wait::eventually("the crowd is gone", 2 * DEADLINE, async || {
            let left = api.list_metadata(&ListParams::default()).await?.items.len();
            let vms = pauses.count();
            ensure!(left == 0 && vms == 0, "{left} PeerPods and {vms} VMs are left");
            Ok(())
        })
        .await?;
        let refused = throttled.lock().unwrap().len();
        // No more than are under way when the cloud says so.
        ensure!((1..CROWD / 2).contains(&refused), "{refused} of {CROWD} were refused");
        Ok(())
    })
}
