use futures::future::try_join_all;
use operator_kit::testing::{Answer, ApiServer, Call};
use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use super::*;

/// Nodes with these regions.
fn nodes(regions: &[Option<&str>], next: &str) -> Answer {
    let node = |(number, region): (usize, Option<&str>)| -> Value {
        let labels = region.map(|region| json!({ REGION: region, "team": "shop" }));
        json!({ "metadata": { "name": format!("node-{number}"), "labels": labels } })
    };
    let items: Vec<_> = regions.iter().copied().enumerate().map(node).collect();
    Answer::object(&json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": { "continue": next }, "items": items,
    }))
}

fn all(answer: Answer) -> Call {
    Call::get("/api/v1/nodes?limit=100").answer(answer)
}

fn current<'a>(identity: Option<&'a str>, changed: &Arc<Notify>) -> RecordedPlace<'a> {
    RecordedPlace::current(OF_THE_NODES, identity, Arc::clone(changed))
}

fn former(identity: Option<&str>) -> RecordedPlace<'_> {
    RecordedPlace::former(OF_THE_NODES, identity)
}

fn opened<'a>(
    server: Option<&ApiServer>,
    recorded: Option<RecordedPlace<'a>>,
) -> Result<(Vpc, Option<RecordedPlace<'a>>), Error> {
    let cluster = server.map(|it| ClusterAccess { client: it.client(), namespace: "here".to_owned() });
    Vpc::new(OF_THE_NODES, &Opening { cluster, recorded, ..Opening::new(1) })
}

fn vpc(server: &ApiServer) -> Vpc {
    opened(Some(server), None).unwrap().0
}

#[tokio::test]
async fn the_nodes_are_read_once_for_all_calls() {
    let pages = [
        all(nodes(&[Some("eu-de"), Some("eu-de")], "more")),
        Call::get("/api/v1/nodes?limit=100&continue=more").answer(nodes(&[Some("eu-de")], "")),
    ];
    let server = ApiServer::expecting(pages);
    let vpc = vpc(&server);
    let bases = try_join_all((0..20).map(|_| vpc.base())).await.unwrap();
    assert!(bases.iter().all(|base| base == "https://eu-de.iaas.cloud.ibm.com/v1"), "{bases:?}");
    assert_eq!(vpc.identity("account".to_owned()).await.as_deref(), Ok("account/eu-de"));
    assert_eq!(vpc.ensure_only().await, Ok(()));
}

#[tokio::test]
async fn nodes_that_name_no_single_region_are_refused() {
    for (regions, says, logs) in [
        (&[Some("eu-de"), Some("us-south")][..], "in several regions", "node node-1 in us-south"),
        (&[Some("eu-de"), None], "has no label topology.kubernetes.io/region", "node node-1 in none"),
        (&[None], "has no label topology.kubernetes.io/region", "node node-0 in none"),
        (&[], "has no node", ""),
        (&[Some("eu.de")], "names no region", "eu.de"),
        (&[Some("EU-DE")], "names no region", "EU-DE"),
        (&[Some("")], "names no region", ""),
    ] {
        let server = ApiServer::expecting([all(nodes(regions, ""))]);
        let error = vpc(&server).base().await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{regions:?}");
        let (public, full) = (error.message.for_status(), error.message.for_log());
        assert!(public.contains("set IBMCLOUD_VPC_ENDPOINT") && public.contains(says), "{public}");
        assert!(!public.contains("node-") && !public.contains("us-south"), "{public}");
        assert!(full.contains(logs), "{full}");
    }
}

