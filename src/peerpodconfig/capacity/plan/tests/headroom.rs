//! Nodes that cannot be written to.

use proptest::prelude::*;
use serde_json::json;

use super::{
    super::*,
    VM,
    cluster::{Cluster, Facts},
    limit, request,
};

/// A pass in which some nodes refuse writes. Returns the most VMs that nodes had meanwhile, and whether another pass is due at once.
fn pass(cluster: &mut Cluster, requests: &[NodeRequest], refuses: impl Fn(&str) -> bool) -> (u32, bool) {
    let Plan { writes, mut headroom, .. } = cluster.plan_after(requests, InUse::default());
    let mut most = total(cluster);
    for group in headroom.groups(writes) {
        let fitting: Vec<_> = group.into_iter().filter_map(|write| headroom.fit(write)).collect();
        for write in fitting.iter().filter(|write| !refuses(&write.node)) {
            cluster.write(write);
            headroom.done(&write.node);
            most = most.max(total(cluster));
        }
    }
    (most, headroom.can_give_more())
}

/// How many VMs all nodes advertise together, or run on selected ones.
fn total(cluster: &Cluster) -> u32 {
    let of = |facts: &Facts| {
        let advertised = facts.resources.get(VM).copied().unwrap_or(0);
        if facts.labels.is_empty() { advertised } else { advertised.max(facts.runs) }
    };
    cluster.0.values().map(of).sum()
}

#[test]
fn a_surplus_on_a_node_that_refuses_writes_is_not_given_to_others() {
    let mut cluster = Cluster::workers(2);
    let requests = [limit(&json!(10))];
    cluster.pass(&requests);
    cluster.0.insert("late".into(), Facts::worker());
    for (refusing, expected) in [("node", [0, 5, 5]), ("node-0", [2, 5, 3]), ("none", [3, 4, 3])] {
        for _ in 0..2 {
            let (most, more) = pass(&mut cluster, &requests, |node| node.starts_with(refusing));
            assert_eq!((cluster.shares(), most, more), (expected.to_vec(), 10, false), "{refusing}");
        }
    }
}

#[test]
fn a_node_that_was_reset_has_room_for_what_runs_there_at_least() {
    for (vms, expected) in [(8, [5, 3]), (6, [5, 2])] {
        let mut cluster = Cluster::workers(2);
        cluster.pass(&[limit(&json!(10))]);
        let node = cluster.of("node-1");
        node.runs = 2;
        node.resources.insert(VM.into(), 0);
        pass(&mut cluster, &[limit(&json!(vms))], |node| node == "node-0");
        assert_eq!(cluster.shares(), expected);
    }
}

/// A node of a zone.
fn in_zone(zone: &str) -> Facts {
    Facts { labels: [("zone".to_owned(), zone.to_owned())].into(), ..Facts::default() }
}

#[test]
fn no_node_waits_for_those_of_another_limit() {
    let requests = |of_a: u32| {
        [("a", "Total", of_a), ("b", "Total", 2), ("c", "PerNode", 2)].map(|(zone, distribution, limit)| {
            let selector = json!({ "zone": zone });
            request(zone, &json!({ "nodeSelector": selector, "limit": limit, "distribution": distribution }))
        })
    };
    let mut cluster = Cluster::numbered(["a", "a", "b", "c", "c"].map(in_zone));
    cluster.pass(&requests(8));
    assert_eq!(cluster.shares(), [4, 4, 2, 2, 2]);
    for (node, reset) in [("node-2", 0), ("node-3", 9), ("node-4", 0)] {
        cluster.of(node).resources.insert(VM.into(), reset);
    }
    pass(&mut cluster, &requests(4), |node| ["node-0", "node-3"].contains(&node));
    assert_eq!(cluster.shares(), [4, 2, 2, 9, 2]);
}

#[test]
fn nodes_that_swap_their_resources_do_not_wait_for_each_other_for_ever() {
    let mut cluster = Cluster::numbered(["a", "b"].map(in_zone));
    let requests = |resources: [&str; 2]| {
        let of = |zone: &str, resource: &str| {
            let admission = json!({ "extendedResource": resource });
            request(zone, &json!({ "nodeSelector": { "zone": zone }, "limit": 5, "admission": admission }))
        };
        [of("a", resources[0]), of("b", resources[1])]
    };
    let other = "example.org/vm";
    cluster.pass(&requests([VM, other]));
    assert_eq!(cluster.shares(), [5, 0]);
    let before = cluster;
    for (refusing, expected) in [("node-0", [5, 0]), ("none", [0, 0])] {
        let (mut cluster, swapped) = (before.clone(), requests([other, VM]));
        let (_, more) = pass(&mut cluster, &swapped, |node| node == refusing);
        assert_eq!((cluster.shares(), more), (expected.to_vec(), true), "each loses what it had");
        let mut passes = 1;
        while let (most, true) = pass(&mut cluster, &swapped, |_| false) {
            passes += 1;
            assert!(most <= 5 && passes <= 2, "{cluster:?}");
        }
        assert_eq!(cluster.shares(), [0, 5]);
        assert_eq!(cluster.of("node-0").resources[other], 5);
    }
}

/// A node, and whether it refuses writes.
fn node() -> impl Strategy<Value = (Facts, bool)> {
    let selected = prop::bool::weighted(0.8);
    (0_u32..8, 0_u32..8, selected, prop::bool::weighted(0.3)).prop_map(|(vms, runs, selected, refuses)| {
        let resources = (vms > 0).then(|| (VM.to_owned(), vms)).into_iter().collect();
        let mark = (vms > 0).then(|| VM.to_owned());
        // More peer pods than it advertises run on a node that was reset alone.
        let runs = if vms > 0 { runs.min(vms) } else { runs };
        let labels = if selected { Facts::worker().labels } else { BTreeMap::new() };
        (Facts { labels, resources, mark, runs, ..Facts::default() }, refuses)
    })
}

proptest! {
    #[test]
    fn failed_writes_never_raise_the_total_above_before_and_plan(
        nodes in prop::collection::vec(node(), 1..8),
        vms in 1_u32..20,
    ) {
        let refusing: Vec<_> = nodes.iter().map(|(_, refuses)| *refuses).collect();
        let mut cluster = Cluster::numbered(nodes.into_iter().map(|(facts, _)| facts));
        let refuses: BTreeMap<_, _> = cluster.0.keys().cloned().zip(refusing).collect();
        let requests = [limit(&json!(vms))];
        let before = total(&cluster);
        let mut all = cluster.clone();
        let (most, _) = pass(&mut all, &requests, |_| false);
        let planned = total(&all);
        prop_assert!(most <= before.max(planned));
        let (most, more) = pass(&mut cluster, &requests, |node| refuses[node]);
        prop_assert!(most <= before.max(planned), "{} of {} and {}: {:?}", most, before, planned, cluster);
        prop_assert!(!more);
        // When all nodes can be written to again, a few passes bring peace. Each counts the peer pods of the nodes that it changes.
        let mut pass_then_peace = || {
            pass(&mut cluster, &requests, |_| false);
            cluster.plan_after(&requests, InUse::default()).writes.is_empty()
        };
        prop_assert!((0..3).any(|_| pass_then_peace()));
    }
}
