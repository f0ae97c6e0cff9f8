//! The TLS settings, which the operator passes to the webhook.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{Api, api::DeleteParams};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    admission::trust,
    stage::{Stage, configuring},
};

const CIPHER: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";

/// The webhook's arguments about TLS, and the generation of its Deployment.
async fn told(stage: &Stage) -> Result<(Vec<String>, i64)> {
    let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let deployment = deployments.get("config-webhook").await?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec).context("it has a template")?;
    let mut arguments = pod.containers.into_iter().next().and_then(|it| it.args).context("arguments")?;
    arguments.retain(|argument| argument.starts_with("--tls-"));
    Ok((arguments, deployment.metadata.generation.context("a generation")?))
}

async fn until_told(stage: &Stage, expected: &str, generation: i64) -> Result<()> {
    wait::eventually(&format!("the webhook is told {expected}"), DEADLINE, async || {
        let told = told(stage).await?;
        ensure!(told == (vec![expected.to_owned()], generation), "{told:?}");
        Ok(())
    })
    .await
}

#[test]
fn tls_settings_roll_the_webhook_once_and_invalid_ones_are_reported() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let mode = |mode: &str| json!({ "limit": 2, "admission": { "mode": mode } });
        stage.settings(json!({ "TLS_CIPHER_SUITES": "TLS_RSA_WITH_RC4_128_SHA" })).await?;
        stage.configure("config", mode("Webhook")).await?;
        let message = stage.until("config", "SettingsRefused", "TlsRefused").await?;
        for words in ["peer-pods-cm", "TLS_CIPHER_SUITES", "TLS_RSA_WITH_RC4_128_SHA", CIPHER, "its default"]
        {
            ensure!(message.contains(words), "{words} is not in: {message}");
        }
        let (arguments, first) = told(&stage).await?;
        ensure!(arguments.is_empty(), "{arguments:?}");
        trust(&stage.client).await?;
        stage.until("config", "Ready", "AllReady").await?;

        stage.settings(json!({ "TLS_CIPHER_SUITES": CIPHER })).await?;
        let arguments = format!("--tls-cipher-suites={CIPHER}");
        until_told(&stage, &arguments, first + 1).await?;
        stage.until_gone("config", "SettingsRefused").await?;

        stage.settings(json!({ "TLS_CIPHER_SUITES": CIPHER, "TLS_MIN_VERSION": "VersionTLS10" })).await?;
        let message = stage.until("config", "SettingsRefused", "TlsRefused").await?;
        ensure!(message.contains("TLS_MIN_VERSION is \"VersionTLS10\""), "{message}");
        ensure!(message.contains(CIPHER), "it says what stays: {message}");
        until_told(&stage, &arguments, first + 1).await?;
        let config_maps: Api<ConfigMap> = Api::namespaced(stage.client.clone(), NAMESPACE);
        config_maps.delete("peer-pods-cm", &DeleteParams::default()).await?;
        stage.until("config", "AdaptorReady", "SettingsMissing").await?;
        stage.until_gone("config", "SettingsRefused").await?;
        until_told(&stage, &arguments, first + 1).await?;

        // A policy needs no TLS.
        stage.settings(json!({ "TLS_MIN_VERSION": "1.3" })).await?;
        stage.until("config", "SettingsRefused", "TlsRefused").await?;
        stage.configure("config", mode("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        stage.until_gone("config", "SettingsRefused").await?;
        stage.clear("config").await
    })
}
