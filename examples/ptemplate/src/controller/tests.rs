use kube::runtime::{reflector::store::Writer, watcher::Event};
use operator_kit::{
    Leadership,
    conditions::{MESSAGE_LIMIT, NewCondition},
    http::Readiness,
    metrics::Registry,
    testing::{Answer, ApiServer, Call, read_and_projected},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::PtemplateStatus;

const MODULE: &str = "/apis/kmm.sigs.x-k8s.io/v1beta1/namespaces/shop/modules/a";
const DAEMON_SET: &str = "/apis/apps/v1/namespaces/shop/daemonsets/a-consumer";
const STATUS: &str = "/apis/pt.example.com/v1alpha1/namespaces/shop/ptemplates/a/status";

fn ptemplate(spec: &Value) -> Ptemplate {
    let object = json!({
        "apiVersion": "pt.example.com/v1alpha1", "kind": "Ptemplate", "spec": spec,
        "metadata": { "name": "a", "namespace": "shop", "uid": "u", "generation": 3 },
    });
    serde_json::from_value(object).unwrap()
}

/// A Pod of the DaemonSet with this name.
fn pod(name: &str, owner: &str) -> Metadata<Pod> {
    let owner = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "v" });
    let metadata = json!({ "name": name, "namespace": "shop", "ownerReferences": [owner] });
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

/// The result of a reconcile.
async fn reconciled(
    ptemplate: &Ptemplate,
    calls: impl IntoIterator<Item = Call>,
) -> Result<Action, ApiError> {
    let server = ApiServer::expecting(calls);
    let client = server.client();
    let (leadership, shutdown) = (Leadership::unlimited(), CancellationToken::new());
    let host =
        Host { client: client.clone(), crds: &[], leadership, readiness: Readiness::default(), shutdown };
    let mut pods = Writer::default();
    for pod in [pod("a-consumer-y", "a-consumer"), pod("a-consumer-x", "a-consumer"), pod("b", "b-consumer")]
    {
        pods.apply_watcher_event(&Event::Apply(pod));
    }
    let context = Context {
        publisher: Publisher::new(&client, &PTEMPLATE, NAME, "Applying"),
        wanted: crd::definition::<Ptemplate>().unwrap(),
        definition: Installed::follow::<Ptemplate>(&host).0,
        kmm: Installed::follow::<Module>(&host).0,
        pods: pods.as_reader(),
        metrics: Metrics::register(&mut Registry::default()),
        client,
    };
    context.reconcile(ptemplate).await
}

/// The schema lets no spec be larger than what is read of it: the required selector, which comes last, would be missing.
#[test]
fn the_largest_spec_is_read_as_a_whole() {
    let definition = crd::definition::<Ptemplate>().unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"]["properties"];
    assert_eq!(spec["maxdev"]["maximum"], f64::from(i32::MAX), "larger ones cannot be read");
    // An API server may write one character as six.
    let text =
        |schema: &Value| "\u{1}".repeat(usize::try_from(schema["maxLength"].as_u64().unwrap()).unwrap());
    let secret = |name: &str| json!({ "name": text(&spec[name]["properties"]["name"]) });
    // A key has at most 253 characters before the slash, and 63 after it.
    let rule = spec["selector"]["x-kubernetes-validations"][0]["rule"].as_str().unwrap();
    assert!(rule.contains("key.indexOf('/') <= 253 && ") && rule.contains("{0,61})?[A-Za-z0-9]$"), "{rule}");
    let labels = spec["selector"]["maxProperties"].as_u64().unwrap();
    let value = text(&spec["selector"]["additionalProperties"]);
    let label = |index: u64| (format!("{index:0>317}"), json!(value));
    let selector: serde_json::Map<_, _> = (0..labels).map(label).collect();
    let largest = json!({
        "defaultmsg": text(&spec["defaultmsg"]), "deviceplugin": text(&spec["deviceplugin"]),
        "consumer": text(&spec["consumer"]), "consumerimage": text(&spec["consumerimage"]),
        "imagePullSecret": secret("imagePullSecret"), "imageRepoSecret": secret("imageRepoSecret"),
        "selector": selector,
    });
    let [whole, projected] = read_and_projected::<Ptemplate>(&PTEMPLATE, &json!(ptemplate(&largest)));
    assert_eq!(json!(projected), json!(whole));
}

/// A status that is read in part differs from the one to write, and would be written again and again.
#[test]
fn a_status_of_the_largest_cluster_is_read_as_a_whole() {
    let mut object = ptemplate(&json!({ "selector": {} }));
    let consumers = (0..5000).map(|node| format!("{node:0>63}")).collect();
    // An API server may write one character as six.
    let message = "\u{1}".repeat(MESSAGE_LIMIT);
    let conditions = ["ModuleApplied", "ConsumerApplied", "DefinitionStale"].map(|type_| {
        let condition = NewCondition { type_, is_true: false, reason: "Failed", message: &message };
        condition.after(&[], Some(1), Timestamp::UNIX_EPOCH)
    });
    let conditions = conditions.into();
    object.status = Some(PtemplateStatus { consumers, conditions });
    let [whole, projected] = read_and_projected::<Ptemplate>(&PTEMPLATE, &json!(object));
    assert_eq!(whole.status.as_ref().map(|it| it.consumers.len()), Some(5000));
    assert!(projected.status == whole.status);
}

