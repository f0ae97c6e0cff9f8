//! Values that meet in one place, and places that a value must not reach.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::{CHART, Helm, of_kind};
use crate::{kustomize::data, support::beside_others};

#[test]
fn a_job_goes_by_the_nodes_of_the_operator_and_not_by_its_neighbours() -> Result<()> {
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
            }
        }
        Ok(())
    })
}

#[test]
fn a_label_of_every_object_may_be_said_again_for_one() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let kinds = [("podMonitor", "PodMonitor"), ("alerts", "PrometheusRule")];
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

/// The Secrets of a release with these options.
async fn secrets(helm: &Helm, options: &[&str]) -> Result<Vec<Secret>> {
    let objects = helm.rendered(options).await?;
    let secrets = objects.into_iter().filter(|object| object["kind"] == "Secret");
    Ok(secrets.map(serde_json::from_value).collect::<Result<_, _>>()?)
}

#[test]
fn keys_and_certificates_end_with_a_newline_however_they_are_given() -> Result<()> {
    const TEXT: &str = "-----BEGIN-----\nA\n-----END-----";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for text in [TEXT.to_owned(), format!("{TEXT}\n")] {
            let values = json!({ "id_rsa": text, "id_rsa_pub": text, "OTHER": "as it is" });
            let certificates = json!({ "caCert": text, "clientCert": text, "clientKey": text });
            let options = [
                "--set=provider=libvirt",
                &format!("--set-json=providerSecrets.libvirt={values}"),
                &format!("--set-json=secrets.tlsCerts={certificates}"),
            ];
            let secrets = secrets(&helm, &options).await?;
            let data: Vec<_> = secrets.into_iter().filter_map(|secret| secret.data).flatten().collect();
            ensure!(data.len() == 6, "{data:?}");
            for (key, bytes) in data {
                let expected = if key == "OTHER" { "as it is".to_owned() } else { format!("{TEXT}\n") };
                ensure!(bytes.0 == expected.as_bytes(), "{key}: {:?}", String::from_utf8(bytes.0));
            }
        }
        Ok(())
    })
}

#[test]
fn settings_are_found_under_either_name_of_a_provider() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let all = format!("--values={CHART}/providers/ibmcloud-powervs.yaml");
        let names = ["ibmcloud-powervs", "ibmcloudpowervs"];
        for (provider, other) in [(names[0], names[1]), (names[1], names[0])] {
            let values = format!(
                "--set=provider={provider},providerConfigs.{other}.POWERVS_ZONE=there,\
                 providerSecrets.{other}.IBMCLOUD_API_KEY=key,providerConfigs.{other}.POWERVS_MEMORY=1,\
                 providerConfigs.{provider}.POWERVS_MEMORY=2"
            );
            let objects = helm.rendered(&[&all, &values]).await?;
            let settings = data(&objects, "ConfigMap")?;
            ensure!(settings["POWERVS_ZONE"] == "there" && settings["POWERVS_MEMORY"] == "2", "{settings:?}");
            ensure!(data(&objects, "Secret")?["IBMCLOUD_API_KEY"] == "a2V5");
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
