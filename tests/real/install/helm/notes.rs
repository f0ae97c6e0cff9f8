//! The notes that helm prints after an installation.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    Helm,
    theirs::{in_vain, installed},
};
use crate::support::beside_others;

/// The notes of a release with a `PeerPodConfig` of this spec.
async fn with_config(helm: &Helm, spec: Value) -> Result<String> {
    installed(helm, &json!({ "provider": "libvirt", "peerPodConfig": { "create": true, "spec": spec } }))
        .await
}

#[test]
fn the_notes_name_the_steps_that_the_spec_needs() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let label = "kubectl label node NODE node.kubernetes.io/worker=\n";
        let told = with_config(&helm, json!({})).await?;
        let mut rest = &*told;
        // The commands come in the order in which a user runs them. The last one waits for the effect of the others.
        for command in [
            "kubectl get runtimeclass kata-remote\n",
            label,
            "pod-security.kubernetes.io/enforce=privileged\n",
            "wait --for=condition=Ready peerpodconfig/config --timeout=10m\n",
        ] {
            (_, rest) = rest.split_once(command).with_context(|| format!("{command}: {told}"))?;
        }
        let spec = json!({ "nodeSelector": { "a": "b" }, "admission": { "runtimeClassName": "kata-mine" } });
        let told = with_config(&helm, spec).await?;
        ensure!(told.contains("kubectl get runtimeclass kata-mine\n") && !told.contains(label), "{told}");
        let told = installed(&helm, &json!({ "provider": "libvirt" })).await?;
        ensure!(!told.contains("runtimeclass") && !told.contains("pod-security"), "{told}");
        Ok(())
    })
}

#[test]
fn values_that_cancel_each_other_are_named_and_so_is_what_the_release_does_not_make() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let settings = json!({ "libvirt": { "LIBVIRT_POOL": "pods" }, "aws": { "AWS_REGION": "r" } });
        let credentials = json!({ "aws": { "AWS_ACCESS_KEY_ID": "k" } });
        let certificates = json!({ "caCert": "c" });
        let policy = json!({ "mode": "Policy" });
        for (values, vain, yours) in [
            (
                json!({ "provider": "aws", "providerConfigs": settings, "providerSecrets": credentials }),
                &[][..],
                None,
            ),
            (
                json!({ "provider": "aws", "secrets": { "existingSecretName": "mine" } }),
                &["secrets.existingSecretName (secrets.mode is create)"],
                None,
            ),
            (
                json!({ "provider": "libvirt", "providerConfigs": { "libvirt": { "LIBVIRT_POOL": null } }, "settings": { "existingConfigMapName": "mine" } }),
                &[],
                Some("Create the ConfigMap mine. "),
            ),
            (
                json!({ "provider": "libvirt", "providerConfigs": settings, "settings": { "existingConfigMapName": "mine" } }),
                &["providerConfigs (settings.existingConfigMapName is set)"],
                Some("Create the ConfigMap mine. "),
            ),
            (
                json!({ "provider": "libvirt", "providerSecrets": credentials, "secrets": { "mode": "reference" } }),
                &[],
                Some("Create the Secret peer-pods-secret, which may be empty. "),
            ),
            (
                json!({
                    "provider": "aws",
                    "providerSecrets": credentials,
                    "secrets": { "mode": "reference", "tlsCerts": certificates },
                }),
                &[
                    "providerSecrets (secrets.mode is reference)",
                    "secrets.tlsCerts (secrets.mode is reference)",
                ],
                Some("Create the Secret peer-pods-secret, which may be empty. "),
            ),
            (
                json!({ "providerConfigs": settings, "providerSecrets": { "aws": { "AWS_ACCESS_KEY_ID": "" } } }),
                &["providerConfigs (provider is empty)"],
                Some(
                    "Create the ConfigMap peer-pods-cm, and the Secret peer-pods-secret, which may be empty. ",
                ),
            ),
            (
                json!({ "provider": "aws", "admission": policy, "webhook": { "enabled": false }, "peerPodConfig": { "create": true } }),
                &["admission.mode (webhook.enabled is false)"],
                None,
            ),
            (
                json!({ "provider": "aws", "admission": policy, "peerPodConfig": { "create": true } }),
                &[],
                None,
            ),
            (
                json!({ "provider": "aws", "resourceCtrl": { "enabled": false }, "operator": { "evictLostPods": true } }),
                &["operator.evictLostPods (the controller peerpod does not run)"],
                None,
            ),
            (
                json!({
                    "provider": "aws",
                    "admission": { "mode": "Policy", "sizing": "Sum", "excludedNamespaces": ["a"] },
                    "webhook": { "enabled": false },
                    "peerPodConfig": { "spec": { "instanceType": "large" } },
                }),
                &[
                    "admission.excludedNamespaces (peerPodConfig.create is false)",
                    "admission.mode (peerPodConfig.create is false)",
                    "admission.sizing (peerPodConfig.create is false)",
                    "peerPodConfig.spec (peerPodConfig.create is false)",
                    "webhook.enabled (peerPodConfig.create is false)",
                ],
                None,
            ),
        ] {
            let told = installed(&helm, &values).await?;
            ensure!(in_vain(&told)? == vain, "{values}: {told}");
            ensure!(
                yours.map_or(
                    !told.contains("Until then the operator's Pods stay ContainerCreating"),
                    |yours| told.contains(yours)
                ),
                "{values}: {told}"
            );
        }
        Ok(())
    })
}

