//! Where each value of the chart ends up: in its own place, in the places that several share, and not in others.

mod provider;
mod rights;

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use peerpod_operator::{
    api::v1alpha1::PeerPodConfig,
    install::{APPLY_JOB, guard, removal},
    names,
};
use serde_json::{Value, json};

use super::{Helm, of_kind};
use crate::{install::kustomize::accepted, support::beside_others};

#[test]
fn values_take_their_places_and_the_api_server_takes_the_result() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let helm = Helm::of(cluster).await?;
        let values = helm.home.path().join("values.yaml");
        std::fs::write(&values, serde_yaml::to_string(&everything())?)?;
        let values = values.to_str().context("UTF-8")?;
        let objects = helm.rendered(&["--values", values]).await?;

        let deployment = of_kind(&objects, "Deployment")?;
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let variable = |name: &str| {
            let mut all = container["env"].as_array().into_iter().flatten();
            all.find(|it| it["name"] == name).map_or(&Value::Null, |it| &it["value"])
        };
        for (place, value) in [
            (&deployment["spec"]["replicas"], json!(3)),
            (&deployment["metadata"]["annotations"], json!({ "at": "deployment" })),
            (&deployment["metadata"]["labels"]["team"], json!("a")),
            (&deployment["spec"]["template"]["metadata"]["labels"]["of"], json!("pod")),
            (&deployment["spec"]["template"]["metadata"]["labels"]["wi"], json!("true")),
            (&deployment["spec"]["template"]["metadata"]["annotations"], json!({ "at": "pod" })),
            (&pod["nodeSelector"], json!({ "zone": "a", "kubernetes.io/os": "linux" })),
            (&pod["priorityClassName"], json!("high")),
            (&pod["imagePullSecrets"], json!([{ "name": "pull" }])),
            (&pod["tolerations"], json!([{ "operator": "Exists" }])),
            (&pod["affinity"], json!({ "podAffinity": {} })),
            (&pod["topologySpreadConstraints"], json!([])),
            (&pod["volumes"][0]["configMap"]["name"], json!("mine")),
            (&pod["volumes"][1]["secret"]["secretName"], json!("credentials")),
            (&pod["volumes"][2]["secret"]["secretName"], json!("hosts")),
            (&pod["volumes"][3]["secret"]["secretName"], json!("key")),
            (&pod["volumes"][5], json!({ "name": "more", "emptyDir": {} })),
            (&container["image"], json!(format!("registry.example/operator@{}", digest()))),
            (&container["imagePullPolicy"], json!("Always")),
            (&container["resources"], json!({ "limits": { "memory": "64Mi" } })),
            (&container["volumeMounts"][5], json!({ "name": "more", "mountPath": "/more" })),
            (variable("PEERPOD_OPERATOR_SETTINGS_CONFIG_MAP"), json!("mine")),
            (variable("PEERPOD_OPERATOR_CREDENTIALS_SECRET"), json!("credentials")),
            (variable("PEERPOD_OPERATOR_SSH_KEY_SECRET"), json!("key")),
            (variable("PEERPOD_OPERATOR_ADAPTOR_TLS_SECRET"), json!("certificates")),
            (variable("RELATED_IMAGE_CAA"), json!(format!("caa:v1@{}", digest()))),
            (variable("PEERPOD_OPERATOR_BYOM_HOST_KEYS_SECRET"), json!("hosts")),
            (variable("A"), json!("b")),
        ] {
            ensure!(*place == value, "{place} is not {value}");
        }
        let arguments = container["args"].to_string();
        for argument in [
            "--lease-name=33f6c5d6.confidentialcontainers.org",
            "--controllers=peerpod,peerpodconfig",
            "--concurrency=7",
        ] {
            ensure!(arguments.contains(argument), "{argument}: {arguments}");
        }
        for object in objects.iter().filter(|it| it["spec"]["template"].is_object()) {
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            ensure!(labels["team"] == "a" && labels["app.kubernetes.io/name"].is_string(), "{object}");
        }
        let accounts: Vec<_> = objects.iter().filter(|it| it["kind"] == "ServiceAccount").collect();
        for (name, annotations) in
            [("peerpod-operator", json!({ "role": "o" })), ("cloud-api-adaptor", json!({ "role": "a" }))]
        {
            let account = accounts.iter().find(|it| it["metadata"]["name"] == name).context(name)?;
            ensure!(account["metadata"]["annotations"] == annotations, "{account}");
        }
        let mut bindings = objects.iter().filter(|it| it["kind"] == "ValidatingAdmissionPolicyBinding");
        let guard = bindings.find(|it| it["metadata"]["name"] == guard::NAME).context("there is no guard")?;
        ensure!(guard["spec"]["validationActions"][0] == "Deny", "{guard}");
        let config = objects.iter().find_map(|it| it["data"]["peerpodconfig.yaml"].as_str());
        let config: PeerPodConfig = serde_yaml::from_str(config.context("no PeerPodConfig")?)?;
        let spec = serde_json::to_value(&config.spec)?;
        ensure!(
            config.name_any() == "1e3" && spec["limit"] == "7" && spec["instanceType"] == "large",
            "{spec}"
        );
        ensure!(spec["admission"]["mode"] == "Policy" && spec["admission"]["replicas"] == 4, "{spec}");
        ensure!(spec["admission"]["resources"] == json!({ "limits": { "cpu": "0.5" } }), "{spec}");
        ensure!(
            spec["adaptor"]["updateStrategy"]["rollingUpdate"]
                == json!({ "maxUnavailable": 0, "maxSurge": 10 }),
            "{spec}"
        );
        ensure!(spec["adaptor"]["resources"] == json!({ "limits": { "cpu": "0.25" } }), "{spec}");
        ensure!(spec["adaptor"]["image"] == json!(format!("caa:v1@{}", digest())), "{spec}");
        ensure!(spec["cloudSecretName"] == "credentials" && spec["configMapName"] == "mine", "{spec}");
        the_job_may_write_its_configuration_alone(&objects)?;
        for kind in ["PrometheusRule", "PodMonitor", "NetworkPolicy", "PodDisruptionBudget", "Job"] {
            of_kind(&objects, kind)?;
        }
        // The others' kinds are not Kubernetes' own.
        let known = |object: &&Value| object["apiVersion"] != "monitoring.coreos.com/v1";
        accepted(cluster, &objects.iter().filter(known).cloned().collect::<Vec<_>>()).await
    })
}

