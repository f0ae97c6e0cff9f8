use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    super::{
        node::{Texts, tests::view},
        write::Written,
    },
    *,
};
use crate::api::v1alpha1::PeerPodConfig;

const VM: &str = "kata.peerpods.io/vm";

/// Nodes as plain facts, which writes change as the API server would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cluster(BTreeMap<String, Facts>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    labels: BTreeMap<String, String>,
    resources: BTreeMap<String, u32>,
    mark: Option<String>,
    /// Whether it has a taint.
    tainted: bool,
    /// Peer pods that run.
    runs: u32,
}

impl Cluster {
    fn workers(count: usize) -> Self {
        Self((0..count).map(|number| (format!("node-{number}"), Facts::worker())).collect())
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        let node = |(name, facts): (&String, &Facts)| {
            let capacity: BTreeMap<_, _> =
                facts.resources.iter().map(|(name, vms)| (name, vms.to_string())).collect();
            let taints =
                facts.tainted.then(|| json!({ "key": "for", "value": "db", "effect": "NoSchedule" }));
            let taints: Vec<_> = taints.into_iter().collect();
            let fields =
                json!({ "labels": facts.labels, "capacity": capacity, "mark": facts.mark, "taints": taints });
            Arc::new(Node::new(&view(name, &fields), &mut Texts::default()))
        };
        self.0.iter().map(node).collect()
    }

    fn of(&mut self, name: &str) -> &mut Facts {
        self.0.get_mut(name).unwrap()
    }

    /// What is advertised of the usual resource; 0 where there is none.
    fn shares(&self) -> Vec<u32> {
        self.0.values().map(|facts| facts.resources.get(VM).copied().unwrap_or(0)).collect()
    }

    /// What a pass does; its plan.
    fn pass(&mut self, claims: &[Claim]) -> Plan {
        self.pass_after(claims, InUse::default())
    }

    /// What a pass does that knows something of former ones; its plan.
    fn pass_after(&mut self, claims: &[Claim], mut in_use: InUse) -> Plan {
        let mut rounds = 0;
        let plan = loop {
            let plan = plan(claims, &self.nodes(), &in_use);
            if plan.uncounted.is_empty() {
                break plan;
            }
            rounds += 1;
            assert!(rounds <= self.0.len(), "each round asks for others");
            for node in &plan.uncounted {
                in_use.add(node.clone(), [(VM.to_owned(), self.0[&**node].runs)].into());
            }
        };
        for write in &plan.writes {
            let facts = self.of(&write.node);
            for (resource, vms) in &write.resources {
                match vms {
                    Some(vms) => facts.resources.insert(resource.clone(), *vms),
                    None => facts.resources.remove(resource),
                };
            }
            facts.mark.clone_from(&write.mark);
        }
        plan
    }
}

impl Facts {
    fn worker() -> Self {
        Self { labels: [("node.kubernetes.io/worker".to_owned(), String::new())].into(), ..Self::default() }
    }

    fn advertises(resource: &str, vms: u32) -> Self {
        Self { resources: [(resource.to_owned(), vms)].into(), ..Self::worker() }
    }
}

fn claim(name: &str, spec: &Value) -> Claim {
    let config: PeerPodConfig = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": name },
        "spec": spec,
    }))
    .unwrap();
    Claim::of(&config)
}

fn limit(limit: &Value) -> Claim {
    claim("config", &json!({ "limit": limit }))
}

fn deleted(claim: Claim) -> Claim {
    Claim { deleted: true, ..claim }
}

#[test]
fn ten_over_three_nodes_and_then_nothing_more_is_written() {
    let mut cluster = Cluster::workers(3);
    let claims = [limit(&json!(10))];
    let plan = cluster.pass(&claims);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (3, 3));
    assert_eq!(cluster.shares(), [4, 3, 3]);
    let plan = cluster.pass(&claims);
    assert!(plan.writes.is_empty() && plan.uncounted.is_empty());
    let summary = &plan.summaries[0];
    assert_eq!((summary.nodes, summary.advertised, summary.pending.len()), (3, 10, 0));
    assert_eq!(summary.capacity().message, "10 VMs on 3 nodes");
    assert!(summary.capacity().reason.status());
}

