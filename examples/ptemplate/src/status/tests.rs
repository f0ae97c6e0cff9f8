use serde_json::json;

use super::*;

fn ptemplate() -> Ptemplate {
    let object = json!({
        "apiVersion": "pt.example.com/v1alpha1", "kind": "Ptemplate",
        "metadata": { "name": "a", "namespace": "shop", "generation": 3 }, "spec": { "selector": {} },
    });
    serde_json::from_value(object).unwrap()
}

fn error(code: u16, message: &str) -> Outcome {
    let status = json!({ "status": "Failure", "code": code, "reason": "", "message": message });
    Err(ApiError::Failed(kube::Error::Api(serde_json::from_value(status).unwrap())))
}

/// The conditions as `Type=Status:Reason`, and the consumers.
fn told(module: &Outcome, consumer: &Outcome, lacking: &[String]) -> (Vec<String>, Vec<String>) {
    let pods = vec!["a-consumer-x".to_owned()];
    let status = status(&ptemplate(), (module, consumer), pods, lacking, Timestamp::UNIX_EPOCH);
    let told = status.conditions.iter().map(|it| format!("{}={}:{}", it.type_, it.status, it.reason));
    (told.collect(), status.consumers)
}

#[test]
fn each_object_has_a_condition() {
    let (conditions, consumers) = told(&Ok(Applied::AsWanted), &Ok(Applied::Written), &[]);
    assert_eq!(conditions, ["ModuleApplied=True:AsWanted", "ConsumerApplied=True:AsWanted"]);
    assert_eq!(consumers, ["a-consumer-x"]);
    let (conditions, _) = told(&Ok(Applied::Foreign), &error(403, "forbidden"), &[]);
    assert_eq!(conditions, ["ModuleApplied=False:NameTaken", "ConsumerApplied=False:Refused"]);
}

#[test]
fn an_outage_is_no_refusal_and_an_invalid_object_is_described() {
    let reason_and_message = |outcome: &Outcome| {
        let both = (&Ok(Applied::AsWanted), outcome);
        let status = status(&ptemplate(), both, vec![], &[], Timestamp::UNIX_EPOCH);
        let condition = &status.conditions[1];
        (condition.reason.clone(), condition.message.clone())
    };
    let invalid = "DaemonSet.apps \"a-consumer\" is invalid: spec.template.spec.nodeSelector: Invalid value";
    for (outcome, reason, message) in [
        (error(422, invalid), "Refused", invalid),
        (error(403, "private"), "Refused", "the API server answered with the status 403"),
        (error(503, "private"), "Failed", "the API server answered with the status 503"),
        (Err(ApiError::TimedOut), "Failed", "the API server did not answer within 20s"),
    ] {
        assert_eq!(reason_and_message(&outcome), (reason.to_owned(), message.to_owned()));
    }
}

#[test]
fn a_missing_kmm_is_no_refusal() {
    let missing = error(404, "404 page not found");
    let (conditions, _) = told(&missing, &Ok(Applied::AsWanted), &[]);
    assert_eq!(conditions, ["ModuleApplied=False:KmmNotInstalled", "ConsumerApplied=True:AsWanted"]);
    let message = kmm_is_missing(&missing).unwrap();
    assert!(message.contains("modules.kmm.sigs.x-k8s.io is not installed"), "{message}");
    assert_eq!(kmm_is_missing(&error(404, "namespaces \"shop\" not found")), None);
}

#[test]
fn a_stale_definition_omits_the_consumers_only_if_it_lacks_their_field() {
    for (lacking, has_consumers) in [
        ("spec.consumerimage", true),
        ("status.conditions[].observedGeneration", true),
        ("status.consumers", false),
        ("status", false),
    ] {
        let lacking = ["spec.other".to_owned(), lacking.to_owned()];
        let (conditions, consumers) = told(&Ok(Applied::AsWanted), &Ok(Applied::AsWanted), &lacking);
        assert_eq!(conditions[2..], ["DefinitionStale=True:FieldsLacking"]);
        assert_eq!(!consumers.is_empty(), has_consumers, "{lacking:?}");
    }
}
