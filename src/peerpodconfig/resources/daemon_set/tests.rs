use serde_json::{Value, json};

use super::{
    super::{AdaptorSecrets, AdaptorSettings, CONFIG_LABEL, Owner},
    *,
};
use crate::{
    api::v1alpha1::PeerPodConfig,
    provider::{CLOUDS, Cloud},
};

fn config(spec: &Value) -> PeerPodConfig {
    serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": "config", "namespace": "ns", "uid": "1-2-3" },
        "spec": spec,
    }))
    .unwrap()
}

/// The DaemonSet of this configuration if `CLOUD_PROVIDER` is `cloud`.
fn built(spec: &Value, cloud: &str) -> Value {
    built_with(spec, cloud, AdaptorSecrets::default())
}

fn built_with(spec: &Value, cloud: &str, secrets: AdaptorSecrets) -> Value {
    let config_map = json!({ "data": { "CLOUD_PROVIDER": cloud } });
    let config_map = serde_json::from_value(config_map).unwrap();
    let settings = AdaptorSettings::read(Some(&config_map), None);
    let config = config(spec);
    let inputs = Inputs {
        owner: Owner { config: &config, namespace: "ns" },
        settings: &settings,
        adaptor_image: DEFAULT_ADAPTOR_IMAGE,
        secrets,
    };
    serde_json::to_value(daemon_set(&inputs)).unwrap()
}

fn container(daemon_set: &Value) -> &Value {
    &daemon_set["spec"]["template"]["spec"]["containers"][0]
}

/// The volumes by the path where they are mounted, without their names.
fn mounted(daemon_set: &Value) -> Vec<(String, Value)> {
    let volumes = daemon_set["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let mounts = container(daemon_set)["volumeMounts"].as_array().unwrap();
    assert_eq!(volumes.len(), mounts.len());
    let source = |mount: &Value| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let mut volume = volume.clone();
        volume.as_object_mut().unwrap().remove("name");
        volume
    };
    mounts.iter().map(|it| (it["mountPath"].as_str().unwrap().to_owned(), source(it))).collect()
}

#[test]
fn it_has_what_cloud_api_adaptor_needs_on_every_cloud() {
    let daemon_set = built(&json!({}), "aws");
    assert_eq!(daemon_set["metadata"]["name"], "config-cloud-api-adaptor");
    let owner = &daemon_set["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("1-2-3"), &json!(true)));
    let pod = &daemon_set["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "cloud-api-adaptor");
    assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    assert_eq!(pod["nodeSelector"], json!({ "node.kubernetes.io/worker": "" }));
    let container = container(&daemon_set);
    assert_eq!(container["image"], "quay.io/confidential-containers/cloud-api-adaptor");
    assert_eq!(container["command"], json!(["/usr/local/bin/entrypoint.sh"]));
    let rights = json!({ "capabilities": { "add": ["NET_ADMIN", "SYS_ADMIN"] } });
    assert_eq!(container["securityContext"], rights);
    let probe = json!({
        "httpGet": { "host": "127.0.0.1", "path": "/startup", "port": 8000 },
        "periodSeconds": 10,
    });
    assert_eq!(container["readinessProbe"], probe);
    assert!(container["startupProbe"].is_null() && container["livenessProbe"].is_null());
    let update = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } });
    assert_eq!(daemon_set["spec"]["updateStrategy"], update);
    let paths: Vec<_> = mounted(&daemon_set).into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths,
        [
            "/run/peerpod",
            "/run/netns",
            "/run/xtables.lock",
            "/lib/modules",
            "/run/kata-containers/shared/direct-volumes",
            "/root/containers",
            "/etc/certificates",
        ]
    );
    assert_eq!(container["volumeMounts"][1]["mountPropagation"], "HostToContainer");
    assert_eq!(container["volumeMounts"][3]["readOnly"], true);
}

