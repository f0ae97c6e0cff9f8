//! The values file of somebody who has cloud-api-adaptor's own charts.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{CHART, Helm, RELEASE};
use crate::{kustomize::data, support::beside_others};

/// Every value of their charts, of each release up to now: none of them is the default.
fn theirs() -> Value {
    json!({
        "provider": "aws",
        "providerConfigs": { "aws": { "AWS_REGION": "eu-1", "ROOT_VOLUME_SIZE": 40, "CERT_FILE": "/etc/certificates/client.crt" }, "libvirt": null },
        "providerSecrets": { "aws": { "AWS_ACCESS_KEY_ID": "k", "id_rsa": "p", "id_rsa_pub": "q" } },
        "secrets": {
            "mode": "create",
            "existingSecretName": "s",
            "existingSshKeySecretName": "k",
            "existingTlsSecretName": "t",
            "tlsCerts": { "caCert": "a", "clientCert": "b", "clientKey": "c" },
        },
        "image": { "name": "caa", "tag": "dev" },
        "tlsProfile": { "minVersion": "VersionTLS12", "cipherSuites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" },
        "limit": "0",
        "daemonset": {
            "updateStrategy": { "maxUnavailable": 1, "maxSurge": 0 },
            "podLabels": { "azure.workload.identity/use": "true" },
            "serviceAccount": { "annotations": { "azure.workload.identity/client-id": "1" } },
        },
        "resourceCtrl": {
            "enabled": true,
            "namePrefix": "peerpodctrl-",
            "image": { "repository": "peerpod-ctrl", "tag": "v1", "pullPolicy": "Always" },
            "authProxy": { "enabled": true, "image": "kube-rbac-proxy:v0" },
            "podLabels": { "a": "b" },
            "serviceAccount": { "annotations": { "c": "d" } },
            "tlsMinVersion": "VersionTLS12",
            "tlsCipherSuites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        },
        "webhook": {
            "enabled": true,
            "namePrefix": "peer-pods-webhook-",
            "namespaceOverride": "peer-pods-webhook-system",
            "replicas": 3,
            "image": { "repository": "peer-pods-webhook", "tag": "v1", "pullPolicy": "Always" },
            "resources": { "limits": { "cpu": "1", "memory": "64Mi" }, "requests": { "cpu": "1" } },
            "webhook": {
                "targetRuntimeClass": "kata-mine",
                "podVMExtendedResource": "mine.example/vm",
                "failurePolicy": "Ignore",
                "annotations": { "admissions.enforcer/disabled": "true" },
                "labels": { "a": "b" },
            },
            "tlsMinVersion": "VersionTLS13",
            "tlsCipherSuites": "",
            "certManager": { "enabled": true },
            "authProxy": { "enabled": true, "image": "kube-rbac-proxy:v0", "resources": { "limits": { "cpu": "1" } } },
        },
        "alibabacloud": { "rrsa": { "enable": true } },
        "kata-deploy": { "enabled": false, "shims": { "remote": { "enabled": true } } },
        "global": { "a": "b" },
    })
}

/// What helm says of an installation with these values.
pub async fn installed(helm: &Helm, values: &Value) -> Result<String> {
    let file = helm.home.path().join("theirs.yaml");
    fs::write(&file, values.to_string())?;
    let options = ["--dry-run=server", "--take-ownership", "--values", file.to_str().context("UTF-8")?];
    let told = helm.run(&[&["upgrade", "--install", RELEASE, CHART], &options[..]].concat()).await?;
    // What would be installed comes first.
    let (_, notes) = told.split_once("\nNOTES:\n").context("helm says nothing")?;
    Ok(notes.to_owned())
}

/// The values that helm says are without effect, in alphabetical order.
pub fn in_vain(told: &str) -> Result<Vec<&str>> {
    let Some((_, list)) = told.split_once("have no effect here") else { return Ok(Vec::new()) };
    let (_, list) = list.split_once(": ").context("no list")?;
    let mut vain: Vec<_> = list.lines().next().context("an empty list")?.split(", ").collect();
    vain.sort_unstable();
    Ok(vain)
}

#[test]
fn a_values_file_of_cloud_api_adaptors_charts_is_taken_and_what_it_says_in_vain_is_named() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let told = installed(&helm, &theirs()).await?;
        let vain = in_vain(&told)?;
        let expected = [
            "alibabacloud.rrsa.enable",
            "global",
            "kata-deploy",
            "resourceCtrl.authProxy",
            "resourceCtrl.image",
            "resourceCtrl.namePrefix",
            "resourceCtrl.tlsCipherSuites",
            "secrets.existingSecretName (secrets.mode is create)",
            "secrets.existingSshKeySecretName (secrets.mode is create)",
            "secrets.existingTlsSecretName (secrets.mode is create)",
            "secrets.tlsCerts.caCert (CACERT_FILE is empty)",
            "secrets.tlsCerts.clientKey (CERT_KEY is empty)",
            "webhook.authProxy",
            "webhook.certManager",
            "webhook.image",
            "webhook.namePrefix",
            "webhook.namespaceOverride",
            "webhook.resources",
            "webhook.tlsMinVersion",
            "webhook.webhook.annotations",
            "webhook.webhook.failurePolicy",
            "webhook.webhook.labels",
        ];
        ensure!(vain == expected, "{vain:?}");
        let told = installed(&helm, &json!({ "provider": "aws" })).await?;
        ensure!(!told.contains("have no effect here"), "{told}");
        ensure!(told.contains("DELETES NO VM of aws"), "{told}");
        let told = installed(&helm, &json!({ "provider": "libvirt" })).await?;
        ensure!(!told.contains("DELETES NO VM"), "{told}");
        Ok(())
    })
}

