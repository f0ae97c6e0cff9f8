use futures::StreamExt;
use kube::runtime::{reflector, watcher::Event};
use operator_kit::testing::{Answer, ApiServer, Call};
use serde_json::{Value, json};

use super::{
    super::{
        options::Options,
        resources::{CLASS_ANNOTATION, policy},
    },
    *,
};

const NAMESPACE: &str = "ns";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// A configuration with the finalizer, whose admission is a policy. `second`: when it was created.
fn config(name: &str, second: u32, deleted: bool) -> PeerPodConfig {
    let deletion = deleted.then_some("2026-01-01T00:01:00Z");
    let config = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": name, "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"), "deletionTimestamp": deletion,
            "finalizers": [super::super::FINALIZER], "resourceVersion": "1",
        },
        "spec": { "limit": 1, "admission": { "mode": "Policy", "runtimeClassName": "kata" } },
    }));
    config.unwrap()
}

/// A reconciler that knows these configurations, no node and no DaemonSet: the first two calls list these.
async fn reconciler(server: &ApiServer, configs: &[&PeerPodConfig]) -> Reconciler {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for config in configs {
        writer.apply_watcher_event(&Event::InitApply((*config).clone()));
    }
    writer.apply_watcher_event(&Event::InitDone);
    let client = server.client();
    let (rooms, mut changes) = Rooms::watch(&client, &Arc::new(Options::new(NAMESPACE)));
    changes.nodes.next().await.unwrap();
    let listed = rooms.adaptor.wait_until_listed();
    tokio::select! {
        biased;
        is_listed = listed => assert!(is_listed),
        _ = changes.daemon_sets.collect::<Vec<_>>() => {}
    }
    Reconciler::new(client, Arc::new(rooms), Configs::new(store, NAMESPACE.to_owned()))
}

/// Nodes and DaemonSets are listed before the first reconcile.
fn listed() -> Vec<Call> {
    vec![list("/api/v1/nodes", &json!([])), list("/apis/apps/v1/daemonsets", &json!([]))]
}

fn list(path: &str, items: &Value) -> Call {
    let list =
        json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
    Call::get(path).answer(Answer::json(200, &list))
}

/// The API server supports admission policies.
fn policies_are_supported() -> Call {
    let [policies, bindings] = policy::resources().map(|resource| {
        json!({ "name": resource.plural, "singularName": "", "namespaced": false, "kind": resource.kind, "verbs": [] })
    });
    Call::get(ADMISSION).answer(Answer::json(
        200,
        &json!({
            "kind": "APIResourceList", "groupVersion": policy::GROUP_VERSION, "resources": [policies, bindings],
        }),
    ))
}

/// The kinds of an admission, in the order of their removal.
fn kinds() -> [String; 6] {
    [
        format!("{ADMISSION}/mutatingadmissionpolicybindings"),
        format!("{ADMISSION}/mutatingadmissionpolicies"),
        format!("{ADMISSION}/mutatingwebhookconfigurations"),
        format!("/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"),
        format!("/api/v1/namespaces/{NAMESPACE}/services"),
        format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments"),
    ]
}

/// The path of a configuration.
fn path(config: &str) -> String {
    format!("/apis/confidentialcontainers.org/v1alpha1/namespaces/{NAMESPACE}/peerpodconfigs/{config}")
}

/// Nothing of a configuration that is being deleted is left.
fn nothing_left() -> Vec<Call> {
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/cloud-api-adaptor");
    let mut calls = listed();
    calls.push(policies_are_supported());
    calls.extend(kinds().iter().map(|kind| list(kind, &json!([]))));
    calls.extend([
        list(&format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"), &json!([])),
        Call::get(account).answer(Answer::not_found("serviceaccounts", "cloud-api-adaptor")),
    ]);
    calls
}

/// The API server refuses to change the finalizers of the configuration.
fn finalizers_are_refused() -> Call {
    Call::patch(path("config")).answer(Answer::error(403, "Forbidden", "denied by a policy"))
}

#[tokio::test]
async fn one_that_is_deleted_is_released_when_nothing_of_it_is_left() {
    let config = config("config", 0, true);
    let mut calls = nothing_left();
    calls.push(Call::patch(path("config")).answer(Answer::object(&config)));
    let server = ApiServer::expecting(calls);
    let action = reconciler(&server, &[&config]).await.reconcile(&config).await.unwrap();
    assert_eq!(action, Action::await_change());
}

#[tokio::test]
async fn a_finalizer_that_cannot_be_removed_is_reported() {
    let config = config("config", 0, true);
    let mut calls = nothing_left();
    calls.extend([finalizers_are_refused(), status("config")]);
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[&config]).await.reconcile(&config).await.unwrap_err();
    assert!(error.to_string().contains("denied by a policy"), "{error}");
}

