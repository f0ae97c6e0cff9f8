//! Nodes where peer pods run.

use serde_json::json;

use super::{
    super::*,
    VM,
    cluster::{Cluster, Facts},
    limit,
};

#[test]
fn no_node_advertises_fewer_than_run_there() {
    let mut cluster = Cluster::workers(1);
    let requests = [limit(&json!(10))];
    cluster.pass(&requests);
    cluster.of("node-0").runs = 8;
    for late in ["node-1", "node-2"] {
        cluster.0.insert(late.into(), Facts::worker());
    }
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    let plan = cluster.pass(&requests);
    assert!(plan.writes.is_empty() && plan.summaries[0].is_uneven);
    // The reset ignored what runs there.
    cluster.of("node-0").resources.insert(VM.into(), 0);
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    cluster.of("node-0").runs = 0;
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [4, 3, 3]);
}

#[test]
fn remembered_counts_save_requests_and_take_no_capacity_in_use() {
    let mut cluster = Cluster::workers(3);
    let of = |vms: u32| InUse::remembered([("node-0".into(), [(VM.to_owned(), vms)].into())].into());
    let requests = [limit(&json!(10))];
    *cluster.of("node-0") = Facts { runs: 8, mark: Some(VM.into()), ..Facts::advertises(VM, 8) };
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [8, 1, 1]);
    assert!(
        !plan(&requests, &cluster.nodes(), &InUse::default()).is_settled(),
        "without it, node-0 is asked for"
    );
    assert!(plan(&requests, &cluster.nodes(), &of(8)).is_settled());
    // A node that must get less is still counted, and so keeps as many as run there now.
    let planned = cluster.pass_after(&requests, of(3));
    assert!(planned.is_settled());
    let requests = [limit(&json!(6))];
    assert_eq!(plan(&requests, &cluster.nodes(), &of(3)).uncounted, ["node-0".into()]);
    cluster.of("node-0").runs = 4;
    let planned = cluster.pass_after(&requests, of(3));
    assert_eq!((cluster.shares(), planned.lowered), (vec![4, 1, 1], vec!["node-0".into()]));
    // The second look sees a peer pod that was on its way.
    cluster.of("node-0").runs = 5;
    let mut second_look = InUse::default();
    second_look.add("node-0".into(), [(VM.to_owned(), 5)].into());
    cluster.pass_after(&requests, second_look);
    assert_eq!(cluster.shares(), [5, 1, 0]);
}

#[test]
fn a_peer_pod_that_came_while_a_node_lost_its_share_counts() {
    let mut cluster = Cluster::workers(2);
    cluster.pass(&[limit(&json!(4))]);
    let requests = [limit(&json!(1))];
    let planned = cluster.pass(&requests);
    assert_eq!((cluster.shares(), planned.lowered.len()), (vec![1, 0], 2), "both are counted again");
    cluster.of("node-1").runs = 1;
    let mut second_look = InUse::default();
    second_look.add("node-0".into(), BTreeMap::new());
    second_look.add("node-1".into(), [(VM.to_owned(), 1)].into());
    cluster.pass_after(&requests, second_look);
    assert_eq!(cluster.shares(), [0, 1]);
}

#[test]
fn a_limit_of_0_needs_no_count_of_running_vms() {
    let mut cluster = Cluster::workers(2);
    cluster.pass(&[limit(&json!(10))]);
    cluster.of("node-0").runs = 3;
    let plan = plan(&[limit(&json!(0))], &cluster.nodes(), &InUse::default());
    assert_eq!((plan.uncounted.len(), plan.writes.len(), plan.lowered.len()), (0, 2, 0));
}
