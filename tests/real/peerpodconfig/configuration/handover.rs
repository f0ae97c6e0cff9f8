//! One configuration takes over the admission of another that goes, or that is edited.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ResourceQuota};
use kube::{Api, api::DeleteParams};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    admission::{AT_ONCE, makes_peer_pods, mode, trust},
    shared::forget_certificate,
    stage::{Stage, configuring},
};
use crate::support::{Alone, second_after};

/// What became of peer pods that were asked for without a pause.
#[derive(Debug, Default)]
struct Asked {
    changed: usize,
    refused: usize,
}

/// Does something meanwhile; fails if one is admitted as it is.
async fn no_pod_is_missed(alone: &Alone<'_>, meanwhile: impl Future<Output = Result<()>>) -> Result<Asked> {
    let mut asked = Asked::default();
    let asking = async {
        loop {
            match makes_peer_pods(alone).await {
                Ok(true) => asked.changed += 1,
                Ok(false) => bail!("one was admitted as it is, after {asked:?}"),
                Err(_) => asked.refused += 1,
            }
        }
    };
    tokio::select! {
        outcome = meanwhile => outcome?,
        outcome = asking => outcome?,
    }
    Ok(asked)
}

/// Has two configurations of one runtime class, of which the older one's admission is in force.
async fn two(stage: &Stage, younger: &str) -> Result<()> {
    stage.configure("older", mode("Policy")).await?;
    stage.until("older", "AdmissionReady", "PolicyInForce").await?;
    // Which one is older is told by whole seconds.
    second_after(Timestamp::now()).await?;
    stage.configure("younger", mode(younger)).await?;
    stage.until("younger", "AdmissionReady", "AdmissionShared").await.map(drop)
}

#[test]
fn the_admission_of_one_that_goes_stays_until_its_successors_is_in_force() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        two(&stage, "Policy").await?;
        let asked = no_pod_is_missed(alone, async {
            stage.delete("older").await?;
            stage.until("younger", "Ready", "AllReady").await.map(drop)
        })
        .await?;
        ensure!(asked.changed > 10 && asked.refused == 0, "{asked:?}");
        stage.clear("younger").await
    })
}

#[test]
fn one_that_never_becomes_ready_delays_it_for_a_while_and_refuses_pods_then() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        // The Pods of fake nodes do nothing, so there never is a certificate.
        two(&stage, "Webhook").await?;
        let asked = no_pod_is_missed(alone, async {
            stage.configs.delete("older", &DeleteParams::default()).await?;
            let message = stage.until("older", "AdmissionReady", "AdmissionKept").await?;
            ensure!(message.contains("PeerPodConfig younger"), "{message}");
            // All else is handed over at once.
            stage.until("younger", "AdaptorReady", "AdaptorRunning").await?;
            stage.until("younger", "AdmissionReady", "WebhookStarting").await?;
            stage.shares(&[Some(2)]).await
        })
        .await?;
        ensure!(asked.changed > 0 && asked.refused == 0, "{asked:?}");
        let asked = no_pod_is_missed(alone, wait::gone(&stage.configs, "older", 2 * DEADLINE)).await?;
        ensure!(asked.refused > 0, "{asked:?}");
        wait::eventually("it is said", DEADLINE, async || {
            let events = Stage::kubectl(alone, &["get", "events", "-o", "json"]).await?;
            ensure!(events.contains("AdmissionDropped"), "{events}");
            Ok(())
        })
        .await?;
        stage.clear("younger").await
    })
}

#[test]
fn an_edited_configuration_keeps_its_admission_for_another_one_and_takes_over_no_sooner_than_it_can()
-> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        two(&stage, "Policy").await?;
        let another = json!({ "limit": 2, "admission": { "mode": "Policy", "runtimeClassName": "another" } });
        for (left, reason) in [(mode("None"), "AdmissionElsewhere"), (another, "RuntimeClassMissing")] {
            let asked = no_pod_is_missed(alone, async {
                stage.configure("older", left).await?;
                stage.until("younger", "AdmissionReady", "PolicyInForce").await?;
                stage.until("older", "AdmissionReady", reason).await?;
                stage.configure("older", mode("Policy")).await?;
                stage.until("older", "AdmissionReady", "PolicyInForce").await?;
                stage.until("younger", "AdmissionReady", "AdmissionShared").await.map(drop)
            })
            .await?;
            ensure!(asked.changed > 10 && asked.refused == 0, "{asked:?}");
        }
        // A webhook that cannot answer yet. The Pods of fake nodes do nothing, so there never is a certificate.
        let asked = no_pod_is_missed(alone, async {
            stage.configure("older", mode("None")).await?;
            stage.until("older", "AdmissionReady", "AdmissionElsewhere").await?;
            stage.configure("older", mode("Webhook")).await?;
            stage.until("older", "AdmissionReady", "WebhookStarting").await?;
            stage.until("younger", "AdmissionReady", "SharedNotReady").await.map(drop)
        })
        .await?;
        ensure!(asked.changed > 0 && asked.refused == 0, "{asked:?}");
        let registrations: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
        ensure!(registrations.get_metadata_opt("peer-pods-older").await?.is_none(), "it is registered");
        // What stays for it is looked after.
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
fn one_whose_admission_is_in_force_learns_of_itself_that_an_older_one_is_ready() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        let older =
            |mode: &str| json!({ "nodeSelector": { "nowhere": "yes" }, "admission": { "mode": mode } });
        stage.configure("older", older("None")).await?;
        // Which one is older is told by whole seconds.
        second_after(Timestamp::now()).await?;
        stage.configure("younger", mode("Policy")).await?;
        stage.until("younger", "Ready", "AllReady").await?;
        // No Pod of the webhook can be made.
        let quota = json!({ "metadata": { "name": "no-more" }, "spec": { "hard": { "pods": "0" } } });
        stage.make::<ResourceQuota>(quota).await?;
        stage.configure("older", older("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("older", "AdmissionReady", "WebhookStarting").await?;
        stage.until("younger", "AdmissionReady", "SharedNotReady").await?;
        // After so long nothing that was told or made has it looked at again.
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
fn a_webhook_whose_server_goes_first_is_not_kept() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        forget_certificate(alone).await?;
        stage.configure("older", mode("Webhook")).await?;
        trust(&stage.client).await?;
        stage.until("older", "AdmissionReady", "WebhookRunning").await?;
        // Which one is older is told by whole seconds.
        second_after(Timestamp::now()).await?;
        stage.configure("younger", mode("Webhook")).await?;
        stage.until("younger", "AdmissionReady", "AdmissionShared").await?;
        // The Pods of fake nodes make no certificate, so the younger one's never is ready.
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
