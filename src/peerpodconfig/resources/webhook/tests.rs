use k8s_openapi::api::core::v1::LocalObjectReference;
use serde_json::{Value, json};

use super::{
    super::{CLASS_ANNOTATION, CONFIG_LABEL, program::Placement},
    *,
};
use crate::api::v1alpha1::PeerPodConfig;

const CIPHER: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";

fn program() -> Program {
    let pull_secrets = vec![LocalObjectReference { name: "pull".to_owned() }];
    let node_selector = Some([("infra".to_owned(), String::new())].into());
    let placement = Placement { node_selector, ..Placement::default() };
    Program { pull_policy: "Always".to_owned(), pull_secrets, placement, ..Program::public("operator") }
}

/// Deployment, Service, PodDisruptionBudget and webhook configuration for this `admission`.
fn built(admission: &Value, ca_bundle: Option<ByteString>) -> [Value; 4] {
    let config: PeerPodConfig = serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": "config", "namespace": "ns", "uid": "1-2-3" },
        "spec": { "admission": admission },
    }))
    .unwrap();
    let tls = TlsOptions::parse("", CIPHER).unwrap();
    let owner = Owner { config: &config, namespace: "ns" };
    [
        serde_json::to_value(deployment(&owner, &tls, &program())).unwrap(),
        serde_json::to_value(service(&owner)).unwrap(),
        serde_json::to_value(disruption_budget(&owner)).unwrap(),
        serde_json::to_value(configuration(&owner, ca_bundle)).unwrap(),
    ]
}

#[test]
fn its_configuration_has_further_labels_and_annotations_and_keeps_its_own() {
    let admission = json!({
        "webhookAnnotations": { "admissions.enforcer/disabled": "true", CLASS_ANNOTATION: "other" },
        "webhookLabels": { "team": "a", CONFIG_LABEL: "other" },
    });
    let [deployment, .., configuration] = built(&admission, None);
    let metadata = &configuration["metadata"];
    let expected = json!({ "admissions.enforcer/disabled": "true", CLASS_ANNOTATION: "kata-remote" });
    assert_eq!(metadata["annotations"], expected);
    assert_eq!(
        (&metadata["labels"]["team"], &metadata["labels"][CONFIG_LABEL]),
        (&json!("a"), &json!("config"))
    );
    assert_eq!(deployment["metadata"]["labels"]["team"], Value::Null);
    let instance = "app.kubernetes.io/instance";
    assert_eq!(
        (&metadata["labels"][instance], &deployment["metadata"]["labels"][instance]),
        (&Value::Null, &json!("config")),
        "Argo CD prunes objects without owner by it"
    );
}

#[test]
fn its_resources_take_the_place_of_the_default() {
    let resources = |admission: Value| {
        let [mut deployment, ..] = built(&admission, None);
        deployment["spec"]["template"]["spec"]["containers"][0]["resources"].take()
    };
    assert_eq!(resources(json!({}))["limits"], json!({ "memory": "64Mi" }));
    let own = json!({ "limits": { "cpu": "1" } });
    assert_eq!(resources(json!({ "resources": own })), own);
}

#[test]
fn the_webhook_is_asked_about_new_peer_pods_of_other_namespaces_alone() {
    let admission =
        json!({ "runtimeClassName": "kata-\"x\"", "excludedNamespaces": ["skipped", "kube-system", "a"] });
    let [_, service, _, configuration] = built(&admission, None);
    assert_eq!(configuration["metadata"]["name"], "peer-pods-config");
    assert_eq!(configuration["metadata"]["ownerReferences"], Value::Null);
    let webhook = &configuration["webhooks"][0];
    assert_eq!(webhook["name"], "mwebhook.peerpods.io");
    let expected = json!([{
        "name": "runtime-class",
        "expression": r#"object.spec.?runtimeClassName.orValue("") == "kata-\"x\"""#,
    }]);
    assert_eq!(webhook["matchConditions"], expected);
    let namespaces = json!(["a", "kube-system", "ns", "skipped"]);
    let key = "kubernetes.io/metadata.name";
    let expected = json!({ "matchExpressions": [{ "key": key, "operator": "NotIn", "values": namespaces }] });
    assert_eq!(webhook["namespaceSelector"], expected);
    let expected = json!([{
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        "scope": "Namespaced",
    }]);
    assert_eq!(webhook["rules"], expected);
    assert_eq!(
        [&webhook["failurePolicy"], &webhook["sideEffects"], &webhook["reinvocationPolicy"]],
        ["Fail", "None", "IfNeeded"]
    );
    let expected = json!({ "service": {
        "name": service["metadata"]["name"],
        "namespace": "ns",
        "path": "/mutate-v1-pod",
        "port": service["spec"]["ports"][0]["port"],
    } });
    assert_eq!(webhook["clientConfig"], expected);
}

