use std::slice;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operator_kit::testing::{Answer, ApiServer, Call};
use serde_json::{Value, json};

use super::{
    super::resources::{CLASS_ANNOTATION, policy, webhook::WEBHOOK},
    propagation::PROPAGATION_TIME,
    *,
};
use crate::api::v1alpha1::FIELD_MANAGER;

const API: &str = "/apis/admissionregistration.k8s.io/v1";

fn config(mode: &str) -> Arc<PeerPodConfig> {
    let config = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "config", "namespace": "ns", "uid": "config", "generation": 1 },
        "spec": { "admission": { "mode": mode, "runtimeClassName": "kata" } },
    }));
    Arc::new(config.unwrap())
}

/// The admission, while the Secret of all webhooks has new authorities.
fn admission(server: &ApiServer) -> Admission {
    let (client, drifts) = (server.client(), Arc::<Drifts>::default());
    let objects = Objects::new(client.clone(), drifts.clone());
    let (admission, _changes) = Admission::watch(&client, objects, drifts, Arc::new(Options::new("ns")));
    admission.applier.webhook_resources.watched().learn("config", b"new");
    admission
}

fn list(path: impl Into<String>, items: &Value) -> Call {
    let list =
        json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
    Call::get(path).answer(Answer::json(200, &list))
}

/// The API server has resources of these kinds, each with its plural.
fn has(kinds: &[(&str, &str)]) -> Call {
    let resources = kinds.iter().map(|(kind, plural)| {
        json!({ "name": plural, "singularName": "", "namespaced": false, "kind": kind, "verbs": [] })
    });
    let resources: Vec<_> = resources.collect();
    let resources =
        json!({ "kind": "APIResourceList", "groupVersion": policy::GROUP_VERSION, "resources": resources });
    Call::get(API).answer(Answer::json(200, &resources))
}

/// The API server supports no admission policies.
fn no_policies() -> Call {
    has(&[])
}

/// There is no registration that could trust anything.
fn no_registration() -> Call {
    Call::get(registration()).answer(Answer::not_found("mutatingwebhookconfigurations", "peer-pods-config"))
}

fn registration() -> String {
    format!("{API}/mutatingwebhookconfigurations/peer-pods-config")
}

/// A registration gets the new authorities, and nothing else.
fn trusts() -> [Call; 2] {
    let client = json!({ "caBundle": "b2xk", "service": { "name": "config-webhook", "namespace": "ns" } });
    let webhook = json!({
        "name": WEBHOOK, "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client,
    });
    let metadata =
        json!({ "name": "peer-pods-config", "uid": "1", "managedFields": [{ "manager": FIELD_MANAGER }] });
    let trusting = json!({ "name": WEBHOOK, "clientConfig": { "caBundle": "bmV3" } });
    [
        Call::get(registration())
            .answer(Answer::json(200, &json!({ "metadata": metadata, "webhooks": [webhook] }))),
        Call::patch(registration()).body(json!({ "metadata": { "uid": "1" }, "webhooks": [trusting] })),
    ]
}

/// The server of a webhook is missing and is written. `answer`: to the write of an object of this kind.
fn writes_server(answer: impl Fn(&str) -> Answer) -> Vec<Call> {
    let kinds = ["apis/apps/v1 deployments", "api/v1 services", "apis/policy/v1 poddisruptionbudgets"];
    let kinds = kinds.map(|kind| kind.split_once(' ').unwrap());
    let path = |api: &str, kind: &str| format!("/{api}/namespaces/ns/{kind}");
    let object = |api: &str, kind: &str| format!("{}/config-webhook", path(api, kind));
    let missing = |kind: &str| Answer::not_found(kind, "config-webhook");
    let mut calls = Vec::new();
    calls.extend(kinds.map(|(api, kind)| list(path(api, kind), &json!([]))));
    calls.extend(kinds.map(|(api, kind)| Call::get(object(api, kind)).answer(missing(kind))));
    calls.extend(kinds.map(|(api, kind)| Call::patch(object(api, kind)).answer(answer(kind))));
    calls
}

