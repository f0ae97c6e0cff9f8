mod cluster;
mod headroom;
mod in_use;
mod properties;
mod selectors;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::cluster::{Cluster, Facts};
use super::{
    super::{
        node::{Texts, tests::view},
        node_write::Written,
    },
    *,
};
use crate::api::v1alpha1::PeerPodConfig;

const VM: &str = "kata.peerpods.io/vm";

fn request(name: &str, spec: &Value) -> NodeRequest {
    let config: PeerPodConfig = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": name },
        "spec": spec,
    }))
    .unwrap();
    NodeRequest::of(&config)
}

fn limit(limit: &Value) -> NodeRequest {
    request("config", &json!({ "limit": limit }))
}

fn deleted(request: NodeRequest) -> NodeRequest {
    NodeRequest { deleted: true, ..request }
}

#[test]
fn ten_over_three_nodes_and_then_nothing_more_is_written() {
    let mut cluster = Cluster::workers(3);
    let requests = [limit(&json!(10))];
    let plan = cluster.pass(&requests);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (3, 3));
    assert_eq!(cluster.shares(), [4, 3, 3]);
    let plan = cluster.pass(&requests);
    assert!(plan.writes.is_empty() && plan.uncounted.is_empty());
    let summary = &plan.summaries[0];
    assert_eq!((summary.nodes, summary.advertised, summary.pending.len()), (3, 10, 0));
    assert_eq!(summary.capacity().message, "10 VMs on 3 nodes");
    assert!(summary.capacity().reason.status());
}

#[test]
fn a_node_that_joins_leaves_or_is_recreated_costs_the_fewest_writes() {
    let mut cluster = Cluster::workers(5);
    let requests = [limit(&json!(10))];
    cluster.pass(&requests);
    cluster.0.insert("late".into(), Facts::worker());
    assert_eq!(cluster.pass(&requests).writes.len(), 2);
    assert_eq!(cluster.shares(), [1, 2, 2, 2, 2, 1]);
    cluster.0.remove("late");
    assert_eq!(cluster.pass(&requests).writes.len(), 1);
    *cluster.of("node-2") = Facts::worker();
    assert_eq!(cluster.pass(&requests).writes.len(), 1);
    assert_eq!(cluster.shares(), [2; 5]);
}

#[test]
fn a_node_that_was_reset_or_stripped_is_put_right() {
    let requests = [limit(&json!(10))];
    for reset in [Some(0), None, Some(99)] {
        let mut cluster = Cluster::workers(3);
        cluster.pass(&requests);
        let advertised = cluster.shares();
        let resources = &mut cluster.of("node-1").resources;
        resources.clear();
        resources.extend(reset.map(|vms| (VM.to_owned(), vms)));
        assert_eq!(cluster.pass(&requests).writes.len(), 1, "{reset:?}");
        assert_eq!(cluster.shares(), advertised);
    }
    // A kubelet has not yet followed.
    let mut cluster = Cluster::workers(1);
    cluster.pass(&requests);
    let fields = json!({ "capacity": { VM: "10" }, "allocatable": {}, "mark": VM, "labels": cluster.of("node-0").labels });
    let node = Node::new(&view("node-0", &fields), &mut Texts::default());
    assert_eq!(plan(&requests, &[node.into()], &InUse::default()).uncounted, []);
    let node = Node::new(&view("node-0", &fields), &mut Texts::default());
    assert_eq!(plan(&requests, &[node.into()], &InUse::default()).writes.len(), 1);
}

#[test]
fn a_node_that_was_reset_keeps_its_vm_though_an_empty_node_comes_before_it() {
    let requests = [limit(&json!(2))];
    for reset in [Some(0), None] {
        let mut cluster = Cluster::workers(3);
        let labels = std::mem::take(&mut cluster.of("node-0").labels);
        cluster.pass(&requests);
        cluster.of("node-0").labels = labels;
        assert_eq!(cluster.pass(&requests).writes, []);
        assert_eq!(cluster.shares(), [0, 1, 1]);
        let node = cluster.of("node-2");
        node.runs = 1;
        node.resources.clear();
        node.resources.extend(reset.map(|vms| (VM.to_owned(), vms)));
        cluster.pass(&requests);
        assert_eq!(cluster.shares(), [0, 1, 1], "{reset:?}");
    }
}