#[tokio::test]
async fn nodes_that_cannot_be_read_are_no_region() {
    for (answer, class, says) in [
        (Answer::error(403, "Forbidden", "no"), ErrorClass::Unauthorized, "the right to list nodes"),
        (Answer::error(401, "Unauthorized", "no"), ErrorClass::Unauthorized, "cannot read the nodes"),
        (Answer::dropped(), ErrorClass::Transient, "cannot read the nodes"),
        (Answer::page_not_found(), ErrorClass::Transient, "cannot read the nodes"),
    ] {
        let server = ApiServer::expecting([all(answer)]);
        let vpc = vpc(&server);
        // All who ask soon get the same error.
        for _ in 0..5 {
            let error = vpc.base().await.unwrap_err();
            assert!(error.class == class && error.to_string().contains(says), "{error:?}");
        }
    }
    let error = opened(None, None).err().unwrap();
    assert!(
        error.class == ErrorClass::Transient && error.to_string().contains("whose nodes have the region"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_that_do_not_answer_are_waited_for_no_longer_than_that() {
    let server = ApiServer::expecting([all(Answer::hang()), all(nodes(&[Some("eu-de")], ""))]);
    let (vpc, start) = (vpc(&server), Instant::now());
    assert_eq!(vpc.base().await.unwrap_err().class, ErrorClass::Transient);
    assert_eq!(start.elapsed(), PATIENCE);
    assert!(vpc.base().await.is_err(), "the next one waits as long again");
    advance(AFTER_FAILURE).await;
    assert!(vpc.base().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_node_of_another_region_is_noticed_before_a_vm_counts_as_absent() {
    let server = ApiServer::expecting([
        all(nodes(&[Some("eu-de")], "")),
        all(nodes(&[Some("eu-de"), Some("us-south")], "")),
        all(nodes(&[Some("eu-de")], "")),
    ]);
    let vpc = vpc(&server);
    assert_eq!(vpc.ensure_only().await, Ok(()));
    advance(FRESH).await;
    let error = vpc.ensure_only().await.unwrap_err();
    assert!(error.class == ErrorClass::Invalid && error.to_string().contains("several regions"), "{error}");
    // What is in the region that was known can still be deleted.
    assert!(vpc.base().await.is_ok());
    advance(AFTER_FAILURE).await;
    assert_eq!(vpc.ensure_only().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn nodes_in_another_region_than_the_recorded_one_are_another_place() {
    let changed = Arc::new(Notify::new());
    let is_notified = async || timeout(Duration::ZERO, changed.notified()).await.is_ok();
    let server = ApiServer::expecting([all(nodes(&[Some("us-south")], ""))]);
    let (vpc, recorded) = opened(Some(&server), Some(current(Some("account/eu-de"), &changed))).unwrap();
    assert_eq!(recorded.unwrap().identity, Some("account"));
    let error = vpc.base().await.unwrap_err();
    assert!(error.class == ErrorClass::Invalid && is_notified().await, "{error}");
    assert!(error.message.for_log().contains("us-south instead of eu-de"), "{error:?}");

    let server =
        ApiServer::expecting([all(nodes(&[Some("eu-de")], "")), all(nodes(&[Some("us-south")], ""))]);
    let (vpc, _) = opened(Some(&server), Some(current(Some("account/eu-de"), &changed))).unwrap();
    assert_eq!(vpc.ensure_only().await, Ok(()));
    assert!(!is_notified().await);
    advance(FRESH).await;
    assert!(vpc.ensure_only().await.is_err() && is_notified().await);
}

#[tokio::test]
async fn a_former_place_is_in_the_region_that_was_recorded_wherever_the_nodes_are() {
    let (vpc, recorded) = opened(None, Some(former(Some("account/eu-de")))).unwrap();
    assert_eq!(vpc.base().await.as_deref(), Ok("https://eu-de.iaas.cloud.ibm.com/v1"));
    assert_eq!((vpc.ensure_only().await, recorded.unwrap().identity), (Ok(()), Some("account")));
    for identity in [None, Some("account"), Some("account/"), Some("account/eu.de"), Some("account/a/b")] {
        let error = opened(None, Some(former(identity))).err().unwrap();
        assert_eq!(error.class, ErrorClass::Invalid, "{identity:?}");
    }
}