/// Sets up a webhook whose Deployment the API server refuses. `then`: the calls after those about the server.
async fn with_refused_deployment(then: impl IntoIterator<Item = Call>) {
    let mut calls = vec![no_policies()];
    calls.extend(writes_server(|kind| match kind {
        "deployments" => Answer::error(403, "Forbidden", "denied by a policy"),
        _ => Answer::as_sent(),
    }));
    calls.extend(then);
    let server = ApiServer::expecting(calls);
    let config = config("Webhook");
    let tls = Some(Ok(TlsOptions::default()));
    let error = admission(&server).reconcile(&config, slice::from_ref(&config), tls).await.unwrap_err();
    assert!(error.to_string().contains("denied by a policy"), "{error}");
}

#[tokio::test]
async fn a_registration_trusts_new_authorities_although_its_server_cannot_be_written() {
    with_refused_deployment(trusts()).await;
}

#[tokio::test]
async fn no_registration_comes_into_force_before_its_server_can_be_written() {
    with_refused_deployment([no_registration()]).await;
}

#[tokio::test]
async fn a_registration_that_cannot_be_removed_trusts_new_authorities() {
    let down = Call::get(API).answer(Answer::error(500, "InternalError", "down"));
    let server = ApiServer::expecting([down].into_iter().chain(trusts()));
    let config = config("Webhook");
    let error = admission(&server).remove(&config, slice::from_ref(&config)).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
}

#[tokio::test]
async fn a_former_registration_trusts_new_authorities_until_another_admission_is_ready() {
    let former = json!([{ "metadata": {
        "name": "peer-pods-config", "annotations": { (CLASS_ANNOTATION): "former" },
    } }]);
    let class = Call::get("/apis/node.k8s.io/v1/runtimeclasses/kata");
    let calls = [
        no_policies(),
        list(format!("{API}/mutatingwebhookconfigurations"), &former),
        class.answer(Answer::not_found("runtimeclasses", "kata")),
    ];
    let server = ApiServer::expecting(calls.into_iter().chain(trusts()));
    let config = config("Policy");
    admission(&server).reconcile(&config, slice::from_ref(&config), None).await.unwrap();
}

#[tokio::test]
async fn a_policy_that_was_just_written_is_in_force_when_api_servers_have_had_time_for_it() {
    let [policies, bindings] = policy::resources();
    let has_both = has(&[(&*policies.kind, &*policies.plural), (&*bindings.kind, &*bindings.plural)]);
    let plurals = [policies.plural, bindings.plural];
    let object = |plural: &str| format!("{API}/{plural}/peer-pods-config");
    let missing = |plural: &str| Answer::not_found(plural, "peer-pods-config");
    let mut calls = vec![has_both];
    calls.extend(plurals.iter().map(|plural| list(format!("{API}/{plural}"), &json!([]))));
    calls.extend(plurals.iter().map(|plural| Call::get(object(plural)).answer(missing(plural))));
    calls.extend(plurals.iter().map(|plural| Call::patch(object(plural)).answer(Answer::as_sent())));
    let class = json!({ "metadata": { "name": "kata" } });
    let class = Call::get("/apis/node.k8s.io/v1/runtimeclasses/kata").answer(Answer::json(200, &class));
    calls.extend([class, no_registration()]);
    let server = ApiServer::expecting(calls);
    let config = config("Policy");
    let Findings { all, again } =
        admission(&server).reconcile(&config, slice::from_ref(&config), None).await.unwrap();
    let reasons: Vec<_> = all.iter().map(|finding| finding.reason).collect();
    assert_eq!((reasons, again), (vec![Reason::PolicyStarting], Some(PROPAGATION_TIME)));
}

#[tokio::test]
async fn a_registration_waits_for_its_server_only_while_a_policy_admits_pods_of_its_class() {
    let [policies, bindings] = policy::resources();
    let webhooks = format!("{API}/mutatingwebhookconfigurations");
    for (admitted, waits) in [("kata", true), ("former", false)] {
        let metadata = json!({ "name": "peer-pods-config", "annotations": { (CLASS_ANNOTATION): admitted } });
        let there = json!([{ "metadata": metadata }]);
        let mut calls =
            vec![has(&[(&*policies.kind, &*policies.plural), (&*bindings.kind, &*bindings.plural)])];
        calls.extend(writes_server(|_| Answer::as_sent()));
        calls.extend([
            list(&webhooks, &json!([])),
            list(format!("{API}/{}", policies.plural), &there),
            list(format!("{API}/{}", bindings.plural), &there),
        ]);
        if !waits {
            let registered = Call::patch(registration()).answer(Answer::as_sent());
            calls.extend([list(&webhooks, &json!([])), no_registration(), registered]);
        }
        let class = json!({ "metadata": { "name": "kata" } });
        let class = Call::get("/apis/node.k8s.io/v1/runtimeclasses/kata").answer(Answer::json(200, &class));
        calls.push(class);
        let server = ApiServer::expecting(calls);
        let config = config("Webhook");
        let tls = Some(Ok(TlsOptions::default()));
        let found = admission(&server).reconcile(&config, slice::from_ref(&config), tls).await.unwrap();
        let reasons: Vec<_> = found.all.iter().map(|finding| finding.reason).collect();
        assert_eq!(reasons, [Reason::WebhookStarting]);
    }
}

