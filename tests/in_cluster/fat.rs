//! Objects that tenants have filled to their maximum size.

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::{Method, Request};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ObjectMeta},
};
use peerpod_operator::{NAMESPACE, api::v1alpha1::PeerPod, install::NAME};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, json};
use testbed::{
    peerpod_object,
    wait::{self, DEADLINE},
};

use crate::support::{Installation, alone};

/// The most memory that the operator may take, whatever the objects: half its limit.
const MOST: u64 = 64 << 20;
/// How long the operator may take to be ready, in seconds. It takes a fifth of that on an idle machine.
const READY: i64 = 35;

/// The most bytes that the annotations of an object may have together.
const ANNOTATION: usize = 250_000;
const DAEMON_SETS: usize = 60;
const PODS: usize = 100;
const PEERPODS: usize = 300;
/// How many of the PeerPods are being deleted and wait for their Pods.
const GOING: usize = 50;
/// Objects made or deleted at the same time.
const CONCURRENCY: usize = 8;

/// Asks for an answer that has the metadata of an object alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Asks for an answer that has no more of an object than kubectl prints.
const LINE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// What is read of a new object.
#[derive(Deserialize)]
struct Made {
    metadata: Identity,
}

#[derive(Deserialize)]
struct Identity {
    name: String,
    uid: String,
}

/// Sends these requests, each a method, a path and a body. `accept` asks for small answers: to encode and decode whole objects, up to a
/// megabyte each, would take most of the time.
async fn send<T: DeserializeOwned>(
    client: &Client,
    accept: &'static str,
    requests: impl Iterator<Item = (Method, String, Vec<u8>)>,
) -> Result<Vec<T>> {
    let answers = requests.map(|(method, path, body)| {
        // Without this parameter a line has the metadata beside it.
        let request = Request::builder().method(method).uri(format!("{path}?includeObject=None"));
        let request = request.header("accept", accept).header("content-type", "application/json").body(body);
        async move { anyhow::Ok(client.request::<T>(request?).await?) }
    });
    stream::iter(answers).buffered(CONCURRENCY).try_collect().await
}

/// Creates so many objects.
async fn make<K: Resource, T: DeserializeOwned>(
    client: &Client,
    api: &Api<K>,
    accept: &'static str,
    count: usize,
    object: impl Fn(usize) -> Value,
) -> Result<Vec<T>> {
    let url = api.resource_url();
    let requests =
        (0..count).map(|index| (Method::POST, url.to_owned(), object(index).to_string().into_bytes()));
    send(client, accept, requests).await.context("making fat objects")
}

/// Deletes the objects of these names.
async fn delete<K: Resource>(
    client: &Client,
    api: &Api<K>,
    names: &[String],
    params: &DeleteParams,
) -> Result<()> {
    let (url, params) = (api.resource_url(), serde_json::to_vec(params)?);
    let requests = names.iter().map(|name| (Method::DELETE, format!("{url}/{name}"), params.clone()));
    send::<IgnoredAny>(client, LINE, requests).await.map(drop).context("deleting fat objects")
}

/// The containers of a Pod that is as large as the API server allows beside its annotations.
fn containers(bytes: usize) -> Value {
    json!([{ "name": "main", "image": "none", "env": [{ "name": "FAT", "value": "x".repeat(bytes) }] }])
}

fn metadata(kind: &str, index: usize) -> Value {
    json!({ "name": format!("{kind}-{index}"), "annotations": { "fat": "x".repeat(ANNOTATION) } })
}

