//! The values file of a user of cloud-api-adaptor's own charts.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{CHART, Helm, RELEASE, of_kind};
use crate::{install::kustomize::data, support::beside_others};

/// Every value of their charts, of all releases up to now. None of them is the default.
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
            "existingByomHostKeySecretName": "h",
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

fn values_file(helm: &Helm, values: &Value) -> Result<String> {
    let file = helm.home.path().join("theirs.yaml");
    fs::write(&file, values.to_string())?;
    Ok(file.to_str().context("UTF-8")?.to_owned())
}

/// helm's output for an installation with these values.
pub async fn installed(helm: &Helm, values: &Value) -> Result<String> {
    // Reading the API server's schemas takes six times as long as everything else.
    installed_with(helm, values, &["--disable-openapi-validation"]).await
}

/// The same with further options. Without any, helm validates all objects by the API server's schemas.
async fn installed_with(helm: &Helm, values: &Value, options: &[&str]) -> Result<String> {
    let file = values_file(helm, values)?;
    let command = ["upgrade", "--install", RELEASE, CHART];
    let all = ["--dry-run=server", "--take-ownership", "--values", &file];
    let told = helm.run(&[&command, &all[..], options].concat()).await?;
    // helm prints the rendered objects first.
    let (_, notes) = told.split_once("\nNOTES:\n").context("helm says nothing")?;
    Ok(notes.to_owned())
}

/// The values that have no effect according to helm, in alphabetical order.
pub fn in_vain(told: &str) -> Result<Vec<&str>> {
    let Some((_, list)) = told.split_once("have no effect here") else { return Ok(Vec::new()) };
    let (_, list) = list.split_once(": ").context("no list")?;
    let mut vain: Vec<_> = list.lines().next().context("an empty list")?.split(", ").collect();
    vain.sort_unstable();
    Ok(vain)
}

#[test]
fn values_of_the_adaptors_charts_are_taken_and_unused_ones_are_named() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let told = installed(&helm, &theirs()).await?;
        let vain = in_vain(&told)?;
        let expected = [
            "alibabacloud.rrsa.enable",
            "daemonset.podLabels (peerPodConfig.create is false)",
            "daemonset.updateStrategy (peerPodConfig.create is false)",
            "global",
            "kata-deploy",
            "limit (peerPodConfig.create is false)",
            "resourceCtrl.authProxy",
            "resourceCtrl.image",
            "resourceCtrl.namePrefix",
            "resourceCtrl.tlsCipherSuites",
            "secrets.existingByomHostKeySecretName (secrets.mode is create)",
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
            "webhook.replicas (peerPodConfig.create is false)",
            "webhook.resources (peerPodConfig.create is false)",
            "webhook.tlsMinVersion",
            "webhook.webhook.annotations (peerPodConfig.create is false)",
            "webhook.webhook.failurePolicy",
            "webhook.webhook.labels (peerPodConfig.create is false)",
            "webhook.webhook.podVMExtendedResource (peerPodConfig.create is false)",
            "webhook.webhook.targetRuntimeClass (peerPodConfig.create is false)",
        ];
        ensure!(vain == expected, "{vain:?}");
        let mut applied = theirs();
        applied["peerPodConfig"] = json!({ "create": true });
        // The only one of these dry runs whose objects helm validates: it renders the most of them.
        let told = installed_with(&helm, &applied, &[]).await?;
        let expected: Vec<_> =
            expected.into_iter().filter(|it| !it.contains("peerPodConfig.create")).collect();
        ensure!(in_vain(&told)? == expected, "{told}");
        // Another test installs the other providers.
        for provider in ["aws", "docker", "ibmcloud-powervs"] {
            let told = installed(&helm, &json!({ "provider": provider })).await?;
            ensure!(!told.contains("have no effect here"), "{told}");
        }
        Ok(())
    })
}

/// The values file of a user of the latest of these charts: everything of their `values.yaml`, and for one provider what its file and
/// its template of credentials ask for.
fn of_provider(name: &str, settings: &Value, credentials: &Value) -> Value {
    let off = json!({ "enabled": false });
    let mut values = json!({
        "secrets": {
            "mode": "create",
            "existingSecretName": "",
            "existingSshKeySecretName": "",
            "existingByomHostKeySecretName": "",
            "existingTlsSecretName": "",
            "tlsCerts": { "caCert": "", "clientCert": "", "clientKey": "" },
        },
        "image": { "name": "quay.io/confidential-containers/cloud-api-adaptor", "tag": "latest" },
        "provider": name,
        "tlsProfile": { "minVersion": "", "cipherSuites": "" },
        "limit": "10",
        "daemonset": {
            "updateStrategy": { "maxUnavailable": 0, "maxSurge": 1 },
            "podLabels": {},
            "serviceAccount": { "annotations": {} },
        },
        "resourceCtrl": { "enabled": true },
        "webhook": { "enabled": true },
        "kata-deploy": {
            "enabled": true,
            "snapshotter": { "setup": ["nydus"] },
            "defaultShim": { "amd64": "remote" },
            "shims": { "qemu": off, "remote": { "enabled": true } },
        },
    });
    // In a file whose settings are all comments, the provider's name has an empty value.
    values["providerConfigs"][name] = settings.clone();
    values["providerSecrets"][name] = credentials.clone();
    values
}