#[test]
fn nodes_that_are_no_longer_meant_lose_what_was_advertised_for_us_and_no_other() {
    let mut cluster = Cluster::workers(2);
    cluster.0.insert("foreign".into(), Facts { labels: BTreeMap::new(), ..Facts::advertises(VM, 7) });
    let requests = [limit(&json!(10))];
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [7, 5, 5]);
    cluster.of("node-0").labels.clear();
    assert_eq!(cluster.pass(&requests).writes.len(), 2);
    assert_eq!(cluster.shares(), [7, 0, 10]);
    assert_eq!(cluster.of("node-0"), &Facts::default());
    let plan = cluster.pass(&[deleted(requests[0].clone())]);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (1, 1));
    let plan = cluster.pass(&[deleted(requests[0].clone())]);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (0, 0));
    assert_eq!(cluster.shares(), [7, 0, 0]);
    // The same without any configuration: it was deleted while no operator ran.
    cluster.pass(&requests);
    cluster.pass(&[]);
    assert_eq!(cluster.shares(), [7, 0, 0]);
}

#[test]
fn capacity_that_another_program_advertised_is_taken_over() {
    let mut cluster = Cluster::workers(2);
    *cluster.of("node-0") = Facts::advertises(VM, 5);
    *cluster.of("node-1") = Facts::advertises(VM, 10);
    let requests = [limit(&json!(10))];
    assert_eq!(cluster.pass(&requests).writes.len(), 2, "the mark alone is a write");
    assert_eq!(cluster.shares(), [5, 5]);
    cluster.pass(&[deleted(requests[0].clone())]);
    assert_eq!(cluster.shares(), [0, 0]);
}

#[test]
fn another_resource_takes_the_place_of_the_former_by_one_write() {
    let mut cluster = Cluster::workers(2);
    let mut requests = [limit(&json!(10))];
    cluster.pass(&requests);
    requests[0].resource = "example.org/vm".into();
    assert_eq!(cluster.pass(&requests).writes.len(), 2);
    for facts in cluster.0.values() {
        assert_eq!(facts.resources, [("example.org/vm".to_owned(), 5)].into());
        assert_eq!(facts.mark.as_deref(), Some("example.org/vm"));
    }
    requests[0].resource = "memory".into();
    let plan = cluster.pass(&requests);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.summaries[0].capacity().reason.as_str(), "InvalidResource");
}

#[test]
fn the_older_of_two_has_the_nodes_that_both_select() {
    let mut cluster = Cluster::workers(3);
    cluster.of("node-2").labels.insert("zone".into(), "x".into());
    let at = |seconds| Some(jiff::Timestamp::from_second(seconds).unwrap());
    let all = NodeRequest { created: at(2), ..request("all", &json!({ "limit": 4 })) };
    let zone = request("zone", &json!({ "limit": 9, "nodeSelector": { "zone": "x" } }));
    let zone = NodeRequest { created: at(1), ..zone };
    for requests in [[all.clone(), zone.clone()], [zone.clone(), all.clone()]] {
        cluster.pass(&requests);
        assert_eq!(cluster.shares(), [2, 2, 9]);
        let summaries = cluster.pass(&requests).summaries;
        let summary = summaries.iter().find(|summary| summary.name == "all").unwrap();
        assert_eq!((summary.nodes, summary.advertised), (3, 4));
        let conflict = summary.conflict().unwrap();
        assert!(conflict.contains("1 to PeerPodConfig zone"), "{conflict}");
        assert!(summaries.iter().any(|summary| summary.name == "zone" && summary.conflict().is_none()));
    }
    // When the older one is deleted, the younger one has them.
    let plan = cluster.pass(&[all.clone(), deleted(zone.clone())]);
    assert_eq!(cluster.shares(), [2, 1, 1]);
    assert_eq!(plan.summaries[1].pending.len(), 0, "none of its nodes is left to be cleared");
    let twin = NodeRequest { created: at(2), ..request("twin", &json!({ "limit": 1 })) };
    let summaries = cluster.pass(&[twin, all]).summaries;
    assert_eq!(summaries[0].capacity().reason.as_str(), "AllTaken");
}