#[test]
fn settings_come_from_both_objects_and_what_the_operator_says_wins() {
    let spec = json!({
        "cloudSecretName": "credentials",
        "configMapName": "settings",
        "instanceType": "large",
        "admission": { "runtimeClassName": "kata-cc" },
    });
    let daemon_set = built(&spec, "aws");
    let sources =
        json!([{ "secretRef": { "name": "credentials" } }, { "configMapRef": { "name": "settings" } }]);
    assert_eq!(container(&daemon_set)["envFrom"], sources);
    let env = container(&daemon_set)["env"].as_array().unwrap().clone();
    let field = |path: &str| json!({ "fieldRef": { "apiVersion": "v1", "fieldPath": path } });
    assert_eq!(env[0], json!({ "name": "NODE_NAME", "valueFrom": field("spec.nodeName") }));
    assert_eq!(env[1], json!({ "name": "POD_UID", "valueFrom": field("metadata.uid") }));
    let values: Vec<_> = env[2..].iter().map(|it| (it["name"].clone(), it["value"].clone())).collect();
    assert_eq!(
        values,
        [
            (json!("PEERPODS_LIMIT_PER_NODE"), json!("-1")),
            (json!("RUNTIMECLASS_NAME"), json!("kata-cc")),
            (json!("PODVM_INSTANCE_TYPE"), json!("large")),
        ]
    );
    let env = |cloud| container(&built(&spec, cloud))["env"].as_array().unwrap().len();
    assert_eq!((env("libvirt"), env("azure")), (4, 5));
}

#[test]
fn a_cloud_has_its_own_volumes_beside() {
    let secret =
        |name: &str| json!({ "secret": { "secretName": name, "defaultMode": 0o600, "optional": true } });
    let token = |audience: &str, path: &str| {
        let token = json!({ "audience": audience, "expirationSeconds": 3600, "path": path });
        json!({ "projected": { "sources": [{ "serviceAccountToken": token }] } })
    };
    let ssh = ("/root/.ssh", secret("ssh-key-secret"));
    let expected = |cloud: &Cloud| match cloud.name() {
        "libvirt" => vec![ssh.clone()],
        "byom" => vec![
            ssh.clone(),
            ("/etc/ssh-allowlist", secret("ssh-host-key-allowlist")),
            ("/etc/byom/ssh-host-keys", secret("byom-ssh-host-keys")),
        ],
        "ibmcloud" => vec![("/var/run/secrets/tokens", token("iam", "vault-token"))],
        "alibabacloud" => {
            vec![("/var/run/secrets/ack.alibabacloud.com/rrsa-tokens", token("sts.aliyuncs.com", "token"))]
        }
        "docker" => vec![
            ("/var/run/docker.sock", json!({ "hostPath": { "path": "/var/run/docker.sock" } })),
            ("/var/lib/docker", json!({ "hostPath": { "path": "/var/lib/docker" } })),
        ],
        _ => Vec::new(),
    };
    for cloud in CLOUDS {
        let further = mounted(&built(&json!({}), cloud.name())).split_off(7);
        let further: Vec<_> = further.iter().map(|(path, volume)| (path.as_str(), volume.clone())).collect();
        assert_eq!(further, expected(cloud), "{cloud}");
    }
}

#[test]
fn the_spec_reaches_the_pod_and_cannot_break_the_selector() {
    let spec = json!({
        "nodeSelector": { "zone": "a" },
        "labelSelector": { "matchLabels": { "kind": "metal" } },
        "adaptor": {
            "image": "mine",
            "imagePullPolicy": "Always",
            "imagePullSecrets": [{ "name": "pull" }, { "name": "pull" }],
            "resources": { "limits": { "memory": "1Gi" } },
            "tolerations": [{ "key": "", "operator": "Exists" }],
            "updateStrategy": { "type": "OnDelete" },
            "podLabels": { "azure.workload.identity/use": "true", CONFIG_LABEL: "other", "app.kubernetes.io/name": "x" },
            "podAnnotations": { "a": "b", STAYS_ON_NODE: "true" },
        },
    });
    let daemon_set = built(&spec, "azure");
    let template = &daemon_set["spec"]["template"];
    for (key, value) in daemon_set["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&template["metadata"]["labels"][key], value, "{key}");
    }
    assert_eq!(template["metadata"]["labels"]["azure.workload.identity/use"], "true");
    assert_eq!(template["metadata"]["annotations"]["a"], "b");
    assert_eq!(template["metadata"]["annotations"][STAYS_ON_NODE], "true");
    assert_eq!(daemon_set["spec"]["updateStrategy"], json!({ "type": "OnDelete" }));
    assert_eq!(template["spec"]["nodeSelector"], json!({ "zone": "a" }));
    assert!(template["spec"]["affinity"]["nodeAffinity"].is_object());
    assert_eq!(template["spec"]["imagePullSecrets"], json!([{ "name": "pull" }]));
    assert_eq!(template["spec"]["tolerations"], json!([{ "operator": "Exists" }]));
    let container = container(&daemon_set);
    assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("mine"), &json!("Always")));
    assert_eq!(container["resources"], json!({ "limits": { "memory": "1Gi" } }));
}