#[test]
fn a_ptemplate_is_read_though_its_conditions_cannot_be() {
    let mut written = json!(ptemplate(&json!({ "selector": { "a": "b" } })));
    let condition =
        json!({ "type": "ModuleApplied", "status": "True", "lastTransitionTime": "9999-12-31T00:00:00Z" });
    written["status"] = json!({ "consumers": ["a-consumer-x"], "conditions": [condition] });
    let read: Ptemplate = serde_json::from_value(written).unwrap();
    let status = read.status.unwrap();
    assert_eq!((status.consumers.len(), status.conditions.len()), (1, 0));
}

fn missing(path: &str, resource: &str) -> Call {
    Call::get(path).answer(Answer::not_found(resource, path.rsplit('/').next().unwrap()))
}

/// The write of the status. Its answer is that the Ptemplate is gone, which is no error.
fn report() -> Call {
    let consumers = json!({ "status": { "consumers": ["a-consumer-x", "a-consumer-y"] } });
    Call::patch(STATUS).body_with(consumers).answer(Answer::not_found("ptemplates", "a"))
}

#[tokio::test]
async fn both_objects_are_applied_and_the_consumers_reported() {
    let spec = json!({
        "defaultmsg": "hello", "consumerimage": "mine", "imageRepoSecret": { "name": "key" }, "selector": { "a": "b" },
    });
    let container = json!({ "container": { "modprobe": {
        "moduleName": "ptemplate_char_dev", "parameters": ["max_dev=5", "default_msg=hello"],
    } } });
    let module = json!({ "spec": {
        "devicePlugin": { "container": { "image": "quay.io/chrisp262/pt-device-plugin:latest" } },
        "moduleLoader": container, "imageRepoSecret": { "name": "key" }, "selector": { "a": "b" },
    } });
    let mut stored = module.clone();
    stored["metadata"] = json!({ "name": "a" });
    let pod = json!({ "imagePullSecrets": [{ "name": "key" }], "nodeSelector": { "a": "b" } });
    let owner = json!({
        "apiVersion": "pt.example.com/v1alpha1", "kind": "Ptemplate", "name": "a", "uid": "u",
        "controller": true, "blockOwnerDeletion": true,
    });
    let daemon_set = json!({
        "metadata": { "ownerReferences": [owner], "labels": { "app": "a", "app.kubernetes.io/managed-by": "ptemplate-operator" } },
        "spec": { "selector": { "matchLabels": { "app": "a" } }, "template": { "spec": pod } },
    });
    let calls = [
        missing(MODULE, "modules"),
        Call::patch(MODULE).body_with(module).answer(Answer::object(&stored)),
        missing(DAEMON_SET, "daemonsets"),
        Call::patch(DAEMON_SET).body_with(daemon_set),
        report(),
    ];
    let ptemplate = ptemplate(&spec);
    assert_eq!(ptemplate.spec.consumer_image(), "mine");
    reconciled(&ptemplate, calls).await.unwrap();
}

#[tokio::test]
async fn without_kmm_the_daemon_set_is_applied_and_nothing_is_tried_again() {
    let calls = [
        Call::get(MODULE).answer(Answer::page_not_found()),
        missing(DAEMON_SET, "daemonsets"),
        Call::patch(DAEMON_SET),
        report(),
    ];
    reconciled(&ptemplate(&json!({ "selector": {} })), calls).await.unwrap();
}

#[tokio::test]
async fn a_refused_object_does_not_keep_the_other_from_being_applied() {
    let calls = [
        missing(MODULE, "modules"),
        Call::patch(MODULE).answer(Answer::error(403, "Forbidden", "no")),
        missing(DAEMON_SET, "daemonsets"),
        Call::patch(DAEMON_SET),
        report(),
    ];
    let error = reconciled(&ptemplate(&json!({ "selector": {} })), calls).await.unwrap_err();
    assert_eq!(error.code(), Some(403));
}

#[tokio::test]
async fn a_name_that_is_taken_is_tried_again_before_the_resync() {
    let theirs = Answer::object(&json!({ "metadata": { "name": "a-consumer" } }));
    let calls =
        [Call::get(MODULE).answer(Answer::page_not_found()), Call::get(DAEMON_SET).answer(theirs), report()];
    let action = reconciled(&ptemplate(&json!({ "selector": {} })), calls).await.unwrap();
    assert_eq!(action, Action::requeue(Duration::from_secs(30)));
}
