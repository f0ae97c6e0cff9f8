//! The operators in `examples/`: how soon 100 `PodSets` have their Pods, and the cost of each operator while nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::progress::Progress;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use operator_kit::metadata::controlled_by;
use podset::{
    api::{PodSet, PodSetSpec},
    plan,
};
use stage::{Plan, Stage};
use testbed::{
    repository,
    wait::{self, DEADLINE},
};
use tokio::time::sleep;

use super::{
    figures::{Figures, median},
    usage,
};
use crate::{example::Example, release};

const PODSETS: usize = 100;
/// Pods of each PodSet.
const REPLICAS: i32 = 10;
const PODS: usize = 1_000;
/// How often each of the two ways is measured. They alternate, so that both times of one round meet the same machine. The median of the
/// rounds' ratios counts: a moment in which the machine does something else changes no figure.
const ROUNDS: usize = 21;
/// The concurrent requests of the client that the operator is compared with. They keep the processors of a small machine busy.
const CONCURRENCY: usize = 80;
/// How long nothing happens.
const QUIET: Duration = Duration::from_secs(60);

pub(super) async fn run() -> Result<Figures> {
    let (mut progress, mut figures) = (Progress::new(4), Figures::default());
    progress.step("building podset (release)");
    let stage = set(Example::Podset, &mut progress).await?;
    figures.at_most("PodSet: resident memory, idle", memory(&stage).await?, "MiB", 10.0);
    progress.step(format!("{PODS} Pods by one client, and by {PODSETS} PodSets: {ROUNDS} times in turn"));
    let (mut client, mut operator, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let [one, other] = [by_client(&stage).await?, by_operator(&stage).await?].map(|it| it.as_secs_f64());
        client.push(one);
        operator.push(other);
        ratios.push(other / one);
    }
    figures.info("1,000 Pods by one client", median(client), "s");
    figures.info("PodSet: 0 to 10 Pods of 100 PodSets", median(operator), "s");
    figures.at_most("PodSet: the same, by the client's time", median(ratios), "", 1.2);
    figures.info("PodSet: resident memory, after 42,000 Pods", memory(&stage).await?, "MiB");
    drop(stage);

    progress.step("building ptemplate (release)");
    let stage = set(Example::Ptemplate, &mut progress).await?;
    figures.at_most("Ptemplate: resident memory, idle", memory(&stage).await?, "MiB", 10.0);
    progress.step("a Ptemplate that does not change");
    figures.exactly("Ptemplate: writes in 60 s without a change", quiet(&stage).await?, 0.0);
    progress.finish();
    Ok(figures)
}

/// A control plane with this example.
async fn set(example: Example, progress: &mut Progress) -> Result<Stage> {
    let program = release::build(example.name(), &["--quiet"])?;
    progress.detail("starting a control plane");
    Stage::set(&Plan { operator: example.operator()?, manifests: example.manifests(), program }).await
}

/// The operator's resident memory, in MiB.
async fn memory(stage: &Stage) -> Result<f64> {
    Ok(usage::memory(stage.operator_pid().await)?.0)
}

/// How long a plain client takes to create the same Pods, with the operator's rights: the API server checks and logs its requests, too.
/// They have an owner, as the operator's have: the API server checks the right to name it, and the garbage collector takes note of it.
/// It is none that the operator knows.
async fn by_client(stage: &Stage) -> Result<Duration> {
    let namespace = stage.namespace().await?;
    let maps: Api<ConfigMap> = Api::namespaced(stage.client(), &namespace);
    let metadata = ObjectMeta { name: Some("client".to_owned()), ..ObjectMeta::default() };
    let owner = maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await?;
    let api: Api<Pod> = Api::namespaced(stage.operators_client(), &namespace);
    let mut pod = plan::pod(&PodSet::new("client", PodSetSpec { replicas: REPLICAS }));
    pod.metadata.owner_references = controlled_by(&owner);
    let start = Instant::now();
    let created = (0..PODS).map(|_| {
        let (api, pod) = (&api, &pod);
        async move { api.create(&PostParams::default(), pod).await }
    });
    stream::iter(created).buffer_unordered(CONCURRENCY).try_for_each(async |_| Ok(())).await?;
    let took = start.elapsed();
    clean(stage, &namespace).await?;
    Ok(took)
}