#[tokio::test]
async fn a_finalizer_that_cannot_be_set_is_reported_and_nothing_is_created() {
    let mut config = config("config", 0, false);
    config.metadata.finalizers = None;
    let mut calls = listed();
    calls.extend([finalizers_are_refused(), status("config"), event("AdaptorFailed")]);
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[&config]).await.reconcile(&config).await.unwrap_err();
    assert!(error.to_string().contains("denied by a policy"), "{error}");
}

/// There is neither the ConfigMap nor the Secret with the settings.
fn no_settings() -> [Call; 2] {
    [("configmaps", "peer-pods-cm"), ("secrets", "peer-pods-secret")].map(|(kind, name)| {
        Call::get(format!("/api/v1/namespaces/{NAMESPACE}/{kind}/{name}"))
            .answer(Answer::not_found(kind, name))
    })
}

/// The metadata of an object of this configuration's admission.
fn metadata(config: &str) -> Value {
    json!({
        "name": format!("peer-pods-{config}"), "uid": "1", "resourceVersion": "1",
        "annotations": { (CLASS_ANNOTATION): "kata" }, "managedFields": [{ "manager": FIELD_MANAGER }],
    })
}

#[tokio::test]
async fn the_successors_admission_is_written_before_the_deleted_one_is_removed() {
    let (older, younger) = (config("older", 0, true), config("younger", 1, false));
    let [bindings, policies, webhooks, ..] = kinds();
    let there = json!([{ "metadata": metadata("older") }]);
    let not_found = |kind: &str| Answer::not_found(kind, "peer-pods-younger");
    let applied = Answer::json(200, &json!({ "metadata": metadata("younger") }));
    let mut calls = listed();
    calls.extend([
        policies_are_supported(),
        // Does the configuration that is deleted have objects?
        list(&webhooks, &json!([])),
        list(&policies, &there),
    ]);
    calls.extend(no_settings());
    calls.extend([
        // What is wanted comes first.
        list(&policies, &json!([])),
        list(&bindings, &json!([])),
        Call::get(format!("{policies}/peer-pods-younger")).answer(not_found("mutatingadmissionpolicies")),
        Call::get(format!("{bindings}/peer-pods-younger"))
            .answer(not_found("mutatingadmissionpolicybindings")),
        Call::patch(format!("{policies}/peer-pods-younger")).answer(applied.clone()),
        Call::patch(format!("{bindings}/peer-pods-younger")).answer(applied),
        // What is no longer wanted is removed: a policy without its binding has no effect.
        list(&bindings, &there),
        Call::delete(format!("{bindings}/peer-pods-older")),
        // The rest is tried again.
        Call::get(policies).answer(Answer::error(500, "InternalError", "down")),
    ]);
    calls.push(status("older"));
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[&older, &younger]).await.reconcile(&older).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
}

/// The calls of a look at `older`, which is deleted and has a webhook, while `younger` takes over with a policy. `present`: the objects of
/// the policy that another program created, as answers to a GET.
fn takeover(present: Option<&Value>) -> Vec<Call> {
    let [bindings, policies, webhooks, ..] = kinds();
    let applied = Answer::json(200, &json!({ "metadata": metadata("younger") }));
    let mut calls = listed();
    calls.extend([policies_are_supported(), list(&webhooks, &json!([{ "metadata": metadata("older") }]))]);
    calls.extend(no_settings());
    calls.extend([list(&policies, &json!([])), list(&bindings, &json!([]))]);
    for kind in [&policies, &bindings] {
        let missing = || Answer::not_found(kind.rsplit('/').next().unwrap_or_default(), "peer-pods-younger");
        let answer = present.map_or_else(missing, |present| Answer::json(200, present));
        calls.push(Call::get(format!("{kind}/peer-pods-younger")).answer(answer));
    }
    if present.is_none() {
        let patch = |kind| Call::patch(format!("{kind}/peer-pods-younger")).answer(applied.clone());
        calls.extend([&policies, &bindings].map(patch));
        // What the younger one requests of the nodes.
        calls.extend(no_settings());
    }
    calls
}

#[tokio::test]
async fn a_webhook_stays_until_api_servers_apply_the_policy_of_its_successor() {
    let (older, younger) = (config("older", 0, true), config("younger", 1, false));
    let server = ApiServer::expecting(takeover(None).into_iter().chain([status("older")]));
    reconciler(&server, &[&older, &younger]).await.reconcile(&older).await.unwrap();
}

#[tokio::test]
async fn a_webhook_does_not_wait_for_a_policy_that_cannot_be_created() {
    let (older, younger) = (config("older", 0, true), config("younger", 1, false));
    let anothers = json!({ "metadata": { "name": "peer-pods-younger", "uid": "2", "resourceVersion": "1" } });
    let [bindings, ..] = kinds();
    let mut calls = takeover(Some(&anothers));
    // Its removal begins.
    calls.extend([Call::get(bindings).answer(Answer::error(500, "InternalError", "down")), status("older")]);
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[&older, &younger]).await.reconcile(&older).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
}