#[test]
fn a_deletion_waits_for_no_node_that_another_request_has() {
    let mut cluster = Cluster::workers(2);
    cluster.of("node-1").labels.insert("zone".into(), "x".into());
    let one = request("one", &json!({ "limit": 2 }));
    let zone = request("zone", &json!({ "limit": 0, "nodeSelector": { "zone": "x" } }));
    let at = |second| Some(jiff::Timestamp::from_second(second).unwrap());
    let (one, zone) = (NodeRequest { created: at(2), ..one }, NodeRequest { created: at(1), ..zone });
    // Something else keeps advertising there.
    *cluster.of("node-1") = Facts { labels: cluster.of("node-1").labels.clone(), ..Facts::advertises(VM, 3) };
    cluster.pass(&[one.clone(), zone.clone()]);
    cluster.of("node-1").resources.insert(VM.into(), 3);
    let planned = cluster.plan_after(&[deleted(one), zone], InUse::default());
    assert_eq!((planned.writes.len(), planned.summaries[0].pending.len()), (2, 1));
}

#[test]
fn every_limit_has_its_meaning() {
    let reason = |cluster: &mut Cluster, value: Value| {
        let requests = [limit(&value)];
        cluster.pass(&requests);
        let finding = cluster.pass(&requests).summaries[0].capacity();
        (cluster.shares(), finding.reason.as_str(), finding.reason.status())
    };
    let mut cluster = Cluster::workers(3);
    assert_eq!(reason(&mut cluster, json!("2")), (vec![1, 1, 0], "FewerThanNodes", true));
    assert!(!cluster.of("node-2").resources.contains_key(VM), "never a share of 0");
    for bad in [json!(-1), json!("ten"), json!("99999999")] {
        assert_eq!(reason(&mut cluster, bad), (vec![1, 1, 0], "InvalidLimit", false));
    }
    // Nothing is better than too little: the limit is unknown.
    cluster.of("node-0").resources.insert(VM.into(), 0);
    reason(&mut cluster, json!(-1));
    assert!(!cluster.of("node-0").resources.contains_key(VM));
    assert_eq!(reason(&mut cluster, json!(3)).0, [1, 1, 1]);
    assert_eq!(reason(&mut cluster, json!(0)), (vec![0, 0, 0], "LimitIsZero", true));
    assert_eq!(reason(&mut cluster, json!(1_000_000)).0.iter().sum::<u32>(), 1_000_000);
    *cluster.of("node-2") = Facts::advertises(VM, 7);
    assert_eq!(reason(&mut cluster, Value::Null), (vec![0, 0, 7], "NoLimit", false));
    cluster.0.clear();
    assert_eq!(reason(&mut cluster, json!(3)), (vec![], "NoneSelected", false));
}

#[test]
fn a_limit_for_each_node_is_that_of_each() {
    let mut cluster = Cluster::workers(3);
    let requests = [request("config", &json!({ "limit": 4, "distribution": "PerNode" }))];
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [4, 4, 4]);
    cluster.of("node-1").runs = 4;
    let requests = [request("config", &json!({ "limit": 3, "distribution": "PerNode" }))];
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [3, 4, 3]);
    let summary = &cluster.pass(&requests).summaries[0];
    let finding = summary.capacity();
    assert_eq!((summary.pods_over_limit, summary.is_uneven, finding.reason.as_str()), (1, true, "MoreInUse"));
    assert_eq!(
        finding.message,
        "3 VMs on each of 3 nodes: 1 more peer pods run than the limit allows; a node with more of them than its share \
         advertises as many VMs as run on it, until they have ended"
    );
}