#[test]
fn a_values_file_of_cloud_api_adaptors_chart_installs_for_each_provider() -> Result<()> {
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nA\n-----END OPENSSH PRIVATE KEY-----\n";
    let ssh = json!({ "id_rsa": key, "id_rsa_pub": "ssh-rsa AAAA user@host" });
    let mut byom = ssh.clone();
    byom["hostKeys"] =
        json!({ "host-1.pub": "ssh-ed25519 AAAA", "host-2.pub": "ssh-rsa BBBB\n", "none.pub": null });
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for (name, settings, credentials, secrets) in [
            (
                "alibabacloud",
                json!({ "IMAGEID": "m-1", "VSWITCH_ID": "v-1", "SECURITY_GROUP_IDS": "s-1" }),
                json!({ "ALIBABACLOUD_ACCESS_KEY_ID": "k", "ALIBABACLOUD_ACCESS_KEY_SECRET": "s" }),
                1,
            ),
            (
                "aws",
                json!({ "PODVM_AMI_ID": "ami-1", "AWS_REGION": "eu-1", "ROOT_VOLUME_SIZE": 30, "USE_PUBLIC_IP": false }),
                json!({ "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s" }),
                1,
            ),
            (
                "azure",
                json!({
                    "AZURE_IMAGE_ID": "/i", "AZURE_REGION": "eu", "AZURE_RESOURCE_GROUP": "g", "AZURE_SUBNET_ID": "/s",
                    "AZURE_SUBSCRIPTION_ID": "1",
                }),
                json!({ "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s", "AZURE_TENANT_ID": "t" }),
                1,
            ),
            ("byom", json!({ "VM_POOL_IPS": "10.0.0.1,10.0.0.2" }), byom, 3),
            (
                "gcp",
                json!({ "GCP_NETWORK": "n", "GCP_PROJECT_ID": "p", "GCP_ZONE": "z" }),
                json!({ "GCP_CREDENTIALS": "{\"type\": \"service_account\"}" }),
                1,
            ),
            ("ibmcloud", json!({ "IBMCLOUD_PODVM_IMAGE_ID": "r-1" }), json!({ "IBMCLOUD_API_KEY": "k" }), 1),
            (
                "ibmcloudpowervs",
                json!({ "POWERVS_IMAGE_ID": "i", "POWERVS_NETWORK_ID": "n", "POWERVS_SERVICE_INSTANCE_ID": "s", "POWERVS_ZONE": "z" }),
                json!({ "IBMCLOUD_API_KEY": "k" }),
                1,
            ),
            ("libvirt", json!({}), ssh, 2),
            (
                "vsphere",
                json!({ "GOVC_DATACENTER": "d", "GOVC_URL": "https://v", "SECURE_COMMS": "false" }),
                json!({ "GOVC_USERNAME": "u", "GOVC_PASSWORD": "p" }),
                1,
            ),
        ] {
            let values = of_provider(name, &settings, &credentials);
            let told = installed(&helm, &values).await.with_context(|| name.to_owned())?;
            let strategy = "daemonset.updateStrategy (peerPodConfig.create is false)";
            ensure!(in_vain(&told)? == [strategy, "kata-deploy"], "{name}: {told}");
            let objects = helm.rendered(&["--values", &values_file(&helm, &values)?]).await?;
            let made = data(&objects, "ConfigMap")?;
            for (key, value) in settings.as_object().context("settings")? {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                ensure!(made[key] == text, "{name}: {key} is {}", made[key]);
            }
            let count = objects.iter().filter(|object| object["kind"] == "Secret").count();
            ensure!(count == secrets, "{name}: {count} Secrets");
        }
        Ok(())
    })
}