#[test]
fn a_setting_that_the_configuration_overrules_is_named_where_it_says_something_else() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let said = |limit: Value, class: &str, target: &str| {
            json!({
                "provider": "aws",
                "providerConfigs": { "aws": { "PEERPODS_LIMIT_PER_NODE": limit, "RUNTIMECLASS_NAME": class } },
                "webhook": { "webhook": { "targetRuntimeClass": target } },
                "peerPodConfig": { "create": true },
            })
        };
        let both = [
            "providerConfigs.aws.PEERPODS_LIMIT_PER_NODE (limit counts)",
            "providerConfigs.aws.RUNTIMECLASS_NAME (webhook.webhook.targetRuntimeClass counts)",
        ];
        for (values, expected) in [
            (said(json!(25), "kata-mine", "kata-remote"), &both[..]),
            (said(json!("10"), "kata-mine", "kata-mine"), &[]),
            (said(json!("10"), "kata-remote", "kata-mine"), &[]),
        ] {
            let told = installed(&helm, &values).await?;
            ensure!(in_vain(&told)? == expected, "{values}: {told}");
        }
        let mut alone = said(json!(25), "kata-mine", "kata-remote");
        alone["peerPodConfig"] = json!({});
        let told = installed(&helm, &alone).await?;
        ensure!(in_vain(&told)?.is_empty(), "no PeerPodConfig overrules it: {told}");
        Ok(())
    })
}

#[test]
fn what_is_said_of_tls_becomes_the_settings_of_one_mind() -> Result<()> {
    const OLD: &str = "VersionTLS12";
    const NEW: &str = "VersionTLS13";
    const CIPHERS: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let said = |place: &str, version: &str, ciphers: &str| match place {
            "tlsProfile" => format!("{place}.minVersion={version},{place}.cipherSuites={ciphers}"),
            "" => format!(
                "providerConfigs.aws.TLS_MIN_VERSION={version},providerConfigs.aws.TLS_CIPHER_SUITES={ciphers}"
            ),
            _ => format!("{place}.tlsMinVersion={version},{place}.tlsCipherSuites={ciphers}"),
        };
        for (places, expected) in [
            (vec![], [None, None]),
            (vec![("resourceCtrl", OLD, CIPHERS)], [Some(OLD), Some(CIPHERS)]),
            (vec![("webhook", NEW, ""), ("resourceCtrl", OLD, CIPHERS)], [Some(NEW), None]),
            (vec![("", NEW, ""), ("webhook", OLD, CIPHERS)], [Some(NEW), Some("")]),
            (vec![("tlsProfile", OLD, CIPHERS), ("webhook", NEW, "")], [Some(OLD), Some(CIPHERS)]),
        ] {
            let values: Vec<_> =
                places.iter().map(|(place, version, ciphers)| said(place, version, ciphers)).collect();
            let values = [&["provider=aws".to_owned()], &values[..]].concat().join(",");
            let objects = helm.rendered(&["--no-hooks", "--set", &values]).await?;
            let settings = data(&objects, "ConfigMap")?;
            let made =
                ["TLS_MIN_VERSION", "TLS_CIPHER_SUITES"].map(|key| settings.get(key).and_then(Value::as_str));
            ensure!(made == expected, "{places:?}: {made:?}");
        }
        Ok(())
    })
}
