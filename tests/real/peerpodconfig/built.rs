//! The objects of a PeerPodConfig, as the API server takes them.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, LocalObjectReference},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    peerpodconfig::resources::{
        AdaptorSecrets, AdaptorSettings, DEFAULT_ADAPTOR_IMAGE, Inputs, Owner, daemon_set, differs,
        program::{Placement, Program},
        service_account, webhook,
    },
    provider::{CLOUDS, Cloud},
    settings::tls::TlsOptions,
};
use serde_json::{Value, json, to_value};

use crate::support::{Scene, beside_others};

/// Every field of Pods and nodes that a user can set, spelled differently from the API server.
fn everything() -> Value {
    json!({
        "instanceType": "large",
        "nodeSelector": { "zone": "a" },
        "labelSelector": {
            "matchLabels": { "kind": "metal" },
            "matchExpressions": [
                { "key": "a", "operator": "In", "values": ["1", "2"] },
                { "key": "b", "operator": "NotIn", "values": ["1"] },
                { "key": "c", "operator": "Exists" },
                { "key": "d", "operator": "DoesNotExist", "values": [] },
            ],
        },
        "adaptor": {
            "image": "mine",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [{ "name": "pull" }],
            "resources": {
                "limits": { "cpu": "1000m", "memory": "1024Mi" },
                "requests": { "cpu": 0.5, "memory": "0.5Gi" },
            },
            "privileged": true,
            "tolerations": [
                { "key": "", "operator": "Exists", "value": "" },
                { "key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0 },
            ],
            "priorityClassName": "system-node-critical",
            "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } },
            "podLabels": { "azure.workload.identity/use": "true" },
            "podAnnotations": { "empty": "" },
            "serviceAccountAnnotations": { "role": "arn" },
            "restartOnSettingsChange": true,
        },
        "admission": {
            "replicas": 3,
            "sizing": "Sum",
            "excludedNamespaces": ["b", "a"],
            "resources": { "limits": { "cpu": "2000m", "memory": "0.125Gi" } },
        },
    })
}

/// Placement that a user may set for the operator itself.
fn placed() -> Value {
    let terms = json!([{ "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }]);
    json!({
        "containers": [],
        "nodeSelector": { "infra": "" },
        "tolerations": [{ "operator": "Exists" }, { "key": "infra", "effect": "NoExecute" }],
        "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
            "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 1, "preference": terms[0] }],
        } },
        "priorityClassName": "system-cluster-critical",
    })
}

fn config(name: &str, spec: &Value) -> Result<PeerPodConfig> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1",
        "kind": "PeerPodConfig",
        "metadata": { "name": name, "namespace": NAMESPACE, "uid": format!("uid-of-{name}") },
        "spec": spec,
    }))?)
}

fn settings(cloud: &str) -> Result<AdaptorSettings> {
    let data = json!({ "data": { "CLOUD_PROVIDER": cloud } });
    let config_map: ConfigMap = serde_json::from_value(data)?;
    Ok(AdaptorSettings::read(Some(&config_map), None))
}

fn inputs<'a>(config: &'a PeerPodConfig, settings: &'a AdaptorSettings, namespace: &'a str) -> Inputs<'a> {
    Inputs {
        owner: Owner { config, namespace },
        settings,
        adaptor_image: DEFAULT_ADAPTOR_IMAGE,
        secrets: AdaptorSecrets::default(),
    }
}

/// The result of a server-side apply of these objects. Warnings count as failures.
async fn applied(scene: &Scene<'_>, objects: &[Value]) -> Result<Vec<Value>> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("objects.json");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(&file, list.to_string())?;
    let manager = format!("--field-manager={FIELD_MANAGER}");
    let file = file.to_str().context("UTF-8")?;
    let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", &manager];
    let strict = ["--validate=strict", "--warnings-as-errors", "--filename", file];
    let output = ["--output=json", "--show-managed-fields"];
    let arguments = [&apply[..], &strict, &output].concat();
    let output: Value = serde_json::from_str(&scene.testbed.cluster().kubectl(&arguments).await?)?;
    // kubectl prints a single object without a list.
    Ok(output["items"].as_array().cloned().unwrap_or_else(|| vec![output]))
}

/// Fails unless the API server accepts all of them without a warning, and a second comparison finds nothing to write.
async fn settle(scene: &Scene<'_>, objects: &[Value]) -> Result<()> {
    let applied = applied(scene, objects).await?;
    assert_eq!(applied.len(), objects.len());
    for (applied, desired) in applied.iter().zip(objects) {
        ensure!(!differs(applied, desired, FIELD_MANAGER), "{applied:#} differs from {desired:#}");
    }
    Ok(())
}