#[test]
fn a_node_that_joins_leaves_or_is_recreated_costs_the_fewest_writes() {
    let mut cluster = Cluster::workers(5);
    let claims = [limit(&json!(10))];
    cluster.pass(&claims);
    cluster.0.insert("late".into(), Facts::worker());
    // What is taken away goes first.
    let writes = cluster.pass(&claims).writes;
    assert_eq!((writes.len(), &*writes[0].node, &*writes[1].node), (2, "node-4", "late"));
    assert_eq!(cluster.shares(), [1, 2, 2, 2, 2, 1]);
    cluster.0.remove("late");
    assert_eq!(cluster.pass(&claims).writes.len(), 1);
    *cluster.of("node-2") = Facts::worker();
    assert_eq!(cluster.pass(&claims).writes.len(), 1);
    assert_eq!(cluster.shares(), [2; 5]);
}

#[test]
fn a_node_that_was_reset_or_stripped_is_put_right() {
    let claims = [limit(&json!(10))];
    for reset in [Some(0), None, Some(99)] {
        let mut cluster = Cluster::workers(3);
        cluster.pass(&claims);
        let advertised = cluster.shares();
        let resources = &mut cluster.of("node-1").resources;
        resources.clear();
        resources.extend(reset.map(|vms| (VM.to_owned(), vms)));
        assert_eq!(cluster.pass(&claims).writes.len(), 1, "{reset:?}");
        assert_eq!(cluster.shares(), advertised);
    }
    // A kubelet has not yet followed.
    let mut cluster = Cluster::workers(1);
    cluster.pass(&claims);
    let fields = json!({ "capacity": { VM: "10" }, "allocatable": {}, "mark": VM, "labels": cluster.of("node-0").labels });
    let node = Node::new(&view("node-0", &fields), &mut Texts::default());
    assert_eq!(plan(&claims, &[node.into()], &InUse::default()).uncounted, []);
    let node = Node::new(&view("node-0", &fields), &mut Texts::default());
    assert_eq!(plan(&claims, &[node.into()], &InUse::default()).writes.len(), 1);
}

#[test]
fn nodes_that_are_no_longer_meant_lose_what_was_advertised_for_us_and_no_other() {
    let mut cluster = Cluster::workers(2);
    cluster.0.insert("foreign".into(), Facts { labels: BTreeMap::new(), ..Facts::advertises(VM, 7) });
    let claims = [limit(&json!(10))];
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [7, 5, 5]);
    cluster.of("node-0").labels.clear();
    assert_eq!(cluster.pass(&claims).writes.len(), 2);
    assert_eq!(cluster.shares(), [7, 0, 10]);
    assert_eq!(cluster.of("node-0"), &Facts::default());
    let plan = cluster.pass(&[deleted(claims[0].clone())]);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (1, 1));
    let plan = cluster.pass(&[deleted(claims[0].clone())]);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (0, 0));
    assert_eq!(cluster.shares(), [7, 0, 0]);
    // The same without any configuration: one that went while nobody watched.
    cluster.pass(&claims);
    cluster.pass(&[]);
    assert_eq!(cluster.shares(), [7, 0, 0]);
}

#[test]
fn what_somebody_else_advertised_on_selected_nodes_is_taken_over() {
    let mut cluster = Cluster::workers(2);
    *cluster.of("node-0") = Facts::advertises(VM, 5);
    *cluster.of("node-1") = Facts::advertises(VM, 10);
    let claims = [limit(&json!(10))];
    assert_eq!(cluster.pass(&claims).writes.len(), 2, "the mark alone is a write");
    assert_eq!(cluster.shares(), [5, 5]);
    cluster.pass(&[deleted(claims[0].clone())]);
    assert_eq!(cluster.shares(), [0, 0]);
}

