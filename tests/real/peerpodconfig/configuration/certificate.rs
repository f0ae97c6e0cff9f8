//! A certificate of the webhook that already exists: an earlier version's, or another program's.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use peerpod_operator::webhook::certificates::rotation::{LEASE, SECRET};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::{
    admission::mode,
    deletion::webhook,
    shared::{forget_certificate, leases, secrets, until_gone, until_owned},
    stage::{Stage, configuring, writes},
};

/// The name by which the API server calls the webhook.
const CALLED: &str = "config-webhook.confidential-containers-system.svc";

type Data = BTreeMap<String, ByteString>;

/// A certificate for this name, with its key and its authority.
fn issue(name: &str) -> Result<Data> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let trusted = authority.self_signed(&authority_key)?.pem();
    let key = KeyPair::generate()?;
    let issuer = Issuer::new(authority, authority_key);
    let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&key, &issuer)?.pem();
    let data = [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", trusted)];
    Ok(data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).into())
}

/// Writes the Secret as cert-manager does, whatever is there.
async fn write_as_cert_manager(client: &Client, data: &Data) -> Result<Secret> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
        "metadata": { "name": SECRET, "annotations": { "cert-manager.io/certificate-name": "serving-cert" } },
    });
    let params = PatchParams::apply("cert-manager-certificates-issuing").force();
    Ok(secrets(client).patch(SECRET, &params, &Patch::Apply(secret)).await?)
}

/// Waits until the webhook configuration trusts these authorities.
async fn until_trusted(client: &Client, data: &Data) -> Result<()> {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    wait::eventually("the API server is told whom to trust", DEADLINE, async || {
        let mut webhooks = configurations.get("peer-pods-config").await?.webhooks.unwrap_or_default();
        let webhook = webhooks.pop().context("a webhook")?;
        ensure!(webhook.client_config.ca_bundle.as_ref() == data.get("ca.crt"), "it trusts others");
        Ok(())
    })
    .await
}

/// Fails if the operator changed the Secret that another program made.
async fn is_theirs(client: &Client, data: &Data) -> Result<()> {
    let secret = secrets(client).get(SECRET).await?;
    ensure!(secret.data.as_ref() == Some(data), "it holds something else");
    ensure!(secret.owner_references().is_empty(), "{:?}", secret.owner_references());
    Ok(())
}

#[test]
fn a_certificate_of_another_issuer_is_used_if_valid_and_never_changed() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        forget_certificate(alone).await?;
        let before = writes(alone)?.len();
        // The certificate of upstream's webhook names upstream's own Service.
        write_as_cert_manager(client, &issue("peerpods-webhook-svc.confidential-containers-system.svc")?)
            .await?;
        stage.configure("config", mode("Webhook")).await?;
        let message = stage.until("config", "AdmissionReady", "CertificateUnfit").await?;
        ensure!(message.contains(&format!("is not for {CALLED};")), "{message}");
        let data = issue(CALLED)?;
        let mut strange = issue(CALLED)?;
        strange.insert("ca.crt".to_owned(), data["ca.crt"].clone());
        write_as_cert_manager(client, &strange).await?;
        wait::eventually("the strange authority is told of", DEADLINE, async || {
            let message = stage.until("config", "AdmissionReady", "CertificateUnfit").await?;
            ensure!(message.contains("is not signed by an authority that API servers trust"), "{message}");
            Ok(())
        })
        .await?;
        write_as_cert_manager(client, &data).await?;
        until_trusted(client, &data).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        is_theirs(client, &data).await?;
        // A new certificate without its authority: API servers trust only the authority of the former one.
        let mut alone_there = issue(CALLED)?;
        alone_there.remove("ca.crt");
        write_as_cert_manager(client, &alone_there).await?;
        let message = stage.until("config", "AdmissionReady", "CertificateUnfit").await?;
        ensure!(message.contains("add the missing ca.crt with its authority, "), "{message}");
        write_as_cert_manager(client, &data).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        stage.configure("config", mode("None")).await?;
        wait::gone(&leases(client), LEASE, DEADLINE).await?;
        is_theirs(client, &data).await?;
        stage.configure("config", mode("Webhook")).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        stage.delete("config").await?;
        wait::gone(&leases(client), LEASE, DEADLINE).await?;
        is_theirs(client, &data).await?;
        let written = writes(alone)?.split_off(before);
        ensure!(written.iter().any(|it| it.resource == "deployments"), "{written:#?}");
        ensure!(written.iter().all(|it| it.name != SECRET), "{written:#?}");
        secrets(client).delete(SECRET, &DeleteParams::default()).await?;
        stage.leave().await
    })
}

#[test]
fn a_certificate_that_arrives_during_the_creation_of_the_secret_stays() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        forget_certificate(alone).await?;
        // A webhook that fills the Secret as soon as it finds it empty.
        let dir = tempfile::tempdir()?;
        let webhook = webhook(alone, dir.path()).await?;
        for round in 0..8 {
            let data = issue(CALLED)?;
            let theirs = async {
                // The operator makes the Lease right before it looks for the Secret.
                wait::present(&leases(client), LEASE, "there is the Lease", DEADLINE, |_| true).await?;
                tokio::time::sleep(Duration::from_millis(round)).await;
                write_as_cert_manager(client, &data).await
            };
            tokio::try_join!(stage.configure("config", mode("Webhook")), theirs)?;
            until_trusted(client, &data).await?;
            wait::eventually("the Secret is theirs", DEADLINE, async || is_theirs(client, &data).await)
                .await?;
            stage.delete("config").await?;
            is_theirs(client, &data).await?;
            secrets(client).delete(SECRET, &DeleteParams::default()).await?;
            wait::gone(&leases(client), LEASE, DEADLINE).await?;
        }
        webhook.stop(DEADLINE).await?.context("how it ended is not known")?;
        stage.leave().await
    })
}

#[test]
fn a_certificate_of_an_earlier_version_is_adopted_and_deleted_at_the_end() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        forget_certificate(alone).await?;
        let dir = tempfile::tempdir()?;
        let webhook = webhook(alone, dir.path()).await?;
        stage.configure("config", mode("Webhook")).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        let made = secrets(client).get(SECRET).await?;
        stage.delete("config").await?;
        until_gone(client).await?;
        // An earlier webhook made both itself, without an owner.
        let ObjectMeta { name, annotations, .. } = made.metadata;
        let metadata = ObjectMeta { name, annotations, ..ObjectMeta::default() };
        let before = Secret { metadata, ..made };
        secrets(client).create(&PostParams::default(), &before).await?;
        let lease = json!({ "metadata": { "name": LEASE }, "spec": { "holderIdentity": "former" } });
        leases(client).create(&PostParams::default(), &serde_json::from_value(lease)?).await?;

        stage.configure("config", mode("Webhook")).await?;
        until_owned(client, &["config"]).await?;
        let data = before.data.context("it holds a certificate")?;
        until_trusted(client, &data).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        ensure!(secrets(client).get(SECRET).await?.data == Some(data), "another one was made");
        stage.delete("config").await?;
        until_gone(client).await?;
        webhook.stop(DEADLINE).await?.context("how it ended is not known")?;
        stage.leave().await
    })
}
