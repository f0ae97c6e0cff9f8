use kube::runtime::{reflector::store::Writer, watcher::Event};
use operator_kit::{
    metrics::Registry,
    testing::{Answer, ApiServer, Call, read_and_projected},
};
use serde_json::{Value, json};

use super::*;

const PODS: &str = "/api/v1/namespaces/shop/pods";
const STATUS: &str = "/apis/app.example.com/v1alpha1/namespaces/shop/podsets/web/status";

fn podset(replicas: i32) -> PodSet {
    let metadata = json!({ "name": "web", "namespace": "shop", "uid": "u", "generation": 2 });
    let object = json!({
        "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet", "metadata": metadata,
        "spec": { "replicas": replicas },
    });
    serde_json::from_value(object).unwrap()
}

/// The same with the status that belongs to these Pods.
fn reported(replicas: i32, pods: &[&str]) -> PodSet {
    let podset = podset(replicas);
    let pods = pods.iter().map(|name| (*name).to_owned()).collect();
    let status = status(&podset, pods, None, "2026-01-01T00:00:00Z".parse().unwrap());
    PodSet { status: Some(status), ..podset }
}

fn running(name: &str) -> Value {
    let owner = json!({
        "apiVersion": "app.example.com/v1alpha1", "kind": "PodSet", "name": "web", "uid": "u", "controller": true,
    });
    let labels = json!({ "app": "web", "version": "v0.1" });
    json!({
        "apiVersion": "v1", "kind": "Pod", "status": { "phase": "Running" },
        "metadata": { "name": name, "namespace": "shop", "labels": labels, "ownerReferences": [owner] },
    })
}

fn list(pods: &[&str]) -> Call {
    list_of(&pods.iter().map(|name| running(name)).collect::<Vec<_>>())
}

fn list_of(items: &[Value]) -> Call {
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
    Call::get(format!("{PODS}?labelSelector=app%3Dweb%2Cversion%3Dv0.1")).answer(Answer::object(&list))
}

fn create() -> Call {
    Call::post(PODS).body_with(json!({ "metadata": { "generateName": "web-pod" } }))
}

/// The write of a status. Its answer is that the PodSet is gone, which is no error.
fn report(pods: &[&str]) -> Call {
    let status =
        json!({ "podNames": pods, "availableReplicas": pods.len(), "selector": "app=web,version=v0.1" });
    Call::patch(STATUS).body_with(json!({ "status": status })).answer(Answer::not_found("podsets", "web"))
}

/// The result of a reconcile with these Pods in the cache.
async fn reconciled(
    podset: &PodSet,
    cached: &[&str],
    calls: impl IntoIterator<Item = Call>,
) -> Result<Action, ApiError> {
    let server = ApiServer::expecting(calls);
    let mut pods = Writer::default();
    for name in cached {
        pods.apply_watcher_event(&Event::Apply(serde_json::from_value(running(name)).unwrap()));
    }
    let metrics = Metrics::register(&mut Registry::default());
    Context::new(&server.client(), pods.as_reader(), metrics).reconcile(podset).await
}

#[test]
fn a_pod_without_its_label_or_its_owner_still_belongs_to_its_podset() {
    let web = ObjectRef::<PodSet>::new("web").within("shop");
    for lost in ["labels", "ownerReferences"] {
        let mut pod = running("web-poda");
        pod["metadata"][lost] = Value::Null;
        assert_eq!(
            podsets_of(&serde_json::from_value(pod).unwrap()),
            std::slice::from_ref(&web),
            "without {lost}"
        );
    }
}

#[tokio::test]
async fn missing_pods_are_created_and_reported_in_one_reconcile() {
    let created = create().answer(Answer::object(&running("web-podb")));
    let calls = [list(&["web-poda"]), created, report(&["web-poda", "web-podb"])];
    reconciled(&podset(2), &["web-poda"], calls).await.unwrap();
}