#[test]
fn another_resource_takes_the_place_of_the_former_by_one_write() {
    let mut cluster = Cluster::workers(2);
    let mut claims = [limit(&json!(10))];
    cluster.pass(&claims);
    claims[0].resource = "example.org/vm".into();
    assert_eq!(cluster.pass(&claims).writes.len(), 2);
    for facts in cluster.0.values() {
        assert_eq!(facts.resources, [("example.org/vm".to_owned(), 5)].into());
        assert_eq!(facts.mark.as_deref(), Some("example.org/vm"));
    }
    claims[0].resource = "memory".into();
    let plan = cluster.pass(&claims);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.summaries[0].capacity().reason.as_str(), "InvalidResource");
}

#[test]
fn the_older_of_two_has_the_nodes_that_both_select() {
    let mut cluster = Cluster::workers(3);
    cluster.of("node-2").labels.insert("zone".into(), "x".into());
    let at = |seconds| Some(jiff::Timestamp::from_second(seconds).unwrap());
    let all = Claim { created: at(2), ..claim("all", &json!({ "limit": 4 })) };
    let zone = claim("zone", &json!({ "limit": 9, "nodeSelector": { "zone": "x" } }));
    let zone = Claim { created: at(1), ..zone };
    for claims in [[all.clone(), zone.clone()], [zone.clone(), all.clone()]] {
        cluster.pass(&claims);
        assert_eq!(cluster.shares(), [2, 2, 9]);
        let summaries = cluster.pass(&claims).summaries;
        let summary = summaries.iter().find(|summary| summary.name == "all").unwrap();
        assert_eq!((summary.nodes, summary.advertised), (3, 4));
        let conflict = summary.conflict().unwrap();
        assert!(conflict.contains("1 to PeerPodConfig zone"), "{conflict}");
        assert!(summaries.iter().any(|summary| summary.name == "zone" && summary.conflict().is_none()));
    }
    // With the older one's deletion the younger has them.
    let plan = cluster.pass(&[all.clone(), deleted(zone.clone())]);
    assert_eq!(cluster.shares(), [2, 1, 1]);
    assert_eq!(plan.summaries[1].pending.len(), 0, "none of its nodes is left to be cleared");
    let twin = Claim { created: at(2), ..claim("twin", &json!({ "limit": 1 })) };
    let summaries = cluster.pass(&[twin, all]).summaries;
    assert_eq!(summaries[0].capacity().reason.as_str(), "AllTaken");
}

#[test]
fn every_limit_has_its_meaning() {
    let reason = |cluster: &mut Cluster, value: Value| {
        let claims = [limit(&value)];
        cluster.pass(&claims);
        let verdict = cluster.pass(&claims).summaries[0].capacity();
        (cluster.shares(), verdict.reason.as_str(), verdict.reason.status())
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
    let claims = [claim("config", &json!({ "limit": 4, "distribution": "PerNode" }))];
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [4, 4, 4]);
    cluster.of("node-1").runs = 4;
    let claims = [claim("config", &json!({ "limit": 3, "distribution": "PerNode" }))];
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [3, 4, 3]);
    let summary = &cluster.pass(&claims).summaries[0];
    assert_eq!((summary.beyond, summary.uneven, summary.capacity().reason.as_str()), (1, true, "MoreInUse"));
}

#[test]
fn no_node_advertises_fewer_than_run_there() {
    let mut cluster = Cluster::workers(1);
    let claims = [limit(&json!(10))];
    cluster.pass(&claims);
    cluster.of("node-0").runs = 8;
    for late in ["node-1", "node-2"] {
        cluster.0.insert(late.into(), Facts::worker());
    }
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    let plan = cluster.pass(&claims);
    assert!(plan.writes.is_empty() && plan.summaries[0].uneven);
    // Whoever reset it did not ask what runs there.
    cluster.of("node-0").resources.insert(VM.into(), 0);
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    cluster.of("node-0").runs = 0;
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [4, 3, 3]);
}

