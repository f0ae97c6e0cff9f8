use std::collections::HashMap;

use operator_kit::{
    backoff::BASE,
    testing::{Answer, ApiServer, Call},
};

use super::{
    super::{
        in_use::InUse,
        node::{Node, Texts, tests::view},
        node_request::NodeRequest,
        plan::{Plan, plan},
    },
    *,
};

#[test]
fn a_delayed_node_waits_although_others_are_forgotten() {
    let (mut failures, now) = (Failures::default(), Instant::now());
    let write = |node: usize| NodeWrite {
        node: node.to_string().into(),
        uid: node.to_string().into(),
        resources: BTreeMap::new(),
        mark: None,
    };
    let all: Vec<_> = (0..failures::MANY).map(write).collect();
    failures.failed(&all[0].node, "no".into());
    failures.ended(all[1..].iter().map(|write| write.node.clone()), now);
    assert!(all.iter().all(|write| failures.delays(&write.node, now)));
    let fewer = all[1..].to_vec();
    for _ in 0..2 {
        assert_eq!(due(&mut failures, fewer.clone(), now), []);
    }
    assert_eq!(due(&mut failures, fewer.clone(), now + BASE), fewer);
}

const VM: &str = "kata.peerpods.io/vm";

/// A limit of 4 for the node `full`, which has all of it, and the node `new`, which has none.
fn planned() -> Plan {
    planned_of([4, 0])
}

/// A limit of 4 for the nodes `full` and `new`, which have these numbers of VMs.
fn planned_of([full, new]: [u32; 2]) -> Plan {
    let config = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
        "metadata": { "name": "config" }, "spec": { "limit": 4 },
    }));
    let request = NodeRequest::of(&config.unwrap());
    let node = |name: &str, mark: Option<&str>, capacity: Value| {
        let labels = json!({ "node.kubernetes.io/worker": "" });
        let fields = json!({ "labels": labels, "mark": mark, "capacity": capacity });
        Arc::new(Node::new(&view(name, &fields), &mut Texts::default()))
    };
    let capacity = |vms: u32| if vms > 0 { json!({ VM: vms.to_string() }) } else { json!({}) };
    let nodes = [node("full", Some(VM), capacity(full)), node("new", (new > 0).then_some(VM), capacity(new))];
    plan(&[request], &nodes, &InUse::of_all(HashMap::new()))
}

/// The write of 2 VMs to this node.
fn two(name: &str, answer: Answer) -> Call {
    Call::patch(format!("/api/v1/nodes/{name}/status"))
        .body_with(json!({ "status": { "capacity": { VM: "2" } } }))
        .answer(answer)
}

fn written(name: &str) -> Answer {
    Answer::json(200, &json!({ "metadata": { "name": name, "uid": name } }))
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_more_after_the_others_have_lost_theirs() {
    let server = ApiServer::expecting([two("full", written("full")), two("new", written("new"))]);
    let Plan { writes, headroom, .. } = planned();
    let mut writer = Writer::new(server.client());
    let written = writer.write(&Nodes::default(), writes, headroom, Instant::now()).await;
    assert_eq!((written.reached.len(), written.again), (2, None), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_gets_no_more_while_another_cannot_lose_it() {
    let server = ApiServer::expecting([two("full", Answer::error(403, "Forbidden", "not this one"))]);
    let mut writer = Writer::new(server.client());
    // An earlier write to the other node failed, too. That must not request a pass again and again.
    writer.failures.failed(&"new".into(), "no".into());
    tokio::time::advance(BASE).await;
    for _ in 0..2 {
        let (Plan { writes, headroom, .. }, now) = (planned(), Instant::now());
        let written = writer.write(&Nodes::default(), writes, headroom, now).await;
        assert_eq!((written.reached.len(), written.failed.len()), (0, 1), "{written:?}");
        assert_eq!(&*written.failed[0].0, "full");
        assert!(written.again.is_some_and(|again| !again.is_zero()), "{written:?}");
    }
    // Nor does it get more while another is contested.
    drop(server);
    let server = ApiServer::expecting([]);
    let mut writer = Writer::new(server.client());
    let (Plan { writes, headroom, .. }, now) = (planned(), Instant::now());
    let full = writes.iter().find(|write| &*write.node == "full").unwrap();
    while writer.conflicts.admit(full, now).is_ok() {}
    let written = writer.write(&Nodes::default(), writes, headroom, now).await;
    assert_eq!((written.reached.len(), written.contested), (0, vec!["full".into()]));
    assert!(written.again.is_some_and(|again| !again.is_zero()));
}

/// A part of the planned write is other content, and would not have to wait.
#[tokio::test(start_paused = true)]
async fn a_contested_node_waits_though_less_than_planned_is_free() {
    let server = ApiServer::expecting([two("full", Answer::error(403, "Forbidden", "not this one"))]);
    let mut writer = Writer::new(server.client());
    let (Plan { writes, headroom, .. }, now) = (planned_of([3, 0]), Instant::now());
    let new = writes.iter().find(|write| &*write.node == "new").unwrap();
    while writer.conflicts.admit(new, now).is_ok() {}
    let written = writer.write(&Nodes::default(), writes, headroom, now).await;
    assert_eq!((written.reached.len(), written.contested), (0, vec!["new".into()]), "{:?}", written.failed);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_may_have_reached_its_node() {
    for (answer, reached) in [
        (Answer::error(504, "Timeout", "late"), 1),
        (Answer::dropped(), 1),
        (Answer::hang(), 1),
        (Answer::error(403, "Forbidden", "no"), 0),
    ] {
        let server = ApiServer::expecting([two("full", answer)]);
        let Plan { writes, headroom, .. } = planned();
        let mut writer = Writer::new(server.client());
        let written = writer.write(&Nodes::default(), writes, headroom, Instant::now()).await;
        assert_eq!((written.reached.len(), written.failed.len()), (reached, 1), "{written:?}");
    }
}

#[test]
fn the_patch_names_everything_absolutely() {
    let write = NodeWrite {
        node: "a".into(),
        uid: "u".into(),
        resources: [("x.y/new".into(), Some(3)), ("x.y/old".into(), None)].into(),
        mark: Some("x.y/new".into()),
    };
    let quantities = json!({ "x.y/new": "3", "x.y/old": null });
    assert_eq!(
        body(&write),
        json!({
            "metadata": { "uid": "u", "annotations": { MARK: "x.y/new" } },
            "status": { "capacity": quantities, "allocatable": quantities },
        })
    );
}
