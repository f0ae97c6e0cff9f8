use std::{iter::repeat_n, sync::Arc, time::Duration};

use operator_kit::testing::{Answer, ApiServer, Call, not_of};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, advance, pause},
};

use super::{returns::MAY_BE_UNDONE, *};
use crate::provider::{Outcome, cloud::RecordedPlace};

const PATH: &str = "/api/v1/namespaces/here/configmaps/byom-ip-pool-state";
const NAME: &str = "byom-ip-pool-state";

/// Nothing listens there.
const ADDRESS: &str = "127.255.255.254";

fn provider(server: &ApiServer, recorded: Option<RecordedPlace<'_>>) -> Box<dyn Provider> {
    let cluster = Some(ClusterAccess { client: server.client(), namespace: "here".to_owned() });
    open(&Values::default(), &Opening { cluster, recorded, ..Opening::new(1) }).unwrap()
}

fn allocation(pod: &str, ip: &str) -> (String, Value) {
    let key = format!("{pod}-0123456789abcdef");
    (key, json!({ "ip": ip, "podName": pod, "allocatedAt": "2026-01-01T00:00:00Z", "nodeName": "a" }))
}

fn pool(allocated: &[(String, Value)], available: &[&str], version: u32) -> Value {
    let allocated: serde_json::Map<_, _> = allocated.iter().cloned().collect();
    let state = json!({ "allocatedIPs": allocated, "availableIPs": available, "version": version });
    let metadata =
        json!({ "name": NAME, "namespace": "here", "uid": "u-1", "resourceVersion": version.to_string() });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
        "data": { "allocation-state": state.to_string(), "notes": "mine" },
    })
}

fn claim() -> Claim {
    let created = "2026-01-01T00:01:00Z".parse().unwrap();
    Claim { pod: Some("web".to_owned()), created, ..Claim::default() }
}

/// The class of an absence that may be undone for so long.
fn check_again_after(seconds: u64) -> ErrorClass {
    ErrorClass::Unsettled { check_again_after: Duration::from_secs(seconds) }
}

async fn describe(provider: &dyn Provider) -> Result<Vm, Error> {
    provider.describe(&InstanceId::of(&CLOUD, ADDRESS).unwrap(), &claim()).await
}

async fn own(provider: &dyn Provider) -> OwnVm {
    ownership::verify(describe(provider).await.unwrap(), "web", NAME_LIMIT).unwrap()
}

#[test]
fn an_identifier_is_an_address() {
    let id = |raw: &str| InstanceId::of(&CLOUD, raw).map(|id| id.to_string());
    assert_eq!(id("10.0.0.1").as_deref(), Ok("10.0.0.1"));
    assert_eq!(id("FD00:0::1").as_deref(), Ok("fd00::1"));
    for raw in ["host", "10.0.0.1:22", "10.0.0", "10.0.0.1/24", "010.0.0.1"] {
        assert!(id(raw).is_err(), "{raw}");
    }
}

