use operator_kit::testing::{Answer, ApiServer, Call};
use serde_json::{Value, json};

use super::*;
use crate::peerpodconfig::capacity::{list_nodes, survey};

const OPERATOR: &str = "operator";
const VM: &str = EXTENDED_RESOURCE;

/// Nodes that advertise so many VMs, as they are read. Their zone is the first letter of their names.
async fn listed(nodes: &[(&str, &str, Value)]) -> Vec<Arc<Node>> {
    let items: Vec<_> = nodes
        .iter()
        .map(|(name, ready, advertised)| {
            let conditions = [json!({ "type": "Ready", "status": ready })];
            let status =
                json!({ "conditions": conditions, "allocatable": advertised, "capacity": advertised });
            let metadata = json!({ "name": name, "uid": name, "labels": { "zone": name[..1] } });
            json!({ "metadata": metadata, "status": status })
        })
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": items });
    let server = ApiServer::expecting([Call::get("/api/v1/nodes").answer(Answer::object(&list))]);
    list_nodes(&server.client()).await.unwrap()
}

fn config(name: &str, namespace: &str, zones: &[&str], spec: &Value, conditions: &[Value]) -> PeerPodConfig {
    let created = if name == "older" { "2026-01-01T00:00:00Z" } else { "2026-01-02T00:00:00Z" };
    let mut spec = spec.clone();
    spec["labelSelector"] =
        json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": zones }] });
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": name, "namespace": namespace, "creationTimestamp": created },
        "spec": spec, "status": { "conditions": conditions },
    }))
    .unwrap()
}

fn pod(uid: u128, node: &str, resource: &str, phase: &str) -> PodView {
    let container = json!({ "name": "a", "resources": { "requests": { (resource): "1" } } });
    serde_json::from_value(json!({
        "metadata": { "name": "a", "namespace": "shop", "uid": Uuid::from_u128(uid).to_string() },
        "spec": { "nodeName": node, "containers": [container] },
        "status": { "phase": phase },
    }))
    .unwrap()
}

fn usage(of_all: bool, pods: &[PodView]) -> Usage {
    let mut usage = Usage::new(of_all);
    for pod in pods {
        usage.add(pod, &BTreeSet::from([VM.to_owned(), "x.y/vm".to_owned()]));
    }
    usage
}

#[tokio::test]
async fn nodes_are_sorted_by_how_full_they_are_and_belong_to_the_oldest_that_selects_them() {
    let three = json!({ VM: "3" });
    let nodes = listed(&[
        ("a-free", "True", three.clone()),
        ("a-full", "True", json!({ VM: "1" })),
        ("a-lost", "Unknown", three.clone()),
        ("b-over", "True", json!({ "x.y/vm": "1" })),
        ("b-new", "True", json!({})),
        ("c-other", "True", json!({ "cpu": "8" })),
        ("c-left", "True", three),
    ])
    .await;
    let per_node = json!({ "limit": 3, "distribution": "PerNode" });
    let other = json!({ "limit": "7", "admission": { "extendedResource": "x.y/vm" } });
    let configs = [
        config("younger", OPERATOR, &["a", "b"], &other, &[]),
        config("older", OPERATOR, &["a"], &per_node, &[]),
        config("elsewhere", "shop", &["a", "b", "c"], &per_node, &[]),
    ];
    let pods = [
        pod(1, "a-free", VM, "Running"),
        pod(2, "a-full", VM, "Running"),
        pod(3, "a-full", VM, "Succeeded"),
        pod(4, "b-over", "x.y/vm", "Running"),
        pod(5, "b-over", "x.y/vm", "Running"),
        pod(6, "b-over", VM, "Running"),
    ];
    let usage = usage(true, &pods);
    assert_eq!(
        usage.nodes.get(&Uuid::from_u128(3)).map(|node| &**node),
        Some("a-full"),
        "also of one that ended"
    );
    let rows = super::nodes(&nodes, &configs, OPERATOR, &usage);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (&*row.name, row.config.as_deref(), row.advertised, row.used, row.free, row.limit))
        .collect();
    assert_eq!(
        shown,
        [
            ("a-lost", Some("older"), Some(3), Some(0), Some(3), Some(3)),
            ("b-over", Some("younger"), Some(1), Some(2), Some(0), None),
            ("a-full", Some("older"), Some(1), Some(1), Some(0), Some(3)),
            ("b-new", Some("younger"), None, Some(0), Some(0), None),
            ("a-free", Some("older"), Some(3), Some(1), Some(2), Some(3)),
            ("c-left", None, Some(3), Some(0), Some(3), None),
        ]
    );
    let rows = super::configs(&configs, &rows, OPERATOR);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (&*row.name, row.nodes, row.limit, row.advertised, row.used, row.free))
        .collect();
    assert_eq!(
        shown,
        [
            ("older", 3, Some(3), 7, Some(2), Some(5)),
            ("younger", 2, Some(7), 1, Some(2), Some(0)),
            ("elsewhere", 0, Some(3), 0, Some(0), Some(0)),
        ]
    );
}