#[tokio::test]
async fn a_status_that_the_api_server_stores_as_sent_takes_one_write() {
    // The condition stays true and keeps its time, so the whole status is known.
    let after = reported(2, &["web-poda", "web-podb"]);
    let created = create().answer(Answer::object(&running("web-podb")));
    let written = report(&["web-poda", "web-podb"]).answer(Answer::object(&after));
    let calls = [list(&["web-poda"]), created, written];
    reconciled(&reported(2, &["web-poda"]), &["web-poda"], calls).await.unwrap();
}

#[tokio::test]
async fn needless_pods_are_deleted_though_one_is_gone_already() {
    let delete = |name: &str| Call::delete(format!("{PODS}/{name}"));
    let gone = delete("web-podc").answer(Answer::not_found("pods", "web-podc"));
    let pods = ["web-poda", "web-podb", "web-podc"];
    let calls = [list(&pods), delete("web-podb"), gone, report(&["web-poda"])];
    reconciled(&reported(1, &pods), &pods, calls).await.unwrap();
}

#[tokio::test]
async fn pods_that_cannot_be_deleted_are_still_reported() {
    let delete = |name: &str, code, reason| {
        Call::delete(format!("{PODS}/{name}")).answer(Answer::error(code, reason, "no"))
    };
    let pods = ["web-poda", "web-podb", "web-podc"];
    let refused = [delete("web-podb", 403, "Forbidden"), delete("web-podc", 500, "InternalError")];
    let calls = [list(&pods)].into_iter().chain(refused).chain([report(&pods)]);
    let error = reconciled(&reported(1, &pods), &pods, calls).await.unwrap_err();
    assert_eq!(error.code(), Some(403));
}

#[tokio::test]
async fn a_podset_as_wanted_costs_no_request() {
    reconciled(&reported(1, &["web-poda"]), &["web-poda"], []).await.unwrap();
}

#[tokio::test]
async fn pods_that_the_cache_does_not_have_yet_are_not_created_again() {
    let podset = reported(2, &["web-poda", "web-podb"]);
    reconciled(&podset, &["web-poda"], [list(&["web-poda", "web-podb"])]).await.unwrap();
}

#[tokio::test]
async fn refused_pods_are_reported_and_tried_again() {
    const POD: &str = "pods \"web-podx\" is forbidden: ";
    for (before, shown) in [
        (POD, "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"),
        (POD, "failed quota: cores: must specify limits.cpu for: web"),
        ("", "admission webhook \"a.example.com\" denied the request: no"),
    ] {
        let refused = create().answer(Answer::error(403, "Forbidden", &format!("{before}{shown}")));
        let condition = json!({ "status": { "availableReplicas": 0, "podNames": [] } });
        let report = Call::patch(STATUS).body_with(condition).answer(Answer::not_found("podsets", "web"));
        let error = reconciled(&podset(1), &[], [list(&[]), refused, report]).await.unwrap_err();
        assert_eq!(error.code(), Some(403));
        let (reason, message) = told(&error);
        assert_eq!(reason, "PodsRefused");
        assert_eq!(message, format!("0 of 1 Pods are pending or running: {shown}"));
    }
}

#[test]
fn a_number_that_cannot_be_read_is_refused() {
    let definition = operator_kit::crd::definition::<PodSet>().unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let status = &schema["properties"]["status"]["properties"];
    assert_eq!(status["availableReplicas"]["maximum"], f64::from(i32::MAX));
}

#[test]
fn a_podset_is_read_though_a_condition_has_a_time_that_cannot_be() {
    let mut written = json!(reported(1, &["web-poda"]));
    written["status"]["conditions"][0]["lastTransitionTime"] = json!("9999-12-31T00:00:00Z");
    let read: PodSet = serde_json::from_value(written).unwrap();
    let status = read.status.unwrap();
    assert_eq!((status.pod_names, status.conditions), (vec!["web-poda".to_owned()], vec![]));
}

