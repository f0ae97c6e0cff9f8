//! What holds for all nodes and configurations.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::{
    super::*,
    VM,
    cluster::{Cluster, Facts},
    deleted, request,
};

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

fn requests() -> impl Strategy<Value = Vec<NodeRequest>> {
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
        NodeRequest { created, deleted, withheld, ..request("", &spec) }
    });
    prop::collection::vec(one, 0..4).prop_map(|mut requests| {
        for (index, request) in requests.iter_mut().enumerate() {
            request.name = format!("config-{index}");
        }
        requests
    })
}

proptest! {
    #[test]
    fn one_pass_reaches_a_stable_state_from_any_state(
        nodes in prop::collection::vec(facts(), 0..8),
        requests in requests(),
    ) {
        let mut cluster = Cluster::numbered(nodes);
        let before = cluster.clone();
        let first = cluster.pass(&requests);
        let mut written: Vec<_> = first.writes.iter().map(|write| &write.node).collect();
        written.sort();
        written.dedup();
        prop_assert_eq!(written.len(), first.writes.len(), "a node is written once");
        let after = cluster.clone();
        let second = cluster.pass(&requests);
        prop_assert!(second.writes.is_empty(), "{:?}", second.writes);
        prop_assert!(second.summaries.iter().all(|summary| summary.pending.is_empty()));
        prop_assert_eq!(&cluster, &after);
        for (name, facts) in &cluster.0 {
            // Whatever we leave is marked as ours, and is never a share of 0.
            let mark = facts.mark.as_deref();
            prop_assert!(mark.is_none_or(|mark| facts.resources.get(mark).is_some_and(|vms| *vms > 0)) || first.writes.iter().all(|write| *write.node != **name));
            for (resource, vms) in &before.0[name].resources {
                let was_ours = before.0[name].mark.as_ref() == Some(resource);
                let is_claimed = requests.iter().any(|request| {
                    !request.deleted && request.withheld.is_none() && request.resource == *resource
                });
                prop_assert!(was_ours || is_claimed || facts.resources.get(resource) == Some(vms), "foreign");
            }
        }
    }

    #[test]
    fn remembered_counts_never_take_capacity_in_use(
        nodes in prop::collection::vec(facts(), 1..8),
        requests in requests(),
        remembered in prop::collection::vec(0_u32..12, 8),
    ) {
        let mut cluster = Cluster::numbered(nodes);
        let before = cluster.clone();
        let remembered = cluster.0.keys().zip(remembered);
        let remembered = remembered.map(|(node, vms)| (node.as_str().into(), [(VM.to_owned(), vms)].into()));
        let in_use = InUse::remembered(remembered.collect());
        let plan = cluster.pass_after(&requests, in_use);
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
        requests in requests(),
    ) {
        let mut cluster = Cluster::numbered(nodes);
        cluster.pass(&requests);
        let marked: Vec<_> = cluster.0.iter().filter_map(|(name, facts)| Some((name.clone(), facts.mark.clone()?))).collect();
        let gone: Vec<_> = requests.into_iter().map(deleted).collect();
        cluster.pass(&gone);
        for (name, mark) in marked {
            prop_assert!(!cluster.of(&name).resources.contains_key(&mark));
        }
        prop_assert!(cluster.0.values().all(|facts| facts.mark.is_none()));
    }
}
