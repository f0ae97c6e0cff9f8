//! Selectors that cannot be read.

use serde_json::json;

use super::{super::*, cluster::Cluster, deleted, limit, request};

#[test]
fn a_selector_that_cannot_be_read_leaves_nodes_as_they_are() {
    let mut cluster = Cluster::workers(2);
    let good = limit(&json!(4));
    cluster.pass(std::slice::from_ref(&good));
    let selector = json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] });
    let bad = request("config", &json!({ "limit": 9, "labelSelector": selector }));
    let plan = cluster.pass(std::slice::from_ref(&bad));
    assert!(plan.writes.is_empty());
    assert_eq!(plan.summaries[0].capacity().reason.as_str(), "InvalidSelector");
    assert_eq!(cluster.shares(), [2, 2]);
    // Its deletion is not held up by that.
    cluster.pass(&[deleted(bad)]);
    assert_eq!(cluster.shares(), [0, 0]);
}

#[test]
fn a_deletion_waits_for_nodes_that_another_unreadable_selector_keeps() {
    let mut cluster = Cluster::workers(3);
    for (node, of) in [("node-0", "a"), ("node-1", "a"), ("node-2", "b")] {
        cluster.of(node).labels.insert("of".into(), of.into());
    }
    let of = |name: &str| request(name, &json!({ "limit": 4, "nodeSelector": { "of": name } }));
    let (a, b) = (of("a"), of("b"));
    cluster.pass(&[a.clone(), b.clone()]);
    assert_eq!(cluster.shares(), [2, 2, 4]);
    let selector = json!({ "matchExpressions": [{ "key": "of", "operator": "Near" }] });
    let bad = request("b", &json!({ "limit": 4, "labelSelector": selector }));
    let plan = cluster.pass(&[deleted(a.clone()), bad.clone()]);
    assert_eq!((plan.writes.len(), plan.summaries[0].pending.len()), (0, 0));
    assert_eq!(plan.summaries[0].retained, Some((2, "b".to_owned())));
    assert_eq!(
        cluster.pass(&[a.clone(), bad.clone()]).summaries[0].retained,
        None,
        "it is not being deleted"
    );
    let other = NodeRequest { resource: "example.org/vm".into(), ..bad };
    assert_eq!(
        cluster.plan_after(&[deleted(a.clone()), other], InUse::default()).summaries[0].retained,
        None
    );
    let plan = cluster.pass(&[deleted(a.clone()), b.clone()]);
    assert_eq!((plan.summaries[0].pending.len(), &plan.summaries[0].retained), (2, &None));
    assert_eq!(cluster.shares(), [0, 0, 4]);
}

#[test]
fn an_unreadable_selector_that_never_deployed_holds_no_node_of_another() {
    let mut cluster = Cluster::workers(2);
    let good = limit(&json!(4));
    let selector = json!({ "matchExpressions": [{ "key": "a", "operator": "Near" }] });
    let bad = request("other", &json!({ "limit": 9, "labelSelector": selector }));
    let bad = NodeRequest { withheld: Some("the selector cannot be read".into()), ..bad };
    let requests = [good.clone(), bad.clone()];
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [2, 2]);
    // The other one gets its share, so it must not keep it.
    cluster.of("node-0").labels.clear();
    cluster.pass(&requests);
    assert_eq!(cluster.shares(), [0, 4]);
    let requests = [deleted(good), bad];
    assert_eq!(
        cluster.pass(&requests).summaries[0].pending.len(),
        1,
        "it is held until its nodes are cleared"
    );
    assert_eq!(cluster.shares(), [0, 0]);
    assert!(cluster.pass(&requests).writes.is_empty());
}