#[test]
fn what_is_remembered_spares_questions_and_takes_no_room_away() {
    let mut cluster = Cluster::workers(3);
    let of = |vms: u32| InUse::remembered([("node-0".into(), [(VM.to_owned(), vms)].into())].into());
    let claims = [limit(&json!(10))];
    *cluster.of("node-0") = Facts { runs: 8, mark: Some(VM.into()), ..Facts::advertises(VM, 8) };
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    assert!(
        !plan(&claims, &cluster.nodes(), &InUse::default()).is_settled(),
        "without it, node-0 is asked for"
    );
    assert!(plan(&claims, &cluster.nodes(), &of(8)).is_settled());
    // One that is to have less is asked all the same, and so has as many as run there now.
    let planned = cluster.pass_after(&claims, of(3));
    assert!(planned.is_settled());
    let claims = [limit(&json!(6))];
    assert_eq!(plan(&claims, &cluster.nodes(), &of(3)).uncounted, ["node-0".into()]);
    cluster.of("node-0").runs = 4;
    let planned = cluster.pass_after(&claims, of(3));
    assert_eq!((cluster.shares(), planned.lowered), (vec![4, 1, 1], vec!["node-0".into()]));
    // A peer pod that was on its way is seen by the second look.
    cluster.of("node-0").runs = 5;
    let mut second_look = InUse::default();
    second_look.add("node-0".into(), [(VM.to_owned(), 5)].into());
    cluster.pass_after(&claims, second_look);
    assert_eq!(cluster.shares(), [5, 1, 0]);
}

#[test]
fn a_limit_of_0_asks_nobody_what_runs() {
    let mut cluster = Cluster::workers(2);
    cluster.pass(&[limit(&json!(10))]);
    cluster.of("node-0").runs = 3;
    let plan = plan(&[limit(&json!(0))], &cluster.nodes(), &InUse::default());
    assert_eq!((plan.uncounted.len(), plan.writes.len(), plan.lowered.len()), (0, 2, 0));
}

#[test]
fn what_keeps_nodes_from_being_written_to_is_told() {
    let mut cluster = Cluster::workers(3);
    let mut summary = cluster.pass(&[limit(&json!(10))]).summaries.remove(0);
    let other = || Arc::<str>::from("node of another configuration");
    let mut written =
        Written { contested: vec!["node-1".into(), "node-2".into(), other()], ..Written::default() };
    summary.hindered(&written);
    let told = summary.capacity();
    assert_eq!(told.reason.as_str(), "Contested");
    assert!(
        told.message.contains("; 2 of them are reset") && told.message.contains("node-1 among"),
        "{}",
        told.message
    );
    written.failed = vec![("a".into(), "another".into()), ("node-0".into(), "forbidden".into())];
    summary.hindered(&written);
    let told = summary.capacity();
    assert_eq!((told.reason.as_str(), told.reason.status()), ("NodeWritesFail", false));
    assert!(
        told.message.contains("3 nodes") && told.message.contains("to node-0 fails: forbidden"),
        "{}",
        told.message
    );
}

#[test]
fn where_no_adaptor_runs_nothing_is_advertised_and_what_others_do_stays() {
    let mut cluster = Cluster::workers(3);
    *cluster.of("node-0") = Facts::advertises(VM, 7);
    let claims = [Claim { withheld: Some("another runs there".into()), ..limit(&json!(9)) }];
    let before = cluster.clone();
    let summary = cluster.pass(&claims).summaries.remove(0);
    assert_eq!((&cluster, summary.nodes, summary.advertised), (&before, 3, 0));
    let told = summary.capacity();
    assert_eq!((told.reason.as_str(), told.reason.status()), ("NoAdaptor", false));
    assert!(told.message.ends_with("another runs there"), "{}", told.message);
    // It is there, and then it goes.
    cluster.pass(&[limit(&json!(9))]);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [0, 0, 0]);
}

