use operator_kit::testing::{Answer, ApiServer, Call};

use super::*;

#[tokio::test]
async fn what_other_programs_hold_waits_for_no_operator() {
    let server = ApiServer::expecting([]);
    let (client, namespace) = (server.client(), "operator".to_owned());
    let drain = Drain { client, namespace, retry: Retry::new(|_| {}) };
    let unfinished = |finalizers: &[&str]| {
        let metadata = json!({ "name": "web", "namespace": "shop", "finalizers": finalizers });
        let peerpod = json!({ "metadata": metadata, "spec": {} });
        drain.unfinished(vec![Arc::new(serde_json::from_value(peerpod).unwrap())])
    };
    let held = unfinished(&["x.y/a", "x.y/b"]);
    assert!(held.contains("shop/web (x.y/a, x.y/b)") && !held.contains("kubectl"), "{held}");
    // The operator's own, and finalizers among which it may be.
    for finalizers in [&["x.y/a", "peer.pod/finalizer"][..], &[""]] {
        let waiting = unfinished(finalizers);
        assert!(waiting.contains("scale deployment") && !waiting.contains("other programs"), "{waiting}");
    }
}

#[tokio::test]
async fn what_was_created_while_the_operators_ended_is_an_error_and_the_places_stay() {
    const GROUP: &str = "/apis/confidentialcontainers.org/v1alpha1";
    let object = |kind: &str, pod: &str| {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "1" });
        json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": kind,
            "metadata": { "name": "web", "namespace": "shop", "ownerReferences": [owner] },
        })
    };
    for (configs, peerpods, pod, shown) in [
        (0, 0, "orders", ""),
        (0, 1, "orders", "shop/orders (PeerPod web)"),
        (0, 1, "x, kube-system/y", "the PeerPod shop/web, which no Pod owns"),
        (0, 1, "x\u{1b}[2J\n", "the PeerPod shop/web, which no Pod owns"),
        (1, 0, "orders", "shop/web"),
    ] {
        let list = |path: &str, kind: &str, count: usize| {
            let list = json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": format!("{kind}List"),
                "metadata": { "resourceVersion": "1" }, "items": vec![object(kind, pod); count],
            });
            let call = || Call::get(format!("{GROUP}{path}")).answer(Answer::object(&list));
            [call(), call()]
        };
        let mut calls: Vec<_> = list("/namespaces/operator/peerpodconfigs", "PeerPodConfig", configs).into();
        if configs == 0 {
            calls.extend(list("/peerpods", "PeerPod", peerpods));
        }
        if configs + peerpods == 0 {
            let places = format!("/api/v1/namespaces/operator/configmaps/{PLACES}");
            let deleted = json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" });
            calls.push(Call::delete(places).answer(Answer::object(&deleted)));
        }
        let server = ApiServer::expecting(calls);
        let deadline = Instant::now() + Duration::from_secs(60);
        let (client, namespace) = (server.client(), "operator".to_owned());
        let mut drain = Drain { client, namespace, retry: Retry::new(|_| {}) };
        let outcome = drain.finish(deadline).await;
        assert_eq!(outcome.is_ok(), configs + peerpods == 0, "{outcome:?}");
        let problem = outcome.err().unwrap_or_default();
        assert!(problem.contains(shown) && !problem.contains("kube-system"), "{problem}");
        assert_eq!(problem.contains(PLACES), peerpods > 0, "{problem}");
    }
}
