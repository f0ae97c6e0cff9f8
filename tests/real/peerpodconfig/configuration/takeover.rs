//! Each runtime class has one admission. When its configuration is deleted or edited, the next one takes over.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ResourceQuota};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject},
};
use peerpod_operator::{
    NAMESPACE,
    peerpodconfig::resources::{CLASS_ANNOTATION, policy},
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    admission::{AT_ONCE, makes_peer_pods, mode, trust},
    shared::forget_certificate,
    stage::{RUNTIME_CLASS, Stage, configuring},
};

/// Whether the admission of this configuration handles Pods of the runtime class.
async fn admits(client: &Client, config: &str) -> Result<bool> {
    let name = format!("peer-pods-{config}");
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let [_, bindings] = policy::resources();
    let bindings: Api<DynamicObject> = Api::all_with(client.clone(), &bindings);
    let found = [
        bindings.get_metadata_opt(&name).await?.map(|it| it.metadata),
        webhooks.get_metadata_opt(&name).await?.map(|it| it.metadata),
    ];
    let mut classes =
        found.into_iter().flatten().filter_map(|metadata| metadata.annotations?.remove(CLASS_ANNOTATION));
    Ok(classes.any(|class| class == RUNTIME_CLASS))
}

/// Runs `meanwhile`. Fails if there is a moment in which neither configuration has the admission.
async fn never_without(client: &Client, meanwhile: impl Future<Output = Result<()>>) -> Result<()> {
    let watching = async {
        loop {
            // The operator makes the new one before it deletes the old one. So this look finds it, or the one before did.
            let found = admits(client, "older").await? || admits(client, "younger").await?;
            ensure!(found || admits(client, "older").await?, "there is neither");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        outcome = meanwhile => outcome,
        outcome = watching => outcome,
    }
}

/// Makes two configurations of one runtime class. The older one's admission is in force.
async fn two(stage: &Stage, younger: &str) -> Result<()> {
    stage.configure("older", mode("Policy")).await?;
    stage.until("older", "AdmissionReady", "PolicyInForce").await?;
    // Creation times are whole seconds. The older one needs a second of its own.
    wait::second_after(Timestamp::now()).await?;
    stage.configure("younger", mode(younger)).await?;
    stage.until("younger", "AdmissionReady", "AdmissionShared").await?;
    ensure!(!admits(&stage.client, "younger").await?, "there are two admissions");
    Ok(())
}

#[test]
fn the_successors_admission_exists_before_the_deleted_one_is_removed() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        two(&stage, "Policy").await?;
        never_without(&stage.client, async {
            stage.delete("older").await?;
            stage.until("younger", "Ready", "AllReady").await.map(drop)
        })
        .await?;
        ensure!(makes_peer_pods(alone).await?);
        stage.delete("younger").await?;

        // The Pods of fake nodes do nothing, so there never is a certificate. The operator must not wait for it.
        two(&stage, "Webhook").await?;
        never_without(&stage.client, async {
            stage.configs.delete("older", &DeleteParams::default()).await?;
            wait::gone(&stage.configs, "older", AT_ONCE).await?;
            stage.until("younger", "AdaptorReady", "AdaptorRunning").await?;
            stage.until("younger", "AdmissionReady", "WebhookStarting").await?;
            stage.shares(&[Some(2)]).await
        })
        .await?;
        wait::eventually("Pods are refused, and none is admitted as it is", DEADLINE, async || {
            ensure!(makes_peer_pods(alone).await.is_err());
            Ok(())
        })
        .await?;
        stage.clear("younger").await
    })
}