#[test]
fn an_authority_is_set_where_it_is_known() {
    let [.., configuration] = built(&json!({}), Some(ByteString(b"x".to_vec())));
    assert_eq!(configuration["webhooks"][0]["clientConfig"]["caBundle"], "eA==");
}

#[test]
fn its_pods_match_service_and_budget_and_have_the_configured_arguments() {
    let (pod_labels, pod_annotations) =
        (json!({ "team": "a", "app.kubernetes.io/name": "x" }), json!({ "b": "c" }));
    let admission = json!({
        "replicas": 3, "extendedResource": "a.b/c", "sizing": "Sum", "podLabels": pod_labels, "podAnnotations": pod_annotations,
    });
    let [deployment, service, budget, _] = built(&admission, None);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let selectors = [
        &deployment["spec"]["selector"]["matchLabels"],
        &service["spec"]["selector"],
        &budget["spec"]["selector"]["matchLabels"],
    ];
    for selector in selectors {
        for (key, value) in selector.as_object().unwrap() {
            assert_eq!(&labels[key], value, "{key}");
        }
    }
    assert_eq!((&labels["team"], &deployment["metadata"]["labels"]["team"]), (&json!("a"), &json!("a")));
    assert_eq!(deployment["metadata"]["labels"]["app.kubernetes.io/name"], labels["app.kubernetes.io/name"]);
    assert_eq!(deployment["spec"]["template"]["metadata"]["annotations"], pod_annotations);
    assert_eq!(deployment["spec"]["replicas"], 3);
    let spread = &deployment["spec"]["template"]["spec"]["topologySpreadConstraints"][0];
    assert_eq!(spread["matchLabelKeys"], json!(["pod-template-hash"]), "Pods that are to go do not count");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "pull" }]));
    assert_eq!(pod["nodeSelector"], json!({ "infra": "" }));
    let container = &pod["containers"][0];
    assert_eq!([&container["image"], &container["imagePullPolicy"]], ["operator", "Always"]);
    let arguments = json!([
        "webhook",
        "--addr=:9443",
        "--health-addr=:8081",
        "--metrics-addr=:8080",
        "--runtime-class=kata-remote",
        "--refuse-other-classes=true",
        "--extended-resource=a.b/c",
        "--sizing=sum",
        "--log-format=json",
        format!("--tls-cipher-suites={CIPHER}"),
    ]);
    assert_eq!(container["args"], arguments);
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(ports.contains(&&service["spec"]["ports"][0]["targetPort"]));
    assert!(ports.contains(&&container["readinessProbe"]["httpGet"]["port"]));
}

#[test]
fn a_terminating_pod_serves_on_and_has_time_for_open_requests() {
    let [deployment, ..] = built(&json!({}), None);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["lifecycle"], json!({ "preStop": { "sleep": { "seconds": 5 } } }));
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > 5 + server::LONGEST_STOP.as_secs(), "{grace}");
}

#[test]
fn it_serves_metrics_as_the_operator_does() {
    let arguments = |program: &Program| {
        let config = PeerPodConfig::new("config", crate::api::v1alpha1::PeerPodConfigSpec::default());
        let owner = Owner { config: &config, namespace: "ns" };
        let deployment = serde_json::to_value(deployment(&owner, &TlsOptions::default(), program)).unwrap();
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(!arguments(&program()).contains("--metrics-secure"));
    assert!(arguments(&Program { secure_metrics: true, ..program() }).contains("--metrics-secure=true"));
}