#[test]
fn fat_objects_of_tenants_neither_kill_nor_delay_an_operator_that_starts() -> Result<()> {
    alone(async |installation| {
        let client = installation.testbed.client();
        let namespace = installation.testbed.namespace("fat").await?;
        let labels = json!({ "app": "fat" });
        let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), &namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let peerpods: Api<PeerPod> = Api::namespaced(client.clone(), &namespace);
        let daemon_set = |index| {
            let spec = json!({ "nodeSelector": { "such-a-node": "is-not-there" }, "containers": containers(1_050_000) });
            let template = json!({ "metadata": { "labels": labels }, "spec": spec });
            let spec = json!({ "selector": { "matchLabels": labels }, "template": template });
            json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata("set", index), "spec": spec })
        };
        let pod = |index| {
            // A scheduler that tries to place the Pod would write to it.
            let gates = json!([{ "name": "tests/never" }]);
            let spec = json!({ "schedulingGates": gates, "containers": containers(750_000) });
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata("pod", index), "spec": spec })
        };
        make::<_, IgnoredAny>(&client, &daemon_sets, LINE, DAEMON_SETS, daemon_set).await?;
        let owners: Vec<Made> = make(&client, &pods, METADATA, PODS, pod).await?;
        let owner = |index: usize| {
            // The garbage collector deletes what a deleted Pod owns, one by one. So these Pods own nothing but the PeerPods that wait.
            let index = if index < GOING { index } else { GOING + index % (PODS - GOING) };
            let Identity { name, uid } = &owners[index].metadata;
            let (name, namespace, uid) = (Some(name.clone()), Some(namespace.clone()), Some(uid.clone()));
            Pod { metadata: ObjectMeta { name, namespace, uid, ..ObjectMeta::default() }, ..Pod::default() }
        };
        let peerpod = |index: usize| {
            // The machines do not exist.
            let instance = format!("0dd2f0c5-6a3d-44a7-9b5e-{index:012x}");
            let mut object = peerpod_object(&owner(index), "libvirt", &instance);
            if index >= GOING {
                object["metadata"].as_object_mut().expect("an object").remove("finalizers");
                object["spec"] = json!({});
            }
            let fat = metadata("peerpod", index);
            for field in ["name", "annotations"] {
                object["metadata"][field] = fat[field].clone();
            }
            object
        };
        make::<_, IgnoredAny>(&client, &peerpods, LINE, PEERPODS, peerpod).await?;
        let going: Vec<_> = (0..GOING).map(|index| format!("peerpod-{index}")).collect();
        scale(installation, 0).await?;
        delete(&client, &peerpods, &going, &DeleteParams::default()).await?;

        scale(installation, 2).await?;
        let operators = installation.operators();
        operators.available().await?;
        for operator in operators.list().await? {
            let status = operator.status.context("a status")?;
            let container = &status.container_statuses.as_deref().context("no container")?[0];
            ensure!(container.restart_count == 0, "it was restarted: {container:?}");
            let running = container.state.as_ref().and_then(|state| state.running.as_ref());
            let started = running.and_then(|it| it.started_at.as_ref()).context("it does not run")?.0;
            let conditions = status.conditions.unwrap_or_default();
            let ready = conditions.into_iter().find(|it| it.type_ == "Ready").context("not ready")?;
            let ready = ready.last_transition_time.context("a time")?.0;
            ensure!(
                ready.as_second() - started.as_second() <= READY,
                "ready at {ready}, started at {started}"
            );
        }
        // The PeerPods that are being deleted wait for their Pods, and are deleted with them.
        let waits = |peerpod: &PeerPod| {
            let conditions = peerpod.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.reason == "WaitingForPod")
        };
        for peerpod in &going {
            wait::present(&peerpods, peerpod, "it waits for its Pod", DEADLINE, waits).await?;
        }
        let their_pods: Vec<_> = owners[..GOING].iter().map(|pod| pod.metadata.name.clone()).collect();
        delete(&client, &pods, &their_pods, &DeleteParams::default().grace_period(0)).await?;
        for peerpod in &going {
            wait::gone(&peerpods, peerpod, DEADLINE).await?;
        }
        for pod in operators.list().await? {
            let memory = installation.testbed.cluster().memory_of_pod(&pod.uid().unwrap_or_default())?;
            // The program's own file counts only for the Pod that happened to read it first.
            let most = memory.peak.saturating_sub(memory.files);
            ensure!(memory.kills == 0 && most <= MOST, "{}: {memory:?}", pod.name_any());
        }
        // One by one, the rest would take half a minute. The DaemonSets are the first, as their controller makes a revision again that
        // is gone before its DaemonSet. The Pods follow what they own, so that the garbage collector has nothing to do.
        let kinds = ["daemonsets", "controllerrevisions", "confidentialcontainers.org/peerpods", "pods"];
        for kind in kinds {
            installation.testbed.remove_below(&format!("{kind}/{namespace}")).await?;
        }
        let namespaces: Api<Namespace> = Api::all(client);
        namespaces.delete(&namespace, &DeleteParams::default()).await?;
        wait::gone(&namespaces, &namespace, 2 * DEADLINE).await
    })
}

/// Scales the operator to so many replicas.
async fn scale(installation: &Installation, replicas: usize) -> Result<()> {
    let (deployment, namespace) = (format!("deployment/{NAME}"), format!("--namespace={NAMESPACE}"));
    let replicas_flag = format!("--replicas={replicas}");
    installation.testbed.cluster().kubectl(&["scale", &deployment, &namespace, &replicas_flag]).await?;
    wait::eventually("the operators are as many as asked for", DEADLINE, async || {
        let count = installation.operators().list().await?.len();
        ensure!(count == replicas, "there are {count}");
        Ok(())
    })
    .await
}