#[test]
fn a_younger_configuration_takes_over_from_an_edited_one_and_gives_back() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        two(&stage, "Policy").await?;
        let another = json!({ "limit": 2, "admission": { "mode": "Policy", "runtimeClassName": "another" } });
        for (left, reason) in [(mode("None"), "AdmissionElsewhere"), (another, "RuntimeClassMissing")] {
            never_without(&stage.client, async {
                stage.configure("older", left).await?;
                stage.until("younger", "AdmissionReady", "PolicyInForce").await?;
                stage.until("older", "AdmissionReady", reason).await?;
                stage.configure("older", mode("Policy")).await?;
                stage.until("older", "AdmissionReady", "PolicyInForce").await?;
                stage.until("younger", "AdmissionReady", "AdmissionShared").await.map(drop)
            })
            .await?;
            ensure!(!admits(&stage.client, "younger").await?, "there are two admissions");
        }
        // A webhook that cannot answer yet. The operator keeps the younger one's admission, and still repairs it.
        never_without(&stage.client, async {
            stage.configure("older", mode("None")).await?;
            stage.until("older", "AdmissionReady", "AdmissionElsewhere").await?;
            stage.configure("older", mode("Webhook")).await?;
            stage.until("older", "AdmissionReady", "WebhookStarting").await?;
            stage.until("younger", "AdmissionReady", "SharedNotReady").await.map(drop)
        })
        .await?;
        let binding = ["mutatingadmissionpolicybinding", "peer-pods-younger"];
        Stage::kubectl(alone, &[&["delete"], &binding[..]].concat()).await?;
        wait::eventually("the binding is there again", DEADLINE, async || {
            Stage::kubectl(alone, &[&["get"], &binding[..]].concat()).await
        })
        .await?;
        stage.delete("older").await?;
        stage.clear("younger").await
    })
}

#[test]
fn a_younger_configuration_notices_by_itself_that_the_older_one_is_ready() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        let older =
            |mode: &str| json!({ "nodeSelector": { "nowhere": "yes" }, "admission": { "mode": mode } });
        stage.configure("older", older("None")).await?;
        // Creation times are whole seconds. The older one needs a second of its own.
        wait::second_after(Timestamp::now()).await?;
        stage.configure("younger", mode("Policy")).await?;
        stage.until("younger", "Ready", "AllReady").await?;
        // No Pod of the webhook can be made.
        let quota = json!({ "metadata": { "name": "no-more" }, "spec": { "hard": { "pods": "0" } } });
        stage.make::<ResourceQuota>(quota).await?;
        stage.configure("older", older("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("older", "AdmissionReady", "WebhookStarting").await?;
        stage.until("younger", "AdmissionReady", "SharedNotReady").await?;
        ensure!(makes_peer_pods(alone).await?, "the younger one's policy admits Pods meanwhile");
        // After this time no earlier event causes another look.
        tokio::time::sleep(Duration::from_secs(12)).await;
        stage.until("younger", "AdmissionReady", "SharedNotReady").await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(stage.client.clone(), NAMESPACE);
        quotas.delete("no-more", &DeleteParams::default()).await?;
        stage.until("older", "AdmissionReady", "WebhookRunning").await?;
        stage.until("younger", "AdmissionReady", "AdmissionShared").await?;
        stage.delete("older").await?;
        stage.clear("younger").await
    })
}

#[test]
fn a_successor_whose_objects_are_refused_does_not_keep_a_deleted_configuration() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        two(&stage, "Webhook").await?;
        // The namespace may have no further Deployment, so the successor's webhook cannot be made.
        let hard = json!({ "count/deployments.apps": "0" });
        stage
            .make::<ResourceQuota>(json!({ "metadata": { "name": "full" }, "spec": { "hard": hard } }))
            .await?;
        let own = format!("--namespace={NAMESPACE}");
        let counted = ["--for=jsonpath={.status.hard}", "resourcequota/full", &own, "--timeout=60s"];
        Stage::kubectl(alone, &[&["wait"], &counted[..]].concat()).await?;
        stage.delete("older").await?;
        Stage::kubectl(alone, &["delete", "resourcequota", "full", &own]).await?;
        stage.until("younger", "AdmissionReady", "WebhookStarting").await?;
        stage.clear("younger").await
    })
}

#[test]
fn a_webhook_without_a_server_is_removed_at_once_and_the_next_one_starts() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        stage.configure("older", mode("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("older", "AdmissionReady", "WebhookRunning").await?;
        // Creation times are whole seconds. The older one needs a second of its own.
        wait::second_after(Timestamp::now()).await?;
        stage.configure("younger", mode("Webhook")).await?;
        stage.until("younger", "AdmissionReady", "AdmissionShared").await?;
        // The Pods of fake nodes make no certificate, so the younger one's admission never becomes ready.
        forget_certificate(alone).await?;
        Stage::kubectl(alone, &["delete", "peerpodconfig", "older", "--cascade=foreground", "--wait=false"])
            .await?;
        let registrations: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
        wait::gone(&registrations, "peer-pods-older", AT_ONCE).await?;
        wait::gone(&stage.configs, "older", DEADLINE).await?;
        stage.until("younger", "AdmissionReady", "WebhookStarting").await?;
        stage.clear("younger").await
    })
}