#[tokio::test]
async fn a_registration_waits_for_its_server_while_a_younger_configuration_admits_pods_of_its_class() {
    let [policies, bindings] = policy::resources();
    let webhooks = format!("{API}/mutatingwebhookconfigurations");
    let younger = PeerPodConfig {
        metadata: ObjectMeta {
            name: Some("younger".to_owned()),
            uid: Some("younger".to_owned()),
            ..config("Policy").metadata.clone()
        },
        ..(*config("Policy")).clone()
    };
    let metadata = json!({ "name": "peer-pods-younger", "annotations": { (CLASS_ANNOTATION): "kata" } });
    let there = json!([{ "metadata": metadata }]);
    let of_none = |path: &str| list(path, &json!([]));
    let [policies_path, bindings_path] = [&policies.plural, &bindings.plural].map(|it| format!("{API}/{it}"));
    let mut calls = vec![has(&[(&*policies.kind, &*policies.plural), (&*bindings.kind, &*bindings.plural)])];
    // What is there of its own, to see whether another configuration is to take over.
    calls.extend([&webhooks, &policies_path, &bindings_path].map(|path| of_none(path)));
    calls.extend(writes_server(|_| Answer::as_sent()));
    calls.extend([&webhooks, &policies_path, &bindings_path].map(|path| of_none(path)));
    calls.extend([of_none(&webhooks), list(policies_path, &there), list(bindings_path, &there)]);
    let class = json!({ "metadata": { "name": "kata" } });
    calls.push(Call::get("/apis/node.k8s.io/v1/runtimeclasses/kata").answer(Answer::json(200, &class)));
    let server = ApiServer::expecting(calls);
    let config = config("Webhook");
    let all = [config.clone(), Arc::new(younger)];
    let tls = Some(Ok(TlsOptions::default()));
    let found = admission(&server).reconcile(&config, &all, tls).await.unwrap();
    let reasons: Vec<_> = found.all.iter().map(|finding| finding.reason).collect();
    assert_eq!(reasons, [Reason::WebhookStarting]);
}

#[tokio::test]
async fn a_registration_waits_for_a_certificate_that_api_servers_accept_while_a_policy_admits_its_pods() {
    let [policies, bindings] = policy::resources();
    let metadata = json!({ "name": "peer-pods-config", "annotations": { (CLASS_ANNOTATION): "kata" } });
    let there = json!([{ "metadata": metadata }]);
    let running = json!({ "metadata": { "name": "config-webhook" }, "status": { "availableReplicas": 2 } });
    let mut calls = vec![has(&[(&*policies.kind, &*policies.plural), (&*bindings.kind, &*bindings.plural)])];
    calls.extend(writes_server(|kind| match kind {
        "deployments" => Answer::json(200, &running),
        _ => Answer::as_sent(),
    }));
    let class = json!({ "metadata": { "name": "kata" } });
    calls.extend([
        list(format!("{API}/mutatingwebhookconfigurations"), &json!([])),
        list(format!("{API}/{}", policies.plural), &there),
        list(format!("{API}/{}", bindings.plural), &there),
        Call::get("/apis/node.k8s.io/v1/runtimeclasses/kata").answer(Answer::json(200, &class)),
    ]);
    let server = ApiServer::expecting(calls);
    let (admission, config) = (admission(&server), config("Webhook"));
    admission.applier.webhook_resources.watched().learn_unmanaged(b"new", b"no certificate");
    let tls = Some(Ok(TlsOptions::default()));
    let found = admission.reconcile(&config, slice::from_ref(&config), tls).await.unwrap();
    let reasons: Vec<_> = found.all.iter().map(|finding| finding.reason).collect();
    assert_eq!(reasons, [Reason::CertificateUnfit]);
}