#[test]
fn what_only_secure_metrics_use_is_named_without_them() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let secrets = json!({ "tlsSecretName": "mine", "tokenSecretName": "mine" });
        let told = installed(&helm, &json!({ "provider": "aws", "metrics": secrets })).await?;
        let vain = ["tlsSecretName", "tokenSecretName"]
            .map(|name| format!("metrics.{name} (metrics.secure is false)"));
        ensure!(in_vain(&told)? == vain, "{told}");
        Ok(())
    })
}

#[test]
fn the_key_for_ssh_is_asked_for_where_it_is_needed_and_not_made() -> Result<()> {
    const LIBVIRT: &str = "create secret generic ssh-key-secret --from-file=id_rsa=\"$HOME/.ssh/id_rsa\"\n";
    const BYOM: &str = "create secret generic mine --from-file=\"$HOME/.ssh/id_rsa\" ";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let at = |uri: &str| json!({ "provider": "libvirt", "providerConfigs": { "libvirt": { "LIBVIRT_URI": uri } } });
        let mut made = at("qemu+ssh://root@host/system");
        made["providerSecrets"] = json!({ "libvirt": { "id_ed25519": "key" } });
        let elsewhere = json!({ "provider": "libvirt", "settings": { "existingConfigMapName": "mine" } });
        let named = json!({ "mode": "reference", "existingSshKeySecretName": "mine" });
        for (values, command) in [
            (at(""), Some(LIBVIRT)),
            (at("qemu+ssh://root@host/system"), Some(LIBVIRT)),
            (at("qemu+libssh2://root@host/system"), Some(LIBVIRT)),
            (at("qemu+tcp://host/system"), None),
            (made, None),
            (elsewhere, Some(LIBVIRT)),
            (json!({ "provider": "byom", "secrets": named }), Some(BYOM)),
            (json!({ "provider": "aws" }), None),
            (json!({}), None),
        ] {
            let told = installed(&helm, &values).await?;
            let asked = command.map_or(!told.contains("id_rsa"), |command| told.contains(command));
            ensure!(asked, "{values}: {told}");
        }
        Ok(())
    })
}

#[test]
fn the_notes_say_how_to_uninstall_with_and_without_the_hook() -> Result<()> {
    const COMMAND: &str = "delete peerpodconfigs --all\n";
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        for enabled in [true, false] {
            let told = installed(&helm, &json!({ "drain": { "enabled": enabled } })).await?;
            ensure!(
                told.contains(COMMAND) && told.contains("helm uninstall --no-hooks") == enabled,
                "{told}"
            );
        }
        Ok(())
    })
}

#[test]
fn the_notes_name_a_key_without_which_every_host_is_trusted_and_no_command_that_fails() -> Result<()> {
    beside_others(async |scene| {
        let helm = Helm::of(scene.testbed.cluster()).await?;
        let hosts = json!({ "mode": "reference", "existingByomHostKeySecretName": "hosts" });
        for (provider, config_map, secrets, is_said) in [
            ("byom", "mine", &hosts, true),
            ("", "", &hosts, true),
            ("byom", "", &hosts, false),
            ("aws", "mine", &hosts, false),
            ("byom", "mine", &json!({}), false),
        ] {
            let values = json!({ "provider": provider, "settings": { "existingConfigMapName": config_map }, "secrets": secrets });
            let told = installed(&helm, &values).await?;
            ensure!(told.contains("SSH_HOST_KEY_ALLOWLIST_DIR") == is_said, "{values}: {told}");
        }
        for (controllers, is_said) in [(json!(null), true), (json!(["peerpod"]), false)] {
            let told = installed(&helm, &json!({ "operator": { "controllers": controllers } })).await?;
            ensure!(told.contains("peerPodConfig.create=true") == is_said, "{controllers}: {told}");
        }
        Ok(())
    })
}