#[test]
fn it_is_privileged_and_has_a_priority_only_if_the_spec_says_so() {
    let mut given = built(&json!({ "adaptor": { "privileged": true, "priorityClassName": "high" } }), "aws");
    let pod = given["spec"]["template"]["spec"].as_object_mut().unwrap();
    assert_eq!(pod.remove("priorityClassName"), Some(json!("high")));
    let context = pod["containers"][0]["securityContext"].as_object_mut().unwrap();
    assert_eq!(context.remove("privileged"), Some(json!(true)));
    // Any other difference would replace the Pods of existing installations at an upgrade of the operator.
    assert_eq!(built(&json!({}), "aws"), given);
    assert_eq!(built(&json!({ "adaptor": { "privileged": false } }), "aws"), given);
}

#[test]
fn secrets_of_other_names_are_mounted_in_the_same_places() {
    let own = AdaptorSecrets { ssh_key: "key", tls: "certificates", byom_host_keys: "hosts" };
    let names = |cloud, secrets| -> Vec<String> {
        let found = mounted(&built_with(&json!({}), cloud, secrets)).into_iter();
        let places = ["/root/.ssh", "/etc/certificates", "/etc/byom/ssh-host-keys"];
        let found = found.filter(|(path, _)| places.contains(&&**path));
        found.filter_map(|(_, source)| Some(source["secret"]["secretName"].as_str()?.to_owned())).collect()
    };
    assert_eq!(names("libvirt", AdaptorSecrets::default()), ["certs-for-tls", "ssh-key-secret"]);
    assert_eq!(names("libvirt", own), ["certificates", "key"]);
    let byom = ["certs-for-tls", "ssh-key-secret", "byom-ssh-host-keys"];
    assert_eq!(names("byom", AdaptorSecrets::default()), byom);
    assert_eq!(names("byom", own), ["certificates", "key", "hosts"]);
}

#[test]
fn settings_change_the_template_only_where_they_are_in_force() {
    let read = |cloud: &str| {
        let config_map = json!({ "data": { "CLOUD_PROVIDER": cloud, "PROBE_PORT": "9000" } });
        AdaptorSettings::read(Some(&serde_json::from_value(config_map).unwrap()), None)
    };
    let config = config(&json!({}));
    let built = |settings: &AdaptorSettings| {
        let inputs = Inputs {
            owner: Owner { config: &config, namespace: "ns" },
            settings,
            adaptor_image: "adaptor",
            secrets: AdaptorSecrets::default(),
        };
        daemon_set(&inputs)
    };
    let (old, new) = (read("libvirt"), read("aws"));
    let current = built(&old);
    assert_eq!(built(&new.in_force(Some(&current), &config.spec, false)), current);
    let rolled = built(&new.in_force(Some(&current), &config.spec, true));
    assert_eq!(rolled, built(&new));
    let template = rolled.spec.unwrap().template.metadata.unwrap();
    assert_eq!(template.annotations.unwrap()[SETTINGS_HASH_ANNOTATION], new.hash);
    // To request restarts without a change, or to stop requesting them, replaces no Pod.
    assert_eq!(built(&old.in_force(Some(&current), &config.spec, true)), current);
}