/// How long the operator takes, from the first of the `PodSets` until the API server has created the last Pod.
async fn by_operator(stage: &Stage) -> Result<Duration> {
    let namespace = stage.namespace().await?;
    let api: Api<PodSet> = Api::namespaced(stage.client(), &namespace);
    let start = Timestamp::now();
    let created = (0..PODSETS).map(|index| {
        let metadata = ObjectMeta { name: Some(format!("podset-{index}")), ..ObjectMeta::default() };
        let podset = PodSet { metadata, spec: PodSetSpec { replicas: REPLICAS }, status: None };
        let api = &api;
        async move { api.create(&PostParams::default(), &podset).await }
    });
    stream::iter(created).buffer_unordered(CONCURRENCY).try_for_each(async |_| Ok(())).await?;
    // The count costs the API server next to nothing. The audit log is long, so it is read only once, at the end.
    let pods: Api<Pod> = Api::namespaced(stage.client(), &namespace);
    wait::eventually("all Pods are there", DEADLINE, async || {
        let listed = pods.list_metadata(&ListParams::default().limit(1)).await?;
        let more = listed.metadata.remaining_item_count.unwrap_or_default();
        ensure!(usize::try_from(more)? + listed.items.len() == PODS, "there are {more} and one");
        Ok(())
    })
    .await?;
    let last = wait::eventually("the log has all Pods", DEADLINE, async || {
        let mut writes = stage.writes(&namespace)?;
        writes.retain(|it| it.verb == "create" && it.resource == "pods" && it.code == 201);
        ensure!(writes.len() == PODS, "there are {}", writes.len());
        writes.iter().map(|it| it.answered).max().context("there are some")
    });
    let took = last.await?.duration_since(start);
    clean(stage, &namespace).await?;
    Ok(took.try_into()?)
}

/// Deletes the `PodSets` and Pods of a namespace. `PodSets` come first, because they would replace their Pods. The Pods end without a
/// grace period: the garbage collector and the fake node take ten times as long as a round.
async fn clean(stage: &Stage, namespace: &str) -> Result<()> {
    let podsets: Api<PodSet> = Api::namespaced(stage.client(), namespace);
    let pods: Api<Pod> = Api::namespaced(stage.client(), namespace);
    let all = ListParams::default();
    podsets.delete_collection(&DeleteParams::background(), &all).await?;
    wait::eventually("all Pods are gone", DEADLINE, async || {
        pods.delete_collection(&DeleteParams::background().grace_period(0), &all).await?;
        let left = pods.list_metadata(&all).await?.items.len();
        ensure!(left == 0, "there are {left}");
        Ok(())
    })
    .await
}

/// How often Ptemplate's operator writes while the sample does not change.
async fn quiet(stage: &Stage) -> Result<f64> {
    let folder = repository::root().join("examples/ptemplate");
    let file = |path: &str| format!("--filename={}", folder.join(path).display());
    stage.kubectl(&["apply", "--server-side", &file("tests/cluster/kmm.yaml")]).await?;
    stage.kubectl(&["label", "nodes", "--all", "node-role.kubernetes.io/worker=worker"]).await?;
    let namespace = stage.namespace().await?;
    let own = format!("--namespace={namespace}");
    stage.kubectl(&["apply", &file("manifests/sample.yaml"), &own]).await?;
    for condition in
        ["condition=ModuleApplied", "condition=ConsumerApplied", "jsonpath={.status.consumers[0]}"]
    {
        let reached = format!("--for={condition}");
        stage.kubectl(&["wait", &reached, "ptemplate/ptemplate-sample", &own, "--timeout=60s"]).await?;
    }
    let before = stage.writes(&namespace)?.len();
    sleep(QUIET).await;
    Ok(f64::from(u32::try_from(stage.writes(&namespace)?.len() - before)?))
}