#[test]
fn the_daemon_set_of_every_cloud_is_accepted_and_not_written_again() -> Result<()> {
    beside_others(async |scene| {
        let mut objects = Vec::new();
        for cloud in CLOUDS.map(Cloud::name).into_iter().chain(["a-plugin"]) {
            for (suffix, spec) in [("plain", json!({})), ("full", everything())] {
                let (config, settings) = (config(&format!("{cloud}-{suffix}"), &spec)?, settings(cloud)?);
                objects.push(to_value(daemon_set(&inputs(&config, &settings, NAMESPACE)))?);
            }
        }
        let full = config("account", &everything())?;
        objects.push(to_value(service_account([&full], NAMESPACE))?);
        settle(scene, &objects).await
    })
}

#[test]
fn the_webhook_is_accepted_where_pod_security_is_restricted() -> Result<()> {
    beside_others(async |scene| {
        for level in ["enforce", "warn"] {
            let label = format!("pod-security.kubernetes.io/{level}=restricted");
            let arguments = ["label", "namespace", &scene.namespace, &label];
            scene.testbed.cluster().kubectl(&arguments).await?;
        }
        let settings = settings("aws")?;
        let tls = TlsOptions::parse("VersionTLS13", "")?;
        let pull_secrets = vec![LocalObjectReference { name: "pull".to_owned() }];
        let placement =
            Placement::of(&serde_json::from_value(json!({ "spec": { "selector": {}, "template": {
            "spec": placed(),
        } } }))?);
        let program = Program { pull_secrets, placement, ..Program::public("peerpod-operator") };
        let mut objects = Vec::new();
        for (name, spec) in [("plain", json!({})), ("full.v2", everything())] {
            let config = config(name, &spec)?;
            let inputs = inputs(&config, &settings, &scene.namespace);
            let deployment = to_value(webhook::deployment(&inputs.owner, &tls, &program))?;
            let mut pod = deployment["spec"]["template"].clone();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["metadata"]["name"] = format!("pod-{}", objects.len()).into();
            pod["metadata"]["namespace"] = scene.namespace.clone().into();
            // The installation has it in its own namespace alone.
            pod["spec"]["serviceAccountName"] = "default".into();
            objects.extend([deployment, pod]);
            objects.push(to_value(webhook::service(&inputs.owner))?);
            objects.push(to_value(webhook::disruption_budget(&inputs.owner))?);
            objects.push(to_value(webhook::configuration(&inputs.owner, None))?);
        }
        settle(scene, &objects).await
    })
}

#[test]
fn drift_is_seen_and_put_back_and_what_others_set_stays() -> Result<()> {
    beside_others(async |scene| {
        let settings = settings("libvirt")?;
        let mut full = config("drift", &everything())?;
        // The garbage collector would delete an object whose owner does not exist.
        full.metadata.uid = None;
        let inputs = inputs(&full, &settings, &scene.namespace);
        let daemon_sets: Api<DaemonSet> = Api::namespaced(scene.testbed.client(), &scene.namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let desired = daemon_set(&inputs);
        let name = desired.metadata.name.clone().context("it has a name")?;
        let apply = async |desired: &DaemonSet| -> Result<DaemonSet> {
            Ok(daemon_sets.patch(&name, &params, &Patch::Apply(desired)).await?)
        };
        let now = async |desired: &DaemonSet| -> Result<bool> {
            let current = to_value(daemon_sets.get(&name).await?)?;
            Ok(differs(&current, &to_value(desired)?, FIELD_MANAGER))
        };
        let first = apply(&desired).await?;
        assert!(!now(&desired).await?);

        // Other programs add fields.
        scene.kubectl(&["annotate", "daemonset", &name, "others=annotation"]).await?;
        let image = format!("daemonset/{name}");
        scene.kubectl(&["set", "env", &image, "OTHERS=variable"]).await?;
        assert!(!now(&desired).await?);
        // Other programs change fields.
        scene.kubectl(&["set", "image", &image, "cloud-api-adaptor=other"]).await?;
        assert!(now(&desired).await?);
        let mended = apply(&desired).await?;
        assert!(!now(&desired).await?);
        let image = |it: &DaemonSet| {
            it.spec.as_ref().and_then(|it| it.template.spec.as_ref()?.containers[0].image.clone())
        };
        assert_eq!(image(&mended), image(&first));
        assert!(to_value(&mended)?.to_string().contains("OTHERS"), "{mended:?}");
        // Other programs remove fields.
        let patch = r#"[{"op": "remove", "path": "/spec/template/spec/tolerations"}]"#;
        scene.kubectl(&["patch", "daemonset", &name, "--type=json", "--patch", patch]).await?;
        assert!(now(&desired).await?);
        apply(&desired).await?;
        assert!(!now(&desired).await?);
        // Fields that are no longer desired.
        let mut less = desired.clone();
        let spec = less.spec.as_mut().and_then(|it| it.template.spec.as_mut()).context("it has a Pod")?;
        spec.image_pull_secrets = None;
        spec.containers[0].resources = None;
        assert!(now(&less).await?);
        apply(&less).await?;
        assert!(!now(&less).await?);
        assert!(now(&desired).await?);
        daemon_sets.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    })
}