#[test]
fn the_service_account_has_the_annotations_of_all_configurations() {
    let config =
        |annotations: Value| config(&json!({ "adaptor": { "serviceAccountAnnotations": annotations } }));
    let configs =
        [config(json!({ "a": "1", "b": "1" })), config(json!({ "b": "2", "c": "2" })), config(json!({}))];
    let account = |configs: &[PeerPodConfig]| {
        serde_json::to_value(service_account(configs, "ns")).unwrap()["metadata"].clone()
    };
    let annotations = json!({ "a": "1", "b": "1", "c": "2" });
    let name = "cloud-api-adaptor";
    assert_eq!(account(&configs), json!({ "name": name, "namespace": "ns", "annotations": annotations }));
    assert_eq!(account(&configs[2..]), json!({ "name": name, "namespace": "ns" }));
    // An annotation that the API server would refuse does not affect the others.
    let refused = config(json!({ "role arn": "1", "a": "1", "": "1" }));
    assert_eq!(unusable_annotations(&refused), ["", "role arn"]);
    assert_eq!(account(&[refused])["annotations"], json!({ "a": "1" }));
}

#[test]
fn its_pods_keep_off_nodes_with_those_of_other_configurations_alone() {
    for (spec, selects) in
        [(json!({}), false), (json!({ "labelSelector": { "matchLabels": { "zone": "a" } } }), true)]
    {
        let daemon_set = built(&spec, "aws");
        let template = &daemon_set["spec"]["template"];
        let affinity = &template["spec"]["affinity"];
        assert_eq!(affinity.get("nodeAffinity").is_some(), selects, "{affinity}");
        let terms = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
        let [term] = &terms.unwrap()[..] else { panic!("{affinity}") };
        assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
        let selector = &term["labelSelector"];
        let labels = &template["metadata"]["labels"];
        for (key, value) in selector["matchLabels"].as_object().unwrap() {
            assert_eq!((key == CONFIG_LABEL, value), (false, &labels[key]), "{key}");
        }
        assert_eq!(
            selector["matchExpressions"],
            json!([{ "key": CONFIG_LABEL, "operator": "NotIn", "values": ["config"] }])
        );
    }
}

#[test]
fn an_update_strategy_names_both_numbers() {
    let strategy = |strategy: Value| {
        built(&json!({ "adaptor": { "updateStrategy": strategy } }), "aws")["spec"]["updateStrategy"].clone()
    };
    let rolling = |surge: Value, unavailable: Value| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } });
    for (said, expected) in [
        (json!({}), rolling(json!(0), json!(1))),
        (json!({ "type": "" }), rolling(json!(0), json!(1))),
        (json!({ "rollingUpdate": { "maxSurge": 1 } }), rolling(json!(1), json!(0))),
        (json!({ "rollingUpdate": { "maxUnavailable": 0 } }), rolling(json!(1), json!(0))),
        (json!({ "rollingUpdate": { "maxSurge": "0%" } }), rolling(json!("0%"), json!(1))),
        (json!({ "rollingUpdate": { "maxUnavailable": "25%" } }), rolling(json!(0), json!("25%"))),
        (rolling(json!(2), json!(0)), rolling(json!(2), json!(0))),
        (json!({ "type": "OnDelete", "rollingUpdate": { "maxSurge": 1 } }), json!({ "type": "OnDelete" })),
    ] {
        assert_eq!(strategy(said.clone()), expected, "{said}");
    }
}

/// What an upgrade of the operator changes here replaces the Pods of existing installations, and running peer pods lose their
/// connection. A selector cannot change at all.
#[test]
fn the_template_of_existing_installations_changes_only_on_purpose() {
    let expected: Value = serde_json::from_str(include_str!("template.json")).unwrap();
    let daemon_set = built(&json!({}), "aws");
    let why = "docs/src/install/upgrade.md must say so";
    for field in ["selector", "template"] {
        assert_eq!(daemon_set["spec"][field], expected[field], "{why}");
    }
    // What a cloud has beside.
    for cloud in CLOUDS {
        let daemon_set = built(&json!({ "instanceType": "large" }), cloud.name());
        let beyond = |list: &Value, common: usize| list.as_array().unwrap()[common..].to_vec();
        let container = container(&daemon_set);
        let further = json!({
            "env": beyond(&container["env"], 4),
            "volumeMounts": beyond(&container["volumeMounts"], 7),
            "volumes": beyond(&daemon_set["spec"]["template"]["spec"]["volumes"], 7),
        });
        assert_eq!(further, expected["further"][cloud.name()], "{cloud}: {why}");
    }
}