#[test]
fn json_among_the_credentials_is_taken_literally_and_refused_with_the_escapes_of_their_chart() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let rendered = async |key: &str| {
            let settings = json!({ "GCP_PROJECT_ID": "p" });
            let values = of_provider("gcp", &settings, &json!({ "GCP_CREDENTIALS": key }));
            helm.rendered(&["--values", &values_file(&helm, &values)?]).await
        };
        let objects = rendered(r#"{"type": "service_account", "private_key": "a\nb"}"#).await?;
        let made = &of_kind(&objects, "Secret")?["data"]["GCP_CREDENTIALS"];
        let encoded = "eyJ0eXBlIjogInNlcnZpY2VfYWNjb3VudCIsICJwcml2YXRlX2tleSI6ICJhXG5iIn0=";
        ensure!(*made == encoded, "{made}");
        ensure!(rendered(r"{\x").await.is_ok(), "a text that is no JSON is refused");
        for escaped in [r#"{\"type\": \"service_account\"}"#, r#"{\n  \"type\": \"service_account\"\n}"#] {
            let refusal = rendered(escaped).await.err().context("it was taken")?;
            let told = "providerSecrets.gcp.GCP_CREDENTIALS is escaped for cloud-api-adaptor's chart";
            ensure!(format!("{refusal:#}").contains(told), "{refusal:#}");
        }
        Ok(())
    })
}

#[test]
fn host_keys_of_byom_are_a_secret_that_cloud_api_adaptor_is_led_to() -> Result<()> {
    const FOLDER: &str = "/etc/byom/ssh-host-keys";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let rendered = async |provider: &str, credentials: Value, secrets: Value, folder: &str| {
            let settings = json!({ "VM_POOL_IPS": "10.0.0.1", "SSH_HOST_KEY_ALLOWLIST_DIR": folder });
            let mut values = of_provider(provider, &settings, &credentials);
            values["secrets"] = secrets;
            let objects = helm.rendered(&["--values", &values_file(&helm, &values)?]).await?;
            let folder = data(&objects, "ConfigMap")?["SSH_HOST_KEY_ALLOWLIST_DIR"].clone();
            let variables =
                of_kind(&objects, "Deployment")?["spec"]["template"]["spec"]["containers"][0]["env"].clone();
            let variables = variables.as_array().cloned().unwrap_or_default();
            let named =
                variables.into_iter().find(|it| it["name"] == "PEERPOD_OPERATOR_BYOM_HOST_KEYS_SECRET");
            let mut secrets = objects.into_iter().filter(|object| object["kind"] == "Secret");
            let own = secrets.find(|secret| secret["metadata"]["name"] == "byom-ssh-host-keys");
            anyhow::Ok((
                folder,
                named.context("a variable")?["value"].clone(),
                own.map(|own| own["data"].clone()),
            ))
        };
        let keys = || json!({ "hostKeys": { "a.pub": "ssh-ed25519 A" } });
        let create = || json!({ "mode": "create" });
        let reference = |name: &str| json!({ "mode": "reference", "existingByomHostKeySecretName": name });
        let name = json!("byom-ssh-host-keys");
        // c3NoLWVkMjU1MTkgQQo= ends with a newline.
        let data = Some(json!({ "a.pub": "c3NoLWVkMjU1MTkgQQo=" }));
        for (given, expected) in [
            (("byom", keys(), create(), ""), (json!(FOLDER), name.clone(), data.clone())),
            (
                ("byom", keys(), create(), "/etc/ssh-allowlist"),
                (json!("/etc/ssh-allowlist"), name.clone(), data),
            ),
            (("byom", json!({ "hostKeys": {} }), create(), ""), (json!(""), name.clone(), None)),
            (("byom", json!({}), reference("mine"), ""), (json!(FOLDER), json!("mine"), None)),
            (("byom", keys(), reference(""), ""), (json!(""), name, None)),
        ] {
            let (provider, credentials, secrets, folder) = given;
            let made = rendered(provider, credentials, secrets, folder).await?;
            ensure!(made == expected, "{made:?} is not {expected:?}");
        }
        // cloud-api-adaptor and the operator would not read the second one.
        for wrong in ["a/b.pub", "host-1"] {
            let keys = json!({ "hostKeys": { (wrong): "x" } });
            let refusal = rendered("byom", keys, create(), "").await.err().context("it was taken")?;
            let told =
                format!("at '/providerSecrets/byom/hostKeys': additional properties '{wrong}' not allowed");
            ensure!(format!("{refusal:#}").contains(&told), "{refusal:#}");
        }
        Ok(())
    })
}

#[test]
fn a_setting_that_the_configuration_overrules_is_named_if_it_differs() -> Result<()> {
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
fn tls_settings_come_from_one_source_of_values() -> Result<()> {
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
