use std::{collections::HashSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::runtime::{reflector::store, watcher::Event};
use operator_kit::{
    projection::reading,
    testing::{Answer, ApiServer, Call, not_of},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::{
    cluster::Cluster,
    metrics::Metrics,
    peerpod::{
        PeerPodFindings,
        decide::{Facts, Owner},
        index::Index,
        object::key,
        observe::tests::answers,
        parking::Parking,
        pod::POD,
        requeue::Requeues,
    },
    provider::{
        Accepted, CATALOGUE, Error, ErrorClass, clouds_in_memory, clouds_under, contract::memory::Memory,
    },
    settings::{Raw, Snapshot, State},
};

/// A PeerPod in this namespace of a Pod with this name and UID.
fn peerpod(cloud: &str, instance: &str, namespace: &str, pod: Option<(&str, &str)>) -> PeerPod {
    let owners: Vec<_> = pod
        .iter()
        .map(|(name, uid)| json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true }))
        .collect();
    let (name, uid) = pod.unwrap_or(("ownerless", ""));
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {
            "name": format!("{name}-{instance}"), "namespace": namespace, "uid": format!("{uid}-{instance}"),
            "creationTimestamp": at(0), "finalizers": ["peer.pod/finalizer"], "ownerReferences": owners,
        },
        "spec": { "cloudProvider": cloud, "instanceID": instance },
    }))
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

/// What else needs this VM of a PeerPod, with these other PeerPods and this API server.
async fn claimant(
    peerpod: &PeerPod,
    vm: Vm,
    others: &[PeerPod],
    calls: impl IntoIterator<Item = Call>,
) -> Result<Option<Message>, ApiError> {
    let server = ApiServer::expecting(calls);
    observer(peerpod, others, &server).claimant(peerpod, &VmState::Present(vm)).await
}

fn observer(peerpod: &PeerPod, others: &[PeerPod], server: &ApiServer) -> Observer {
    let (store, mut writer) = store();
    let index = Arc::new(Index::default());
    for one in others.iter().chain([peerpod]) {
        let event = Event::Apply(one.clone());
        index.apply(&event);
        writer.apply_watcher_event(&event);
    }
    Observer {
        client: reading(&server.client(), &POD),
        clouds: clouds_in_memory("gcp", &Memory::default()),
        index,
        store,
        grace_periods: Arc::default(),
        clean_ups: Arc::default(),
        cluster: Cluster::new(&server.client()),
        findings: PeerPodFindings::default(),
        requeues: Requeues::default(),
    }
}

const VM: &str = "0dd2f0c5-6a3d-44a7-9b5e-2f7a6c2f9a11";
const ADDRESS: &str = "10.0.0.1";

fn vm(peerpod: &PeerPod) -> Vm {
    let id = InstanceId::parse(peerpod.cloud_provider(), peerpod.instance_id()).unwrap();
    Vm { created: Some(at(0)), ..Vm::named(id, "podvm-web-0-1a2b3c4d") }
}