fn the_job_may_write_its_configuration_alone(objects: &[Value]) -> Result<()> {
    let mut roles = objects.iter().filter(|it| it["kind"] == "Role");
    let role = roles.find(|it| it["metadata"]["name"] == APPLY_JOB).context("the Job has no Role")?;
    ensure!(role["rules"][0]["resourceNames"] == json!(["1e3"]), "it may write other PeerPodConfigs: {role}");
    Ok(())
}

fn digest() -> String {
    format!("sha256:{}", "01".repeat(32))
}

/// A value other than the default for everything that has an effect.
fn everything() -> Value {
    json!({
        "provider": "aws",
        "secrets": {
            "mode": "reference",
            "existingSecretName": "credentials",
            "existingSshKeySecretName": "key",
            "existingTlsSecretName": "certificates",
            "existingByomHostKeySecretName": "hosts",
        },
        "settings": { "existingConfigMapName": "mine" },
        "image": { "name": "caa", "tag": format!("v1@{}", digest()) },
        "limit": "7",
        "daemonset": {
            // An octal number elsewhere.
            "updateStrategy": { "maxUnavailable": "0", "maxSurge": "010" },
            "podLabels": { "x": "z" },
            "serviceAccount": { "annotations": { "role": "a" } },
        },
        "resourceCtrl": { "podLabels": { "wi": "true" }, "serviceAccount": { "annotations": { "role": "o" } } },
        "webhook": { "replicas": 4, "resources": { "limits": { "cpu": 0.5, "memory": null }, "requests": { "cpu": null } } },
        "admission": { "mode": "Policy", "sizing": "Sum", "excludedNamespaces": ["a"] },
        "peerPodConfig": { "create": true, "name": "1e3", "spec": { "instanceType": "large", "adaptor": { "resources": { "limits": { "cpu": 0.25 } } } } },
        "operator": {
            "image": { "repository": "registry.example/operator", "digest": digest(), "pullPolicy": "Always" },
            "imagePullSecrets": [{ "name": "pull" }],
            "replicas": 3,
            "leaseName": names::PEERPOD_CTRL_LEASE,
            "resources": { "requests": null, "limits": { "memory": "64Mi" } },
            "extraArgs": ["--concurrency=7"],
            "extraEnv": [{ "name": "A", "value": "b" }],
            "extraVolumes": [{ "name": "more", "emptyDir": {} }],
            "extraVolumeMounts": [{ "name": "more", "mountPath": "/more" }],
            "podLabels": { "of": "pod" },
            "podAnnotations": { "at": "pod" },
            "annotations": { "at": "deployment" },
            "nodeSelector": { "zone": "a" },
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "podAffinity": {} },
            "topologySpreadConstraints": [],
            "priorityClassName": "high",
        },
        "guard": { "action": "Deny" },
        "metrics": { "podMonitor": { "enabled": true }, "alerts": { "enabled": true }, "dashboard": { "enabled": true } },
        "networkPolicy": { "enabled": true },
        "podDisruptionBudget": { "enabled": true },
        "commonLabels": { "team": "a" },
        "kata-deploy": { "enabled": false },
    })
}

