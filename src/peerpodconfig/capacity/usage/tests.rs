use operator_kit::{
    projection::reading,
    testing::{Answer, ApiServer, Call},
};
use serde_json::{Value, json};

use super::{
    super::node::{Texts, tests::view},
    *,
};

const VM: &str = "kata.peerpods.io/vm";

fn request(name: &str, spec: &Value) -> NodeRequest {
    reported(name, spec, &json!({}))
}

fn reported(name: &str, spec: &Value, status: &Value) -> NodeRequest {
    let mut spec = spec.clone();
    spec["nodeSelector"] = json!({ "of": name });
    let config = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": name }, "spec": spec, "status": status,
    });
    NodeRequest::of(&serde_json::from_value(config).unwrap())
}

/// The status of a configuration of which all is ready.
fn ready() -> Value {
    json!({ "conditions": [{
        "type": "Ready", "status": "True", "reason": "AllReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] })
}

/// A node of this configuration that advertises so many VMs for it.
fn node(name: &str, config: &str, vms: &str) -> Arc<Node> {
    let fields = json!({ "labels": { "of": config }, "capacity": { VM: vms }, "mark": VM });
    Arc::new(Node::new(&view(name, &fields), &mut Texts::default()))
}

fn counted(nodes: &[(&str, u32)]) -> InUse {
    let mut in_use = InUse::default();
    for (node, vms) in nodes {
        in_use.add((*node).into(), [(VM.to_owned(), *vms)].into());
    }
    in_use
}

fn known(advertised: u64, used: u64, free: u64) -> ConfigCapacity {
    ConfigCapacity { ready: false, advertised: Some(advertised), usage: Some(Usage { used, free }) }
}

#[test]
fn each_configuration_has_what_its_own_nodes_advertise_and_their_pods_take() {
    let requests = [request("a", &json!({ "limit": 5 })), request("b", &json!({ "limit": 0 }))];
    let others = Arc::new(Node::new(
        &view("others", &json!({ "labels": { "of": "a" }, "capacity": { VM: "9" } })),
        &mut Texts::default(),
    ));
    let nodes = [node("a-0", "a", "3"), node("a-1", "a", "2"), node("b-0", "b", "0"), others];
    // Peer pods beyond a node's number take nothing from another node.
    let in_use = counted(&[("a-0", 1), ("a-1", 4), ("b-0", 2), ("others", 0)]);
    let found = capacities(&requests, &nodes, Some(&in_use));
    assert_eq!(found, [("a".to_owned(), known(5, 5, 2)), ("b".to_owned(), known(0, 2, 0))].into());
    let in_use = InUse::of_all([("a-0".into(), [(VM.to_owned(), 3)].into())].into());
    assert_eq!(capacities(&requests, &nodes, Some(&in_use))["a"], known(5, 3, 2));
}

#[test]
fn usage_without_a_complete_count_is_unknown() {
    let nodes = [node("a-0", "a", "3"), node("a-1", "a", "2")];
    let unknown = ConfigCapacity { ready: false, advertised: Some(5), usage: None };
    let limited = [request("a", &json!({ "limit": 5 }))];
    for in_use in [None, Some(counted(&[("a-0", 1)]))] {
        assert_eq!(capacities(&limited, &nodes, in_use.as_ref()), [("a".to_owned(), unknown)].into());
    }
    let all = InUse::of_all([].into());
    // Its nodes are about to advertise no more.
    assert_eq!(capacities(&[request("a", &json!({}))], &nodes, Some(&all))["a"], unknown);
}

#[test]
fn a_configuration_whose_deletion_does_not_end_is_not_ready_and_has_no_capacity() {
    let config = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "a", "deletionTimestamp": "2026-01-02T00:00:00Z" },
        "spec": { "limit": 5, "nodeSelector": { "of": "a" } }, "status": ready(),
    });
    let requests = [NodeRequest::of(&serde_json::from_value(config).unwrap())];
    let expected = BTreeMap::from([("a".to_owned(), ConfigCapacity::default())]);
    assert_eq!(capacities(&requests, &[node("a-0", "a", "3")], Some(&counted(&[("a-0", 1)]))), expected);
    assert_eq!(without_nodes(&requests), expected);
}

#[test]
fn a_configuration_is_ready_if_its_status_says_so() {
    let status = |value: &str| {
        let condition = json!({
            "type": "Ready", "status": value, "reason": "Any", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        json!({ "conditions": [condition] })
    };
    for (status, expected) in [(status("True"), true), (status("False"), false), (json!({}), false)] {
        let requests = [reported("a", &json!({}), &status)];
        assert_eq!(capacities(&requests, &[], None)["a"].ready, expected, "{status}");
    }
}

fn pods(node: &str, requested: &[&str]) -> Call {
    let pod = |vms: &&str| {
        let resources = json!({ "requests": { VM: vms } });
        let containers = json!([{ "name": "main", "resources": resources }]);
        json!({ "metadata": {}, "spec": { "nodeName": node, "containers": containers }, "status": { "phase": "Running" } })
    };
    let items: Vec<_> = requested.iter().map(pod).collect();
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
    Call::get("/api/v1/pods").answer(Answer::json(200, &list))
}

#[tokio::test(start_paused = true)]
async fn pods_are_counted_where_there_is_a_limit_and_again_after_a_while() {
    let (first, second) = (node("a-0", "a", "3"), node("a-1", "a", "3"));
    let limited = [request("a", &json!({ "limit": 3 }))];
    let refused = Answer::json(403, &json!({ "kind": "Status", "code": 403 }));
    let server = ApiServer::expecting([
        pods("a-0", &["1", "1"]),
        Call::get("/api/v1/pods").answer(refused),
        pods("a-0", &["1"]),
        Call::get("/api/v1/pods").answer(Answer::hang()),
        pods("a-0", &["1"]),
        pods("a-0", &["1"]),
        pods("a-1", &["1", "1", "1"]),
    ]);
    let api = Api::all(reading(&server.client(), &count::POD));
    let mut counts = Counts::default();
    let one = [first.clone()];
    let two = [first, second];
    let mut used = async |requests: &[NodeRequest], nodes: &[Arc<Node>], later: Duration| {
        tokio::time::advance(later).await;
        counts.refresh(&api, requests, nodes).await;
        let found = capacities(requests, nodes, counts.latest.as_ref());
        found.get("a").and_then(|it| it.usage).map(|usage| usage.used)
    };
    assert_eq!(used(&[request("a", &json!({}))], &one, Duration::ZERO).await, None, "there is no limit");
    assert_eq!(used(&limited, &one, Duration::ZERO).await, Some(2));
    assert_eq!(used(&limited, &one, COUNT_INTERVAL / 2).await, Some(2), "it is recent");
    assert_eq!(used(&limited, &one, COUNT_INTERVAL / 2).await, None, "it failed");
    assert_eq!(used(&limited, &one, REFRESH).await, Some(1));
    assert_eq!(used(&limited, &one, COUNT_INTERVAL).await, None, "there was no answer");
    assert_eq!(used(&limited, &one, REFRESH).await, Some(1), "the next count does not wait for long");
    assert_eq!(used(&limited, &two, REFRESH).await, Some(4), "a node joined");
    assert_eq!(used(&[], &two, COUNT_INTERVAL).await, None);
    assert!(counts.latest.is_none(), "nothing is left to count");
}

#[tokio::test(start_paused = true)]
async fn counting_takes_a_small_part_of_the_time() {
    let limited = [request("a", &json!({ "limit": 3 }))];
    let server = ApiServer::expecting([pods("a-0", &["1"])]);
    let api = Api::all(reading(&server.client(), &count::POD));
    let mut counts = Counts { rest: Duration::from_secs(10) * REST, ..Counts::default() };
    counts.at = Some(Instant::now());
    tokio::time::advance(COUNT_INTERVAL).await;
    counts.refresh(&api, &limited, &[node("a-0", "a", "3")]).await;
    assert!(counts.latest.is_none());
    tokio::time::advance(counts.rest).await;
    counts.refresh(&api, &limited, &[node("a-0", "a", "3")]).await;
    assert!(counts.latest.is_some());
}

#[test]
fn without_nodes_only_the_readiness_is_known() {
    let requests = [reported("a", &json!({ "limit": 5 }), &ready()), request("b", &json!({ "limit": 5 }))];
    let unknown = |ready| ConfigCapacity { ready, advertised: None, usage: None };
    let expected = [("a".to_owned(), unknown(true)), ("b".to_owned(), unknown(false))];
    assert_eq!(without_nodes(&requests), expected.into());
}