#[tokio::test]
async fn a_machine_that_a_pod_of_another_name_records_is_kept_although_this_process_saw_no_return() {
    let own = peerpod("byom", ADDRESS, "shop", Some(("web-0", "own")));
    let next = peerpod("byom", ADDRESS, "bank", Some(("db", "x")));
    assert!(!vm(&own).reappeared);
    assert!(claimant(&own, vm(&own), std::slice::from_ref(&next), []).await.unwrap().is_some());
    let (mut released, mut ownerless) = (next.clone(), next);
    released.metadata.finalizers = None;
    ownerless.metadata.owner_references = None;
    for other in [released, ownerless] {
        assert!(claimant(&own, vm(&own), &[other], [pods(list(&[]))]).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_living_peerpod_claims_a_vm_only_if_its_pod_may_have_a_vm_of_that_name() {
    let own = peerpod("libvirt", VM, "shop", Some(("web-0", "own")));
    let needed = async |other: &PeerPod, vm: Vm| {
        claimant(&own, vm, std::slice::from_ref(other), []).await.unwrap().is_some()
    };
    let remains = Vm { stage: Stage::Remains(Bears::Id), ..vm(&own) };
    let reappeared = Vm { reappeared: true, ..vm(&own) };
    for (pod, expected) in [
        (None, false),
        (Some(("db", "x")), false),
        (Some(("web", "x")), false),
        (Some(("web-0-0", "x")), false),
        (Some(("web-0", "x")), true),
        (Some(("web.0", "x")), true),
    ] {
        let other = peerpod("libvirt", VM, "bank", pod);
        assert_eq!(needed(&other, vm(&own)).await, expected, "{pod:?}");
        assert!(needed(&other, remains.clone()).await, "remains bear no name of a Pod: {pod:?}");
        assert!(needed(&other, reappeared.clone()).await, "another Pod may have got it meanwhile: {pod:?}");
    }
    let sibling = PeerPod {
        metadata: ObjectMeta { name: Some("b".into()), uid: Some("b".into()), ..own.metadata.clone() },
        ..own.clone()
    };
    assert!(needed(&sibling, vm(&own)).await, "another one of the same Pod");
}

#[tokio::test]
async fn deleted_peerpods_that_another_finalizer_keeps_do_not_claim_a_vm_for_ever() {
    let own = peerpod("libvirt", VM, "shop", Some(("web-0", "own")));
    let kept = |number: usize| {
        let mut other = peerpod("libvirt", VM, "bank", Some(("web-0", &format!("pod-{number}"))));
        let metadata = &mut other.metadata;
        metadata.name = Some(format!("kept-{number}"));
        metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
        metadata.deletion_timestamp = metadata.creation_timestamp.clone();
        other
    };
    let others: Vec<_> = (0..=MOST_PODS).map(kept).collect();
    let pod = || Call::get("/api/v1/namespaces/bank/pods/web-0").answer(Answer::not_found("pods", "web-0"));
    let server = ApiServer::expecting(others.iter().map(|_| pod()));
    let observer = observer(&own, &others, &server);
    let vm = VmState::Present(vm(&own));
    assert!(observer.claimant(&own, &vm).await.unwrap().is_some(), "not all of their Pods are read");
    let requeued: HashSet<_> = observer.requeues.drain().into_iter().collect();
    assert_eq!(requeued, others.iter().map(key).collect(), "no timer reconciles them");
    let parking = Parking::new(1, Requeues::default(), Metrics::new(&mut Registry::default()));
    for other in &others {
        let (key, provider) = (Arc::new(key(other)), Err(Error::new(ErrorClass::Transient, "not asked")));
        assert!(observer.observe(other, &provider, &parking.turn("libvirt", &key)).await.is_ok());
    }
    assert_eq!(observer.claimant(&own, &vm).await.unwrap(), None, "their Pods have ended");
}

const NEWER: &str = "1ee3f1d6-7b4e-45b8-8c6f-308b7d300b22";

/// A newer PeerPod of the same Pod.
fn newer(own: &PeerPod) -> PeerPod {
    let mut newer = peerpod("libvirt", NEWER, "shop", Some(("web-0", "own")));
    newer.metadata.creation_timestamp = Some(Time(at(5)));
    assert_eq!(owner(&newer), owner(own));
    newer
}

/// The facts about a PeerPod of a Pod that runs, beside these. The cloud has each VM that it is asked for.
async fn observed(own: &PeerPod, others: &[PeerPod]) -> Facts {
    let pod = json!({
        "metadata": { "name": "web-0", "namespace": "shop", "uid": "own" }, "status": { "phase": "Running" },
    });
    let call = Call::get("/api/v1/namespaces/shop/pods/web-0").answer(Answer::object(&pod));
    let server = ApiServer::expecting([call]);
    let parking = Parking::new(1, Requeues::default(), Metrics::new(&mut Registry::default()));
    let (key, provider) = (Arc::new(key(own)), Ok(answers(Ok(Accepted::default()), Ok(vm(own)))));
    let facts = observer(own, others, &server).observe(own, &provider, &parking.turn("libvirt", &key)).await;
    facts.unwrap_or_else(|_| panic!("there are no facts"))
}

#[tokio::test]
async fn a_claim_and_a_running_pod_keep_the_vm_of_a_peerpod_without_the_finalizer() {
    let mut own = peerpod("libvirt", VM, "shop", Some(("web-0", "own")));
    own.metadata.finalizers = None;
    let claims = peerpod("libvirt", VM, "bank", Some(("web-0", "x")));
    let facts = observed(&own, &[newer(&own), claims]).await;
    assert_eq!(facts.owner, Owner::Running);
    assert!(facts.claimed_by.is_some(), "{facts:?}");
}

#[tokio::test]
async fn a_vm_that_another_pod_names_too_replaces_none() {
    let own = peerpod("libvirt", VM, "shop", Some(("web-0", "own")));
    let of_another = peerpod("libvirt", NEWER, "bank", Some(("web-0", "x")));
    for (others, is_asked) in [(vec![newer(&own)], true), (vec![newer(&own), of_another], false)] {
        let facts = observed(&own, &others).await;
        assert_eq!(facts.siblings[0].vm != VmState::NotAsked, is_asked, "{facts:?}");
    }
}

#[tokio::test]
async fn the_time_for_a_clean_up_begins_anew_when_the_pod_has_ended() {
    let mut own = peerpod("byom", ADDRESS, "shop", Some(("web-0", "own")));
    own.metadata.deletion_timestamp = own.metadata.creation_timestamp.clone();
    let settings = [("CLOUD_PROVIDER".to_owned(), "byom".into())].into();
    let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
    let state = State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() };
    let server = ApiServer::expecting([]);
    let clouds = clouds_under(watch::channel(state).1, "byom", || Box::new(Memory::default()));
    let observer = Observer { clouds, ..observer(&own, &[], &server) };
    let left = |pod| observer.clean_up(&own, owner(&own).unwrap(), pod);
    let all = left(Owner::Running);
    assert_eq!(all.as_secs(), 330);
    while left(Owner::Running) == all {}
    assert_eq!(left(Owner::Gone), all, "cloud-api-adaptor begins now");
    while left(Owner::Gone) == all {}
}

/// The Pod `web-0` of another namespace, as it starts on a node, with this merged into it.
fn starting(patch: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web-0", "namespace": "bank", "uid": "other", "creationTimestamp": at(-5) },
        "spec": { "nodeName": "a", "runtimeClassName": "kata-remote", "containers": [] },
        "status": { "phase": "Pending" },
    });
    json_patch::merge(&mut pod, patch);
    pod
}