#[test]
fn annotations_and_labels_of_the_webhook_are_the_peerpodconfigs() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let webhook = json!({ "annotations": { "enforcer": "off" }, "labels": { "of": "webhook" } });
        let webhook = format!("--set-json=webhook.webhook={webhook}");
        let objects = helm.rendered(&["--set=peerPodConfig.create=true", &webhook]).await?;
        let config = objects.iter().find_map(|it| it["data"]["peerpodconfig.yaml"].as_str());
        let config: PeerPodConfig = serde_yaml::from_str(config.context("no PeerPodConfig")?)?;
        let spec = serde_json::to_value(&config.spec.admission)?;
        ensure!(spec["webhookAnnotations"] == json!({ "enforcer": "off" }), "{spec}");
        ensure!(spec["webhookLabels"] == json!({ "of": "webhook" }), "{spec}");
        Ok(())
    })
}

#[test]
fn a_job_has_the_node_affinity_of_the_operator_and_no_pod_affinity() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let node = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [] } });
        let neighbours = json!({ "requiredDuringSchedulingIgnoredDuringExecution": [] });
        for (affinity, expected) in [
            (json!({ "podAntiAffinity": neighbours }), Value::Null),
            (json!({ "podAntiAffinity": neighbours, "nodeAffinity": node }), json!({ "nodeAffinity": node })),
        ] {
            let affinity = format!("operator.affinity={affinity}");
            let values = "peerPodConfig.create=true,operator.priorityClassName=high";
            let objects = helm.rendered(&["--set-json", &affinity, "--set", values]).await?;
            let jobs: Vec<_> = objects.iter().filter(|object| object["kind"] == "Job").collect();
            ensure!(jobs.len() == 2, "{} Jobs", jobs.len());
            for job in jobs {
                let pod = &job["spec"]["template"]["spec"];
                ensure!(pod["affinity"] == expected && pod["priorityClassName"] == "high", "{pod}");
                ensure!(pod["nodeSelector"] == json!({ "kubernetes.io/os": "linux" }), "{pod}");
            }
        }
        Ok(())
    })
}

#[test]
fn a_user_may_choose_another_system_than_the_installations() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let selector = json!({ "kubernetes.io/os": "other" });
        let value = format!("--set-json=operator.nodeSelector={selector}");
        let objects = helm.rendered(&[&value]).await?;
        let pod = &of_kind(&objects, "Deployment")?["spec"]["template"]["spec"];
        ensure!(pod["nodeSelector"] == selector, "{pod}");
        Ok(())
    })
}

#[test]
fn crds_deleted_with_the_release_have_no_keep_annotation() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let objects = helm.rendered(&["--set=crds.keep=false"]).await?;
        let annotations = &of_kind(&objects, "CustomResourceDefinition")?["metadata"]["annotations"];
        ensure!(*annotations == json!({ removal::ALLOW_ANNOTATION: "true" }), "{annotations}");
        Ok(())
    })
}

#[test]
fn a_label_of_one_object_overrides_the_common_label() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let kinds = [("podMonitor", "PodMonitor"), ("alerts", "PrometheusRule"), ("dashboard", "ConfigMap")];
        let own = kinds.map(|(name, _)| (name, json!({ "enabled": true, "labels": { "release": "own" } })));
        let values = json!({ "release": "all", "team": "a" });
        let options = [
            "--set-json",
            &format!("commonLabels={values}"),
            "--set-json",
            &format!("metrics={}", json!(std::collections::BTreeMap::from(own))),
        ];
        let objects = helm.rendered(&options).await?;
        for (_, kind) in kinds {
            let labels = &of_kind(&objects, kind)?["metadata"]["labels"];
            ensure!(labels["release"] == "own" && labels["team"] == "a", "{labels}");
        }
        Ok(())
    })
}

#[test]
fn any_namespace_gets_each_object_once() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for namespace in ["kube-system", "123", "default"] {
            let objects = helm.rendered_in(namespace, &["--set=provider=libvirt"]).await?;
            let mut seen = HashSet::new();
            for object in &objects {
                let metadata = &object["metadata"];
                let name = [&object["kind"], &metadata["namespace"], &metadata["name"]].map(Value::to_string);
                ensure!(seen.insert(name.clone()), "{name:?} is there twice");
            }
            let mut accounts = objects.iter().filter(|object| object["kind"] == "ServiceAccount");
            ensure!(accounts.all(|it| it["metadata"]["namespace"] == namespace), "{namespace}");
            let in_system = |object: &&Value| {
                object["kind"] == "Role"
                    && object["metadata"]["name"] == "cloud-api-adaptor"
                    && object["metadata"]["namespace"] == "kube-system"
            };
            let role = objects.iter().find(in_system).context("there is no Role in kube-system")?;
            let rules = role["rules"].as_array().context("rules")?;
            ensure!(rules.iter().any(|rule| rule["resourceNames"] == json!(["cluster-info"])), "{role}");
        }
        Ok(())
    })
}
