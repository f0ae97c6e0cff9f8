//! Leftovers of configurations whose finalizer a user removed by force.

use anyhow::{Result, ensure};
use k8s_openapi::{
    api::admissionregistration::v1::MutatingWebhookConfiguration,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::{
    api::v1alpha1::PeerPodConfig,
    peerpodconfig::{
        FINALIZER,
        capacity::MARK,
        resources::{CONFIG_LABEL, MANAGED_BY, MANAGER},
    },
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    snapshot::{everything, until_as},
    stage::{RESOURCE, Stage, configuring},
};

/// Removes a configuration by force, whatever finalizers it has.
async fn remove_by_force(configs: &Api<PeerPodConfig>, name: &str) -> Result<()> {
    let released = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    configs.patch(name, &PatchParams::default(), &released).await?;
    configs.delete(name, &DeleteParams::default()).await?;
    wait::gone(configs, name, DEADLINE).await
}

#[test]
fn objects_left_while_no_operator_ran_are_deleted_at_the_next_start() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let before = everything(&stage.client).await?;
        let account = json!({ "serviceAccountAnnotations": { "cloud.example.com/role": "adaptor" } });
        let webhook = json!({ "limit": 4, "adaptor": account, "admission": { "mode": "Webhook" } });
        stage.configure("webhook", webhook).await?;
        let admission = json!({ "mode": "Policy", "runtimeClassName": "another" });
        let nowhere = json!({ "test": "nowhere" });
        stage
            .configure("policy", json!({ "limit": 1, "nodeSelector": nowhere, "admission": admission }))
            .await?;
        stage.until("webhook", "AdmissionReady", "WebhookStarting").await?;
        stage.until("policy", "AdmissionReady", "RuntimeClassMissing").await?;
        stage.shares(&[Some(2), Some(2)]).await?;
        let during = everything(&stage.client).await?;
        for made in [
            "MutatingWebhookConfiguration /peer-pods-webhook",
            "MutatingAdmissionPolicy /peer-pods-policy",
            "MutatingAdmissionPolicyBinding /peer-pods-policy",
        ] {
            ensure!(during.keys().any(|name| name.ends_with(made)), "no {made} in {:?}", during.keys());
        }

        alone.operator.kill().await?;
        for name in ["webhook", "policy"] {
            remove_by_force(&stage.configs, name).await?;
        }
        // Another program's object, whatever its labels say.
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
        let labels = json!({ CONFIG_LABEL: "webhook", MANAGED_BY: MANAGER });
        let foreign = json!({ "metadata": { "name": "foreign", "labels": labels } });
        let foreign = webhooks.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;

        let mut expected = before;
        let left = everything(&stage.client).await?;
        expected.extend(left.into_iter().filter(|(name, _)| name.ends_with("/foreign")));
        alone.operator.start_again()?;
        until_as(&stage.client, &expected).await?;
        ensure!(webhooks.get("foreign").await?.metadata.uid == foreign.metadata.uid, "it was replaced");
        webhooks.delete("foreign", &DeleteParams::default()).await?;
        stage.leave().await
    })
}

#[test]
fn objects_stay_while_a_configuration_of_that_name_exists_elsewhere() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let before = everything(&stage.client).await?;
        let elsewhere: Api<PeerPodConfig> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let of_that_name: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config", "finalizers": [FINALIZER] }, "spec": {},
        }))?;
        stage.configure("config", json!({ "limit": 2, "admission": { "mode": "Policy" } })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        alone.operator.kill().await?;
        elsewhere.create(&PostParams::default(), &of_that_name).await?;
        remove_by_force(&stage.configs, "config").await?;
        alone.operator.start_again()?;
        wait::eventually("it is said to be kept", DEADLINE, async || {
            ensure!(alone.operator.log()?.contains(
                "the operator keeps this object: a PeerPodConfig config exists in another namespace"
            ));
            Ok(())
        })
        .await?;
        stage.shares(&[Some(2)]).await?;
        let kept = everything(&stage.client).await?;
        for kind in ["MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"] {
            let is_kept = |object: &String| {
                object.contains(&format!("/{kind} ")) && object.ends_with("/peer-pods-config")
            };
            ensure!(kept.keys().any(is_kept), "the {kind} was deleted: {kept:?}");
        }
        // The operator runs when this configuration is removed.
        remove_by_force(&elsewhere, "config").await?;
        until_as(&stage.client, &before).await?;
        stage.leave().await
    })
}

#[test]
fn what_a_late_write_makes_after_the_deletion_is_removed() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let before = everything(&stage.client).await?;
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
        stage.configure("config", json!({ "limit": 2, "admission": { "mode": "Webhook" } })).await?;
        stage.shares(&[Some(2)]).await?;
        stage.until("config", "AdmissionReady", "WebhookStarting").await?;
        let mut registration = webhooks.get("peer-pods-config").await?;
        stage.delete("config").await?;
        until_as(&stage.client, &before).await?;

        // As if the API server had carried out these writes long after the operator ceased to wait for them.
        let (name, labels) = (registration.metadata.name.take(), registration.metadata.labels.take());
        registration.metadata = ObjectMeta { name, labels, ..ObjectMeta::default() };
        let late = PatchParams::apply(MANAGER);
        webhooks.patch("peer-pods-config", &late, &Patch::Apply(&registration)).await?;
        until_as(&stage.client, &before).await?;
        let share = json!({
            "metadata": { "annotations": { MARK: RESOURCE } }, "status": { "capacity": { RESOURCE: "2" } },
        });
        let (nodes, node) = (stage.nodes.api(), &stage.nodes.names()[0]);
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(share)).await?;
        until_as(&stage.client, &before).await?;
        stage.leave().await
    })
}
