//! The Secret and the Lease that all webhooks share. They exist while a webhook needs them. The operator never takes another program's.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{Api, Client, Resource, ResourceExt as _, api::DeleteParams};
use peerpod_operator::{
    NAMESPACE,
    webhook::certificates::rotation::{LEASE, SECRET},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::{
    Request,
    wait::{self, DEADLINE},
};

use super::{
    admission::{AT_ONCE, mode, trust},
    stage::{Stage, configuring},
};
use crate::support::Alone;

/// The namespace's Secrets.
pub fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// The namespace's Leases.
pub fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// Deletes the Secret that another test may have left. A webhook would use the certificate in it.
pub async fn forget_certificate(alone: &Alone<'_>) -> Result<()> {
    Stage::kubectl(alone, &["delete", "secret", SECRET, "--ignore-not-found"]).await.map(drop)
}

/// Names of both objects' owners; `None` if one of the two is missing.
async fn owners(client: &Client) -> Result<[Option<BTreeSet<String>>; 2]> {
    async fn of<K>(api: Api<K>, name: &str) -> Result<Option<BTreeSet<String>>>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let found = api.get_metadata_opt(name).await?;
        Ok(found.map(|it| it.owner_references().iter().map(|owner| owner.name.clone()).collect()))
    }
    Ok([of(secrets(client), SECRET).await?, of(leases(client), LEASE).await?])
}

/// Waits until both have exactly these owners.
pub async fn until_owned(client: &Client, expected: &[&str]) -> Result<()> {
    let expected: BTreeSet<_> = expected.iter().map(|name| (*name).to_owned()).collect();
    wait::eventually(&format!("both are owned by {expected:?}"), AT_ONCE, async || {
        let found = owners(client).await?;
        ensure!(found.iter().all(|it| it.as_ref() == Some(&expected)), "{found:?}");
        Ok(())
    })
    .await
}

/// Waits until both are gone.
pub async fn until_gone(client: &Client) -> Result<()> {
    wait::eventually("both are gone", DEADLINE, async || {
        let found = owners(client).await?;
        ensure!(found == [None, None], "{found:?}");
        Ok(())
    })
    .await
}

/// The operator's requests while it ends six looks at everything. The first look may have begun before.
async fn asked_meanwhile(alone: &Alone<'_>, stage: &Stage) -> Result<Vec<Request>> {
    let audit = alone.testbed.audit()?;
    // A look asks for what it lacks before it ends. The first of these two may have begun before all was ready.
    for _ in 0..2 {
        stage.look_again(alone).await?;
    }
    let before = audit.of_operator()?.len();
    for _ in 0..6 {
        stage.look_again(alone).await?;
    }
    Ok(audit.of_operator()?.split_off(before))
}

#[test]
fn secret_and_lease_need_no_requests_and_are_restored_when_deleted() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        stage.configure("config", mode("Webhook")).await?;
        trust(client).await?;
        stage.until("config", "Ready", "AllReady").await?;
        until_owned(client, &["config"]).await?;
        let asked = asked_meanwhile(alone, &stage).await?;
        let settings = asked.iter().filter(|it| it.verb == "get" && it.name == "peer-pods-cm").count();
        // Of six looks, five began and ended meanwhile.
        ensure!(settings >= 5, "it did not look: {asked:#?}");
        // A request without a resource asks which resources the API server serves.
        let needless = |it: &&Request| [SECRET, LEASE].contains(&&*it.name) || it.resource.is_empty();
        let needless: Vec<_> = asked.iter().filter(needless).collect();
        ensure!(needless.is_empty(), "{needless:#?}");

        leases(client).delete(LEASE, &DeleteParams::default()).await?;
        until_owned(client, &["config"]).await?;
        secrets(client).delete(SECRET, &DeleteParams::default()).await?;
        until_owned(client, &["config"]).await?;
        stage.clear("config").await
    })
}

#[test]
fn secret_and_lease_are_deleted_with_the_last_webhook() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let client = &stage.client;
        stage.configure("config", mode("Webhook")).await?;
        let other = |mode: &str| {
            json!({ "nodeSelector": { "nowhere": "yes" },
                "admission": { "mode": mode, "runtimeClassName": "another" } })
        };
        stage.configure("other", other("Webhook")).await?;
        until_owned(client, &["config", "other"]).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let first = secrets.get_metadata(SECRET).await?.uid();
        trust(client).await?;
        stage.until("config", "AdmissionReady", "WebhookRunning").await?;
        // The configuration needs them as long as its webhook runs beside the policy.
        stage.configure("config", mode("Policy")).await?;
        stage.until("config", "AdmissionReady", "PolicyStarting").await?;
        until_owned(client, &["config", "other"]).await?;
        stage.until("config", "AdmissionReady", "PolicyInForce").await?;
        until_owned(client, &["other"]).await?;
        ensure!(secrets.get_metadata(SECRET).await?.uid() == first, "another one has taken its place");
        stage.configure("other", other("None")).await?;
        until_gone(client).await?;
        stage.configure("config", mode("Webhook")).await?;
        until_owned(client, &["config"]).await?;
        stage.configure("config", mode("None")).await?;
        until_gone(client).await?;
        stage.delete("other").await?;
        stage.clear("config").await
    })
}
