use k8s_openapi::ByteString;
use proptest::{collection::vec, prelude::any, proptest};
use serde_json::{Value, json};

use super::*;
use crate::api::v1alpha1::Sizing;

fn answered(review_: &Value) -> (Answer, Value) {
    let answer = answer_to(review_.to_string().as_bytes());
    let body = serde_json::from_slice(&answer.body).unwrap();
    (answer, body)
}

fn options() -> Options {
    Options {
        runtime_class: "kata-remote".into(),
        extended_resource: "kata.peerpods.io/vm".into(),
        sizing: Sizing::Kubernetes,
    }
}

fn answer_to(body: &[u8]) -> Answer {
    review(body, &options(), OtherClasses::Admit)
}

fn of(object: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "request": { "uid": "u-1", "operation": "CREATE", "object": object, "future": [1] },
    })
}

fn peer_pod(resources: &Value) -> Value {
    json!({
        "metadata": { "name": "p", "annotations": { "quoted": "\"\n\u{e9}" } },
        "spec": { "runtimeClassName": "kata-remote", "containers": [{ "name": "a", "resources": resources }] },
    })
}

#[test]
fn a_peer_pod_is_answered_with_a_patch_that_applies() {
    let mut pod = peer_pod(&json!({ "limits": { "cpu": "2", "memory": "1Gi" } }));
    let (answer, body) = answered(&of(&pod));
    assert_eq!((answer.status, answer.outcome), (200, Outcome::Mutated));
    assert_eq!((&body["apiVersion"], &body["kind"]), (&json!(API_VERSION), &json!(KIND)));
    let response = &body["response"];
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(true)));
    assert_eq!(response["patchType"], "JSONPatch");
    let patch: ByteString = serde_json::from_value(response["patch"].clone()).unwrap();
    json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(&patch.0).unwrap()).unwrap();
    assert_eq!(pod["metadata"]["annotations"]["io.katacontainers.config.hypervisor.default_vcpus"], "2");
    let (answer, body) = answered(&of(&pod));
    assert_eq!(answer.outcome, Outcome::Unchanged);
    assert_eq!(body["response"], json!({ "uid": "u-1", "allowed": true }));
}

#[test]
fn updates_and_other_pods_stay_unchanged() {
    let mut update = of(&peer_pod(&json!({})));
    update["request"]["operation"] = "UPDATE".into();
    for review in [update, of(&Value::Null), of(&json!({ "spec": { "runtimeClassName": "runc" } }))] {
        let (answer, body) = answered(&review);
        assert_eq!((answer.status, answer.outcome), (200, Outcome::Unchanged));
        assert_eq!(body["response"], json!({ "uid": "u-1", "allowed": true }));
    }
}

#[test]
fn invalid_pods_and_versions_are_refused_with_the_reason() {
    let negative = peer_pod(&json!({ "requests": { "cpu": "-1" } }));
    let strange = json!({ "spec": { "containers": "none" } });
    let mut beta = of(&peer_pod(&json!({})));
    beta["apiVersion"] = "admission.k8s.io/v1beta1".into();
    for (review, code, words) in [
        (of(&negative), 422, "is negative"),
        (of(&strange), 400, "cannot be read"),
        (beta, 400, "admission.k8s.io/v1,"),
    ] {
        let (answer, body) = answered(&review);
        assert_eq!((answer.status, answer.outcome), (200, Outcome::Refused));
        let response = &body["response"];
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
        assert_eq!(response["status"]["code"], code);
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_pod_of_another_class_is_refused_where_the_registration_sends_one_class() {
    let review = |class: &str| {
        let pod = json!({ "spec": { "runtimeClassName": class, "containers": [{ "name": "a" }] } });
        super::review(of(&pod).to_string().as_bytes(), &options(), OtherClasses::Refuse)
    };
    let refused = review("new");
    assert_eq!((refused.status, refused.outcome), (200, Outcome::Refused));
    let body: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(body["response"]["allowed"], false);
    let message = body["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("serves the runtime class kata-remote;"), "{message}");
    assert_eq!(review("kata-remote").outcome, Outcome::Mutated);
}

#[test]
fn the_answer_to_an_oversized_review_is_short() {
    let long = "\u{80}".repeat(1 << 20);
    let mut uid = of(&Value::Null);
    uid["request"]["uid"] = long.as_str().into();
    let mut unread = uid.clone();
    unread["request"]["object"] = 7.into();
    let text = of(&json!({ "spec": { "containers": long } }));
    for (review, status, words) in [
        (uid, 400, "uid"),
        (unread, 400, "uid"),
        (text, 200, "cannot be read"),
        (json!({ "request": long }), 400, "not an AdmissionReview"),
    ] {
        let answer = answer_to(review.to_string().as_bytes());
        let told = String::from_utf8(answer.body).unwrap();
        assert!(answer.status == status && told.len() < 2 * MAX_MESSAGE && told.contains(words), "{told}");
    }
}

#[test]
fn a_malformed_review_gets_a_status() {
    for body in ["", "{", "null", "[]", "7", "{}", r#"{"request":{}}"#, r#"{"request":{"uid":7}}"#, "\u{0}"] {
        let answer = answer_to(body.as_bytes());
        assert_eq!((answer.status, answer.outcome), (400, Outcome::Malformed), "{body}");
        let status: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(400)), "{body}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(answer_to(deep.as_bytes()).status, 400);
}

proptest! {
    #[test]
    fn any_body_gets_an_answer(
        cut in any::<proptest::sample::Index>(), noise in vec(any::<u8>(), 0..4),
    ) {
        let whole = of(&peer_pod(&json!({ "limits": { "cpu": "2" } }))).to_string().into_bytes();
        let place = cut.index(whole.len());
        let mut body = whole.clone();
        body.splice(place..(place + noise.len()).min(whole.len()), noise);
        let answer = answer_to(&body);
        serde_json::from_slice::<Value>(&answer.body).unwrap();
        assert!(answer.status == 200 || answer.status == 400);
    }
}