#[tokio::test]
async fn no_answer_but_the_pools_own_word_is_absence() {
    let asked = async |answer: Answer| {
        let server = ApiServer::expecting([Call::get(PATH).answer(answer)]);
        describe(&*provider(&server, None)).await.unwrap_err().class
    };
    let (web, db) = (allocation("web", "10.0.0.1"), allocation("db", ADDRESS));
    assert_eq!(asked(Answer::object(&pool(&[db], &[], 1))).await, check_again_after(30));
    assert_eq!(asked(Answer::object(&pool(&[], &[ADDRESS], 1))).await, check_again_after(30));
    assert_eq!(asked(Answer::object(&pool(&[web], &[], 1))).await, ErrorClass::Invalid);
    assert_eq!(asked(Answer::not_found("configmaps", NAME)).await, ErrorClass::Invalid);
    assert_eq!(asked(Answer::object(&json!({ "metadata": { "name": NAME } }))).await, ErrorClass::Invalid);
    assert_eq!(asked(Answer::error(401, "Unauthorized", "no")).await, ErrorClass::Unauthorized);
    assert_eq!(asked(Answer::error(403, "Forbidden", "no")).await, ErrorClass::Unauthorized);
    assert!(matches!(asked(Answer::error(429, "TooManyRequests", "")).await, ErrorClass::Throttled { .. }));
    for answer in not_of(NAME).into_iter().chain([Answer::text(200, "<html>"), Answer::dropped()]) {
        assert_eq!(asked(answer.clone()).await, ErrorClass::Transient, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_absent_after_its_return_can_no_longer_be_undone() {
    let available = Call::get(PATH).answer(Answer::object(&pool(&[], &[ADDRESS], 1)));
    let server = ApiServer::expecting(repeat_n(available, 6));
    let (provider, own) = (provider(&server, None), claim());
    let id = InstanceId::of(&CLOUD, ADDRESS).unwrap();
    let class = async |claim: &Claim| provider.describe(&id, claim).await.unwrap_err().class;
    assert_eq!(class(&own).await, check_again_after(30));
    advance(MAY_BE_UNDONE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(class(&Claim { deleted: Some(Timestamp::now()), ..own.clone() }).await, check_again_after(1));
    advance(Duration::from_secs(1)).await;
    assert_eq!(class(&own).await, ErrorClass::NotFound);
    // The machine may have been another's in between.
    for next in [
        Claim { created: Timestamp::now(), ..own.clone() },
        Claim { pod: Some("db".to_owned()), ..own.clone() },
    ] {
        assert_eq!(class(&next).await, check_again_after(30), "{next:?}");
    }
    assert_eq!(class(&Claim { pod: None, ..own }).await, ErrorClass::NotFound, "nothing is returned for it");
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_another_pod_is_absent_after_its_allocation_can_no_longer_be_undone() {
    let [ours, theirs] = ["web", "db"].map(|pod| pool(&[allocation(pod, ADDRESS)], &[], 1));
    let looks =
        [&theirs, &ours, &theirs, &theirs].map(|object| Call::get(PATH).answer(Answer::object(object)));
    let server = ApiServer::expecting(looks);
    let provider = provider(&server, None);
    let class = async || describe(&*provider).await.unwrap_err().class;
    assert_eq!(class().await, check_again_after(30));
    assert!(describe(&*provider).await.unwrap().reappeared);
    assert_eq!(class().await, check_again_after(30));
    advance(MAY_BE_UNDONE).await;
    assert_eq!(class().await, ErrorClass::NotFound);
}

#[tokio::test]
async fn a_recreated_pool_proves_nothing_and_is_reported() {
    let server = ApiServer::expecting([Call::get(PATH).answer(Answer::object(&pool(&[], &[ADDRESS], 1)))]);
    let identity_changed = Arc::new(Notify::new());
    let recorded = RecordedPlace::current(NAME, Some("u-0"), Arc::clone(&identity_changed));
    let error = describe(&*provider(&server, Some(recorded))).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    identity_changed.notified().await;
}

#[tokio::test]
async fn after_a_conflict_the_pool_is_read_again_and_what_others_wrote_stays() {
    let (web, db) = (allocation("web", ADDRESS), allocation("db", "10.0.0.2"));
    let [before, meanwhile] =
        [pool(std::slice::from_ref(&web), &["10.0.0.2"], 1), pool(&[web, db.clone()], &[], 2)];
    let get = |object: &Value| Call::get(PATH).answer(Answer::object(object));
    let sent =
        |version: &str| json!({ "metadata": { "resourceVersion": version }, "data": { "notes": "mine" } });
    let server = ApiServer::expecting([
        get(&before),
        get(&before),
        Call::put(PATH).body_with(sent("1")).answer(Answer::conflict("configmaps", NAME)),
        get(&meanwhile),
        Call::put(PATH).body_with(sent("2")).answer(Answer::as_sent()),
    ]);
    let provider = provider(&server, None);
    let returned = provider.delete(&own(&*provider).await).await;
    assert_eq!(returned, Ok(Accepted::default()));
}

#[tokio::test]
async fn a_return_that_cloud_api_adaptor_undid_is_repeated_and_waited_for_anew() {
    let web = allocation("web", ADDRESS);
    let get = |object: &Value| Call::get(PATH).answer(Answer::object(object));
    let available = get(&pool(&[], &[ADDRESS], 5));
    let returns = |version: u32| {
        let allocated = pool(std::slice::from_ref(&web), &[], version);
        let sent = json!({ "metadata": { "resourceVersion": version.to_string() } });
        let write = Call::put(PATH).body_with(sent).answer(Answer::as_sent());
        [get(&allocated), get(&allocated), write, available.clone()]
    };
    let server = ApiServer::expecting([1, 3].into_iter().flat_map(returns).chain([available.clone()]));
    let provider = provider(&server, None);
    for was_returned in [false, true] {
        let own = own(&*provider).await;
        assert_eq!(own.vm().reappeared, was_returned);
        assert_eq!(provider.delete(&own).await, Ok(Accepted::default()));
        assert_eq!(describe(&*provider).await.unwrap_err().class, check_again_after(30));
    }
    pause();
    advance(MAY_BE_UNDONE).await;
    assert_eq!(describe(&*provider).await.unwrap_err().class, ErrorClass::NotFound);
}

#[tokio::test]
async fn a_machine_that_another_pod_has_meanwhile_is_left_alone() {
    let [ours, theirs] = ["web", "db"].map(|pod| pool(&[allocation(pod, ADDRESS)], &[], 1));
    let mut later = allocation("web", ADDRESS);
    later.1["allocatedAt"] = json!("2026-01-01T00:00:01Z");
    for now in [theirs, pool(&[], &[ADDRESS], 2), pool(&[later], &[], 3)] {
        let [first, second] = [&ours, &now].map(|object| Call::get(PATH).answer(Answer::object(object)));
        let server = ApiServer::expecting([first, second]);
        let provider = provider(&server, None);
        assert_eq!(provider.delete(&own(&*provider).await).await, Ok(Accepted::default()));
    }
}

#[tokio::test]
async fn a_pool_that_others_write_all_the_time_is_tried_again_later() {
    let object = pool(&[allocation("web", ADDRESS)], &[], 1);
    let get = || Call::get(PATH).answer(Answer::object(&object));
    let lost = || [Call::put(PATH).answer(Answer::conflict("configmaps", NAME)), get()];
    let calls = [get(), get()].into_iter().chain((0..ATTEMPTS).flat_map(|_| lost()));
    let server = ApiServer::expecting(calls);
    let provider = provider(&server, None);
    let error = provider.delete(&own(&*provider).await).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
}

#[tokio::test(start_paused = true)]
async fn an_examination_reports_what_hangs_in_time_for_check_and_the_rest_too() {
    // What `check` waits for an examination.
    const CHECK: Duration = Duration::from_secs(20);
    let read = Call::get(PATH).answer(Answer::object(&pool(&[], &[ADDRESS], 1)));
    let server = ApiServer::expecting([read, Call::put(PATH).answer(Answer::hang())]);
    let start = Instant::now();
    let findings = provider(&server, None).examine().await.unwrap();
    assert!(start.elapsed() < CHECK, "{:?}", start.elapsed());
    let [read, written, machine]: [Finding; 3] = findings.try_into().unwrap();
    assert!(matches!(read.outcome, Outcome::Works(_)), "{read:?}");
    for (finding, says) in [(written, "did not answer within 18s"), (machine, ADDRESS)] {
        let Outcome::Fails(error) = &finding.outcome else { panic!("{finding:?}") };
        assert!(error.message.for_log().contains(says), "{error:?}");
    }

    let server = ApiServer::expecting([Call::get(PATH).answer(Answer::hang())]);
    let start = Instant::now();
    let error = provider(&server, None).examine().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Transient);
    assert!(start.elapsed() < CHECK, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_pool_that_cloud_api_adaptor_has_not_made_yet_is_no_failure_of_an_examination() {
    let server = ApiServer::expecting([Call::get(PATH).answer(Answer::not_found("configmaps", NAME))]);
    let [finding]: [Finding; 1] = provider(&server, None).examine().await.unwrap().try_into().unwrap();
    let Outcome::Untried(text) = &finding.outcome else { panic!("{finding:?}") };
    assert!(text.contains("when it first runs"), "{text}");
}

#[test]
fn without_a_cluster_the_error_says_what_it_is_for() {
    let error = open(&Values::default(), &Opening::new(1)).err().unwrap();
    assert!(
        error.class == ErrorClass::Transient
            && error.to_string().contains("the pool of machines is in the cluster"),
        "{error}"
    );
}