#[test]
fn the_finding_names_nodes_that_are_contested_or_unwritable() {
    let mut cluster = Cluster::workers(3);
    let mut summary = cluster.pass(&[limit(&json!(10))]).summaries.remove(0);
    let other = || Arc::<str>::from("node of another configuration");
    let mut written =
        Written { contested: vec!["node-1".into(), "node-2".into(), other()], ..Written::default() };
    summary.hindered(&written);
    let finding = summary.capacity();
    assert_eq!(finding.reason.as_str(), "Contested");
    assert!(
        finding.message.contains("; another program resets 2 of them again and again, for example node-1: "),
        "{}",
        finding.message
    );
    written.failed = vec![("a".into(), "another".into()), ("node-0".into(), "forbidden".into())];
    summary.hindered(&written);
    let finding = summary.capacity();
    assert_eq!((finding.reason.as_str(), finding.reason.status()), ("NodeWritesFail", false));
    assert!(
        finding.message.contains("3 nodes") && finding.message.contains("to node-0 fails: forbidden"),
        "{}",
        finding.message
    );
}

#[test]
fn where_no_adaptor_runs_nothing_is_advertised_and_what_others_do_stays() {
    let mut cluster = Cluster::workers(3);
    *cluster.of("node-0") = Facts::advertises(VM, 7);
    let requests = [NodeRequest { withheld: Some("another runs there".into()), ..limit(&json!(9)) }];
    let before = cluster.clone();
    let summary = cluster.pass(&requests).summaries.remove(0);
    assert_eq!((&cluster, summary.nodes, summary.advertised), (&before, 3, 0));
    let finding = summary.capacity();
    assert_eq!((finding.reason.as_str(), finding.reason.status()), ("NoAdaptor", false));
    assert!(finding.message.ends_with("another runs there"), "{}", finding.message);
    // It exists, and then it is removed.
    cluster.pass(&[limit(&json!(9))]);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [0, 0, 0]);
}

#[test]
fn a_node_whose_taint_keeps_the_adaptor_off_has_no_more_than_run_there() {
    let mut cluster = Cluster::workers(3);
    let requests = [limit(&json!(9))];
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    cluster.of("node-1").tainted = true;
    cluster.of("node-1").runs = 1;
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [4, 1, 4]);
    let summary = &cluster.pass(&requests).summaries[0];
    assert_eq!((summary.nodes, summary.tainted_own, summary.is_uneven), (3, 1, true));
    let finding = summary.capacity();
    assert_eq!(finding.reason.as_str(), "Advertised");
    assert_eq!(
        finding.message,
        "9 VMs on 3 nodes (1 of 3 selected nodes have taints that cloud-api-adaptor's Pods do not tolerate, for example \
         node-1 with for=db:NoSchedule; tolerate the taints in adaptor.tolerations, or change the selectors (if peer pods run, first \
         delete those of nodes that are then no longer selected, and set adaptor.updateStrategy.type to OnDelete in the same change); \
         these nodes advertise only as many VMs as peer pods run there)"
    );
    cluster.of("node-1").runs = 0;
    let each = request("config", &json!({ "limit": 2, "distribution": "PerNode" }));
    for (requests, expected) in [(&requests[..], [5, 0, 4]), (&[each], [2, 0, 2])] {
        cluster.pass(requests);
        assert_eq!(cluster.shares(), expected);
    }
    let tolerant =
        json!({ "limit": 9, "adaptor": { "tolerations": [{ "key": "for", "operator": "Exists" }] } });
    cluster.pass(&[request("config", &tolerant)]);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    for node in cluster.0.values_mut() {
        node.tainted = true;
    }
    cluster.of("node-0").runs = 11;
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [11, 0, 0]);
    let summary = &cluster.pass(&requests).summaries[0];
    assert_eq!((summary.pods_over_limit, summary.capacity().reason.as_str()), (2, "AllTainted"));
}