#[test]
fn a_node_whose_taint_keeps_the_adaptor_off_has_no_more_than_run_there() {
    let mut cluster = Cluster::workers(3);
    let claims = [limit(&json!(9))];
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    cluster.of("node-1").tainted = true;
    cluster.of("node-1").runs = 1;
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [4, 1, 4]);
    let summary = &cluster.pass(&claims).summaries[0];
    assert_eq!((summary.nodes, summary.closed, summary.uneven), (3, 1, true));
    let told = summary.capacity();
    assert_eq!(told.reason.as_str(), "Advertised");
    assert!(told.message.contains("node-1 with the taint for=db:NoSchedule"), "{}", told.message);
    cluster.of("node-1").runs = 0;
    let each = claim("config", &json!({ "limit": 2, "distribution": "PerNode" }));
    for (claims, expected) in [(&claims[..], [5, 0, 4]), (&[each], [2, 0, 2])] {
        cluster.pass(claims);
        assert_eq!(cluster.shares(), expected);
    }
    let tolerant =
        json!({ "limit": 9, "adaptor": { "tolerations": [{ "key": "for", "operator": "Exists" }] } });
    cluster.pass(&[claim("config", &tolerant)]);
    assert_eq!(cluster.shares(), [3, 3, 3]);
    for node in cluster.0.values_mut() {
        node.tainted = true;
    }
    cluster.of("node-0").runs = 11;
    cluster.pass(&claims);
    assert_eq!(cluster.shares(), [11, 0, 0]);
    let summary = &cluster.pass(&claims).summaries[0];
    assert_eq!((summary.beyond, summary.capacity().reason.as_str()), (2, "AllTainted"));
}

#[test]
fn a_selector_that_cannot_be_read_leaves_nodes_as_they_are() {
    let mut cluster = Cluster::workers(2);
    let good = limit(&json!(4));
    cluster.pass(std::slice::from_ref(&good));
    let selector = json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] });
    let bad = claim("config", &json!({ "limit": 9, "labelSelector": selector }));
    let plan = cluster.pass(std::slice::from_ref(&bad));
    assert!(plan.writes.is_empty());
    assert_eq!(plan.summaries[0].capacity().reason.as_str(), "InvalidSelector");
    assert_eq!(cluster.shares(), [2, 2]);
    // Its deletion is not held up by that.
    cluster.pass(&[deleted(bad)]);
    assert_eq!(cluster.shares(), [0, 0]);
}

fn facts() -> impl Strategy<Value = Facts> {
    let vms = prop_oneof![2 => Just(None), 3 => (0_u32..8).prop_map(Some)];
    let resources = (vms.clone(), vms).prop_map(|(vm, other)| {
        let both = [(VM, vm), ("example.org/vm", other)];
        both.into_iter().filter_map(|(name, vms)| Some((name.to_owned(), vms?))).collect()
    });
    let mark = prop::option::of(prop::sample::select(vec![VM.to_owned(), "example.org/vm".into()]));
    let labels = (any::<bool>(), any::<bool>()).prop_map(|(worker, zone)| {
        let mut labels = if worker { Facts::worker().labels } else { BTreeMap::new() };
        labels.extend(zone.then(|| ("zone".to_owned(), "x".to_owned())));
        labels
    });
    let tainted = prop::bool::weighted(0.2);
    (labels, resources, mark, tainted, prop_oneof![2 => Just(0), 1 => 0_u32..6])
        .prop_map(|(labels, resources, mark, tainted, runs)| Facts { labels, resources, mark, tainted, runs })
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let limit = prop::sample::select(vec![json!(null), json!(0), json!("7"), json!(12), json!("x")]);
    let selectors = prop::sample::select(vec![
        json!({}),
        json!({ "nodeSelector": { "zone": "x" } }),
        json!({ "labelSelector": {} }),
    ]);
    let resource = prop::sample::select(vec![VM, "example.org/vm"]);
    let withheld = prop::bool::weighted(0.2).prop_map(|withheld| withheld.then(|| "why".to_owned()));
    let one = (limit, selectors, resource, any::<bool>(), any::<bool>(), withheld, 0..3_i64);
    let one = one.prop_map(|(limit, mut spec, resource, total, deleted, withheld, created)| {
        spec["limit"] = limit;
        spec["distribution"] = json!(if total { "Total" } else { "PerNode" });
        spec["admission"] = json!({ "extendedResource": resource });
        let created = jiff::Timestamp::from_second(created).ok();
        Claim { created, deleted, withheld, ..claim("", &spec) }
    });
    prop::collection::vec(one, 0..4).prop_map(|mut claims| {
        for (index, claim) in claims.iter_mut().enumerate() {
            claim.name = format!("config-{index}");
        }
        claims
    })
}