/// The status of a configuration. It is gone meanwhile, which is no error.
fn status(config: &str) -> Call {
    Call::patch(format!("{}/status", path(config))).answer(Answer::not_found("peerpodconfigs", config))
}

/// An event of the configuration.
fn event(reason: &str) -> Call {
    Call::post(format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"))
        .body_with(json!({ "reason": reason, "regarding": { "name": "config" } }))
}

#[tokio::test]
async fn a_room_that_fails_is_reported_and_does_not_stop_the_others() {
    let config = config("config", 0, false);
    let mut calls = listed();
    // What it requests of the nodes depends on whether cloud-api-adaptor is deployed.
    calls.extend(no_settings());
    calls.extend(no_settings());
    calls.push(no_daemon_set());
    calls.push(Call::get(ADMISSION).answer(Answer::error(500, "InternalError", "down")));
    calls.push(status("config"));
    calls.extend(["SettingsMissing", "AdmissionFailed", "NoneSelected"].map(event));
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[&config]).await.reconcile(&config).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
}

/// The objects with cloud-api-adaptor's settings.
fn settings() -> [Call; 2] {
    let objects = [
        ("configmaps", "peer-pods-cm", json!({ "data": { "CLOUD_PROVIDER": "docker" } })),
        ("secrets", "peer-pods-secret", json!({})),
    ];
    objects.map(|(kind, name, object)| {
        Call::get(format!("/api/v1/namespaces/{NAMESPACE}/{kind}/{name}")).answer(Answer::json(200, &object))
    })
}

/// The path of the DaemonSets, and that of the configuration's.
fn daemon_sets() -> [String; 2] {
    let all = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets");
    [all.clone(), format!("{all}/config-cloud-api-adaptor")]
}

/// There is no cloud-api-adaptor yet.
fn no_daemon_set() -> Call {
    let [_, own] = daemon_sets();
    Call::get(own).answer(Answer::not_found("daemonsets", "config-cloud-api-adaptor"))
}

/// What a reconcile does before and after its writes of cloud-api-adaptor, which fail, as its admission does.
async fn deploy(config: &PeerPodConfig, current: Call, writes: impl IntoIterator<Item = Call>) {
    let mut calls = listed();
    calls.extend(settings());
    calls.extend(settings());
    calls.push(current);
    calls.extend(writes);
    calls.push(Call::get(ADMISSION).answer(Answer::error(500, "InternalError", "down")));
    calls.push(status("config"));
    calls.extend(["AdaptorFailed", "AdmissionFailed", "NoneSelected"].map(event));
    let server = ApiServer::expecting(calls);
    let error = reconciler(&server, &[config]).await.reconcile(config).await.unwrap_err();
    assert!(error.to_string().contains("down"), "{error}");
}

#[tokio::test]
async fn the_service_account_is_annotated_before_a_pod_of_the_daemon_set_can_be_created() {
    let mut config = config("config", 0, false);
    config.spec.adaptor.service_account_annotations = [("role".to_owned(), "mine".to_owned())].into();
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/cloud-api-adaptor");
    let named = json!({ "metadata": { "name": "cloud-api-adaptor" } });
    let [all, own] = daemon_sets();
    let writes = [
        Call::get(&account).answer(Answer::json(200, &named)),
        Call::patch(&account)
            .body_with(json!({ "metadata": { "annotations": { "role": "mine" } } }))
            .answer(Answer::json(200, &named)),
        list(&all, &json!([])),
        no_daemon_set(),
        Call::patch(own).answer(Answer::error(500, "InternalError", "down")),
    ];
    deploy(&config, no_daemon_set(), writes).await;
}

#[tokio::test]
async fn a_watch_that_lags_does_not_bring_an_older_template_back() {
    const BUILT_FROM: &str = "peerpods.confidentialcontainers.org/built-from";
    let config = config("config", 0, false);
    let record = r#"{"cloudName":"docker","probePort":9000,"overruled":false,"hash":"running","configMap":"peer-pods-cm","secret":"peer-pods-secret"}"#;
    let built_from = json!({ BUILT_FROM: record });
    let container = json!({ "name": "adaptor", "image": "a/cloud-api-adaptor:1" });
    let current = json!({
        "metadata": { "name": "config-cloud-api-adaptor", "annotations": built_from },
        "spec": { "template": { "spec": { "containers": [container] } } },
    });
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/cloud-api-adaptor");
    let [all, own] = daemon_sets();
    // The watch has shown no DaemonSet yet. A template of the present settings, whose PROBE_PORT is 8000, would replace its Pods.
    let writes = [
        Call::get(account).answer(Answer::not_found("serviceaccounts", "cloud-api-adaptor")),
        list(&all, &json!([current])),
        Call::patch(&own)
            .body_with(json!({ "metadata": { "annotations": built_from } }))
            .answer(Answer::error(500, "InternalError", "down")),
    ];
    deploy(&config, Call::get(own.clone()).answer(Answer::json(200, &current)), writes).await;
}