#[test]
fn a_podset_is_read_wherever_the_limit_cuts_its_conditions() {
    let mut written = json!(reported(1, &["web-poda"]));
    let condition = written["status"]["conditions"][0].take();
    for length in (0..1000).step_by(32) {
        let mut conditions = vec![condition.clone(); 50];
        conditions[0]["message"] = json!("x".repeat(length));
        written["status"]["conditions"] = json!(conditions);
        let [whole, projected] = read_and_projected::<PodSet>(&PODSET, &written);
        assert_eq!(whole.status.unwrap().conditions.len(), 50);
        assert!(projected.status.unwrap().conditions.len() < 50);
    }
}

#[tokio::test]
async fn a_pod_counts_with_many_labels_and_an_unreadable_condition_time() {
    let mut pod = running("web-poda");
    for number in 0..1000 {
        pod["metadata"]["labels"][format!("filler-{number}")] = json!("x".repeat(60));
    }
    pod["status"]["conditions"] =
        json!([{ "type": "Ready", "status": "True", "lastTransitionTime": "9999-12-31T00:00:00Z" }]);
    reconciled(&podset(1), &[], [list_of(&[pod]), report(&["web-poda"])]).await.unwrap();
}

/// The creation of a Pod, and its answer: a webhook gave the Pod another label.
fn changed(path: &str) -> Call {
    let mut pod = running("web-podx");
    pod["metadata"]["labels"]["app"] = json!("team");
    Call::post(path).answer(Answer::object(&pod))
}

#[tokio::test]
async fn a_new_pod_that_does_not_count_is_deleted_and_an_error() {
    let delete = Call::delete(format!("{PODS}/web-podx"));
    let calls = [list(&[]), changed(PODS), delete, report(&[])];
    let error = reconciled(&podset(1), &[], calls).await.unwrap_err();
    let (reason, message) = told(&error);
    assert_eq!(reason, "PodsFailed");
    assert!(message.contains("look for a mutating webhook"), "{message}");
}

#[tokio::test]
async fn after_a_failure_no_pod_is_created_before_a_dry_run_counts() {
    let status = status(&podset(1), vec![], Some(&ApiError::Altered), Timestamp::UNIX_EPOCH);
    let failed = PodSet { status: Some(status), ..podset(1) };
    let dry_run = format!("{PODS}?dryRun=All");
    reconciled(&failed, &[], [list(&[]), changed(&dry_run)]).await.unwrap_err();
    let created = Answer::object(&running("web-poda"));
    let trial = Call::post(dry_run).answer(created.clone());
    let calls = [list(&[]), trial, create().answer(created), report(&["web-poda"])];
    reconciled(&failed, &[], calls).await.unwrap();
}

/// Reason and message of the condition of a PodSet without Pods after this failure.
fn told(error: &ApiError) -> (String, String) {
    let status = status(&podset(1), vec![], Some(error), Timestamp::UNIX_EPOCH);
    let [condition] = status.conditions.as_slice() else { panic!("{status:?}") };
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Available", "False"));
    (condition.reason.clone(), condition.message.clone())
}

#[tokio::test]
async fn an_outage_is_no_refusal_and_long_or_private_texts_are_not_shown() {
    let failed = async |answer: Answer| {
        let report = Call::patch(STATUS).answer(Answer::not_found("podsets", "web"));
        reconciled(&podset(1), &[], [list(&[]), create().answer(answer), report]).await.unwrap_err()
    };
    let private = "User \"system:serviceaccount:elsewhere:operator\" cannot create resource \"pods\"";
    let (reason, message) = told(&failed(Answer::error(403, "Forbidden", private)).await);
    assert_eq!(reason, "PodsRefused");
    assert!(message.ends_with("the API server answered with the status 403"), "{message}");
    let (reason, message) = told(&failed(Answer::error(500, "InternalError", "etcd")).await);
    assert_eq!(reason, "PodsFailed");
    assert!(message.ends_with("the API server answered with the status 500"), "{message}");
    assert_eq!(told(&ApiError::TimedOut).0, "PodsFailed");
    let long = format!("exceeded quota: {}", "q".repeat(9_000));
    assert!(told(&failed(Answer::error(403, "Forbidden", &long)).await).1.len() < 600);
}

#[tokio::test]
async fn a_podset_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let mut podset = podset(1);
    podset.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    reconciled(&podset, &[], []).await.unwrap();
}