#[tokio::test]
async fn a_node_belongs_to_the_configuration_that_the_operator_gives_it() {
    let nodes = listed(&["a", "b", "c", "d"].map(|name| (name, "True", json!({ VM: "1" })))).await;
    let spec = json!({ "limit": 3 });
    // Of those that stay and have a valid selector, two are equally old.
    let mut configs = [
        config("younger", OPERATOR, &["a", "b"], &spec, &[]),
        config("older", OPERATOR, &["a", "b", "c"], &spec, &[]),
        config("beside", OPERATOR, &["b", "c"], &spec, &[]),
        config("an-invalid-one", OPERATOR, &[], &spec, &[]),
    ];
    configs[1].metadata.deletion_timestamp = configs[1].metadata.creation_timestamp.clone();
    let mut rows = super::nodes(&nodes, &configs, OPERATOR, &usage(true, &[]));
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let shown: Vec<_> = rows.iter().map(|row| (&*row.name, row.config.as_deref())).collect();
    assert_eq!(
        shown,
        [("a", Some("younger")), ("b", Some("beside")), ("c", Some("beside")), ("d", None)],
        "by age, then by name"
    );
    for summary in survey(&configs.each_ref().map(NodeRequest::of), &nodes) {
        let own = rows.iter().filter(|row| row.config.as_ref() == Some(&summary.name)).count();
        let taken: usize = summary.taken_by_older.values().sum();
        assert_eq!(own, summary.nodes - taken, "{} in status, and as the operator has it", summary.name);
    }
}

#[tokio::test]
async fn usage_is_unknown_if_only_some_pods_are_listed() {
    let nodes = listed(&[("a", "True", json!({ VM: "3" }))]).await;
    let configs = [config("older", OPERATOR, &["a"], &json!({ "limit": 3 }), &[])];
    let rows = super::nodes(&nodes, &configs, OPERATOR, &usage(false, &[pod(1, "a", VM, "Running")]));
    assert_eq!((rows[0].advertised, rows[0].used, rows[0].free), (Some(3), None, None));
    let rows = super::configs(&configs, &rows, OPERATOR);
    assert_eq!((rows[0].advertised, rows[0].used, rows[0].free), (3, None, None));
}

#[test]
fn each_condition_that_is_not_as_it_should_be_is_a_problem_once() {
    let problems = |conditions: &[(&str, &str, &str)]| {
        let condition = |(type_, status, reason): &(&str, &str, &str)| {
            let since = "2026-01-01T00:00:00Z";
            json!({ "type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": since })
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        let found = super::problems(&config("older", OPERATOR, &[], &json!({}), &conditions));
        found.into_iter().map(|it| (it.severity, it.text)).collect::<Vec<_>>()
    };
    let problem = |severity, text: &str| (severity, text.to_owned());
    let fine = ("AdmissionReady", "True", "WebhookRunning");
    assert_eq!(problems(&[("Ready", "True", "AllReady"), fine]), []);
    assert_eq!(
        problems(&[("Ready", "False", "NoNodes"), ("AdaptorReady", "False", "NoNodes"), fine]),
        [problem(Severity::Error, "AdaptorReady, NoNodes: m")]
    );
    assert_eq!(
        problems(&[("Ready", "False", "WrongNamespace")]),
        [problem(Severity::Error, "Ready, WrongNamespace: m")]
    );
    assert_eq!(
        problems(&[
            ("Ready", "True", "AllReady"),
            ("CapacityAdvertised", "True", "MoreInUse"),
            ("SettingsPending", "True", "OlderSettings"),
            ("SettingsRefused", "True", "TlsRefused"),
            ("AdaptorReady", "False", "AdaptorStarting"),
            ("AdmissionReady", "False", "OfALaterVersion"),
        ]),
        [
            problem(Severity::Warning, "CapacityAdvertised, MoreInUse: m"),
            problem(Severity::Warning, "SettingsPending, OlderSettings: m"),
            problem(Severity::Error, "SettingsRefused, TlsRefused: m"),
            problem(Severity::Warning, "AdaptorReady, AdaptorStarting: m"),
            problem(Severity::Error, "AdmissionReady, OfALaterVersion: m"),
        ]
    );
}

#[test]
fn a_change_or_a_deletion_that_no_operator_handled_is_a_problem() {
    let held = [FINALIZER];
    let seen_with = |finalizers: &[&str], reason: &str, generation: i64, is_deleting: bool| {
        let ready = json!({
            "type": "Ready", "status": "True", "reason": reason, "message": "m", "observedGeneration": 2,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut config = super::tests::config("older", OPERATOR, &[], &json!({}), &[ready]);
        config.metadata.generation = Some(generation);
        config.metadata.finalizers = Some(finalizers.iter().map(|it| (*it).to_owned()).collect());
        config.metadata.deletion_timestamp = is_deleting.then(|| jiff::Timestamp::UNIX_EPOCH.into());
        let problems: Vec<_> = super::problems(&config).into_iter().map(|it| it.text).collect();
        (configs(&[config], &[], OPERATOR).remove(0).ready, problems.join(" "))
    };
    let seen =
        |reason: &str, generation: i64, is_deleting: bool| seen_with(&held, reason, generation, is_deleting);
    assert_eq!(seen("AllReady", 2, false), ("True".to_owned(), String::new()));
    for (generation, is_deleting, what) in
        [(3, false, "last change"), (3, true, "deletion"), (2, true, "deletion")]
    {
        let (ready, problem) = seen("AllReady", generation, is_deleting);
        assert_eq!(ready, "Unknown", "{what}");
        assert!(problem.starts_with(&format!("no operator has handled its {what} yet")), "{problem}");
    }
    assert_eq!(seen("Deleting", 3, true).0, "True", "an operator has seen it");
    assert_eq!(seen_with(&["x.y/a"], "AllReady", 3, true).0, "True", "only another program holds it");
}