proptest! {
    #[test]
    fn from_any_state_one_pass_brings_peace(
        nodes in prop::collection::vec(facts(), 0..8),
        claims in claims(),
    ) {
        let nodes = nodes.into_iter().enumerate().map(|(index, facts)| (format!("node-{index}"), facts));
        let mut cluster = Cluster(nodes.collect());
        let before = cluster.clone();
        let first = cluster.pass(&claims);
        let mut written: Vec<_> = first.writes.iter().map(|write| &write.node).collect();
        written.sort();
        written.dedup();
        prop_assert_eq!(written.len(), first.writes.len(), "a node is written once");
        let after = cluster.clone();
        let second = cluster.pass(&claims);
        prop_assert!(second.writes.is_empty(), "{:?}", second.writes);
        prop_assert!(second.summaries.iter().all(|summary| summary.pending.is_empty()));
        prop_assert_eq!(&cluster, &after);
        for (name, facts) in &cluster.0 {
            // Whatever we leave is marked as ours, and is never a share of 0.
            let mark = facts.mark.as_deref();
            prop_assert!(mark.is_none_or(|mark| facts.resources.get(mark).is_some_and(|vms| *vms > 0)) || first.writes.iter().all(|write| *write.node != **name));
            for (resource, vms) in &before.0[name].resources {
                let was_ours = before.0[name].mark.as_ref() == Some(resource);
                let is_claimed = claims.iter().any(|claim| {
                    !claim.deleted && claim.withheld.is_none() && claim.resource == *resource
                });
                prop_assert!(was_ours || is_claimed || facts.resources.get(resource) == Some(vms), "foreign");
            }
        }
    }

    #[test]
    fn whatever_is_remembered_nobody_who_runs_loses_room(
        nodes in prop::collection::vec(facts(), 1..8),
        claims in claims(),
        remembered in prop::collection::vec(0_u32..12, 8),
    ) {
        let nodes = nodes.into_iter().enumerate().map(|(index, facts)| (format!("node-{index}"), facts));
        let mut cluster = Cluster(nodes.collect());
        let before = cluster.clone();
        let remembered = cluster.0.keys().zip(remembered);
        let remembered = remembered.map(|(node, vms)| (node.as_str().into(), [(VM.to_owned(), vms)].into()));
        let in_use = InUse::remembered(remembered.collect());
        let plan = cluster.pass_after(&claims, in_use);
        for write in &plan.writes {
            let facts = &cluster.0[&*write.node];
            let was = before.0[&*write.node].resources.get(VM).copied().unwrap_or(0);
            if let Some(Some(vms)) = write.resources.get(VM) {
                prop_assert!(*vms >= facts.runs || *vms >= was && was > 0, "{:?} of {was}, and {facts:?}", write);
            }
        }
    }

    #[test]
    fn after_all_are_deleted_nothing_marked_is_left(
        nodes in prop::collection::vec(facts(), 0..8),
        claims in claims(),
    ) {
        let nodes = nodes.into_iter().enumerate().map(|(index, facts)| (format!("node-{index}"), facts));
        let mut cluster = Cluster(nodes.collect());
        cluster.pass(&claims);
        let marked: Vec<_> = cluster.0.iter().filter_map(|(name, facts)| Some((name.clone(), facts.mark.clone()?))).collect();
        let gone: Vec<_> = claims.into_iter().map(deleted).collect();
        cluster.pass(&gone);
        for (name, mark) in marked {
            prop_assert!(!cluster.of(&name).resources.contains_key(&mark));
        }
        prop_assert!(cluster.0.values().all(|facts| facts.mark.is_none()));
    }
}