fn ready(status: &str) -> Value {
    let condition =
        json!({ "type": "PodReadyToStartContainers", "status": status, "lastTransitionTime": at(-1) });
    json!({ "status": { "conditions": [condition] } })
}

fn pods(answer: Answer) -> Call {
    Call::get("/api/v1/pods?&fieldSelector=metadata.name%3Dweb-0&limit=20").answer(answer)
}

fn list(pods: &[Value]) -> Answer {
    Answer::object(&json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods }))
}

#[tokio::test]
async fn a_reused_vm_is_kept_for_an_unrecorded_pod_of_the_same_name() {
    let own = peerpod("byom", ADDRESS, "shop", Some(("web-0", "own")));
    let another = peerpod("byom", "10.0.0.2", "bank", Some(("web-0", "other")));
    let needed = async |others: &[PeerPod], pod: Value| {
        claimant(&own, vm(&own), others, [pods(list(&[pod]))]).await.unwrap().is_some()
    };
    for (why, patch, expected) in [
        ("it may have got the machine just now", json!({}), true),
        ("by a clock that is behind", json!({ "metadata": { "creationTimestamp": at(120) } }), true),
        ("it was made later", json!({ "metadata": { "creationTimestamp": at(121) } }), false),
        ("it runs", json!({ "status": { "phase": "Running" } }), true),
        ("it has ended", json!({ "status": { "phase": "Succeeded" } }), false),
        (
            "it ends",
            json!({ "metadata": { "deletionTimestamp": at(1), "deletionGracePeriodSeconds": 1 } }),
            true,
        ),
        ("it is no peer pod", json!({ "spec": { "runtimeClassName": null } }), false),
        ("it has no node", json!({ "spec": { "nodeName": null } }), false),
        ("it is the PeerPod's", json!({ "metadata": { "namespace": "shop", "uid": "own" } }), false),
        ("it has that one's name", json!({ "metadata": { "namespace": "shop" } }), true),
        ("its uid was copied", json!({ "metadata": { "uid": "own" } }), true),
        ("its record is missing", ready("True"), true),
    ] {
        assert_eq!(needed(&[], starting(&patch)).await, expected, "{why}");
    }
    let others = std::slice::from_ref(&another);
    for (patch, expected) in [(json!({}), true), (ready("False"), true), (ready("True"), false)] {
        assert_eq!(needed(others, starting(&patch)).await, expected, "another machine is recorded: {patch}");
    }
    let message =
        claimant(&own, vm(&own), &[], [pods(list(&[starting(&json!({}))]))]).await.unwrap().unwrap();
    assert!(message.for_status().starts_with("a Pod of another namespace has the same name"), "{message:?}");
    assert!(message.for_log().starts_with("the Pod bank/web-0 has the same name"), "{message:?}");
}

#[tokio::test]
async fn if_the_pods_of_the_same_name_are_not_known_nothing_is_decided() {
    let own = peerpod("byom", ADDRESS, "shop", Some(("web-0", "own")));
    for answer in not_of("web-0").into_iter().chain([Answer::dropped(), Answer::error(403, "Forbidden", "")])
    {
        assert!(claimant(&own, vm(&own), &[], [pods(answer.clone())]).await.is_err(), "{answer:?}");
    }
    // A record needs no look at Pods.
    let recorded = peerpod("byom", ADDRESS, "bank", Some(("web-0", "other")));
    assert!(claimant(&own, vm(&own), &[recorded], []).await.unwrap().is_some());
}

#[test]
fn an_object_of_another_namespace_is_named_in_the_log_alone() {
    let here = peerpod("libvirt", VM, "shop", Some(("web", "own")));
    let named = |namespace, name| named_to(&here, "PeerPod", Some(namespace), name);
    assert_eq!(named("shop", "db"), Message::public("the PeerPod shop/db"));
    let message = named("bank", "payroll");
    assert_eq!(message, Message::new("a PeerPod of another namespace", "the PeerPod bank/payroll"));
}
