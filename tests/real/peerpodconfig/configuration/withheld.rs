//! What keeps cloud-api-adaptor from being deployed.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Namespace, ServiceAccount},
};
use kube::{Api, api::DeleteParams};
use peerpod_operator::{NAMESPACE, peerpodconfig::resources::SERVICE_ACCOUNT};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::stage::{Stage, configuring, writes};

#[test]
fn a_missing_service_account_is_reported_until_it_exists() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(stage.client.clone(), NAMESPACE);
        accounts.delete(SERVICE_ACCOUNT, &DeleteParams::default()).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "AdaptorReady", "ServiceAccountMissing").await?;
        ensure!(message.contains("apply the operator's installation again"), "{message}");
        stage.until("config", "Ready", "ServiceAccountMissing").await?;
        alone.testbed.install_objects().await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.clear("config").await
    })
}

#[test]
fn settings_with_the_tag_of_another_cluster_reach_no_cloud_api_adaptor() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let tagged = |uid: &str| json!({ "TAGS": format!("team=a,caa-cluster-uid={uid}") });
        stage.settings(tagged("another")).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "AdaptorReady", "SettingsMissing").await?;
        ensure!(message.contains("are for another cluster: by TAGS"), "{message}");
        ensure!(!stage.has_daemon_set("config").await?, "the other cluster would delete its VMs");
        let namespaces: Api<Namespace> = Api::all(stage.client.clone());
        let uid = namespaces.get("kube-system").await?.metadata.uid.context("it has a UID")?;
        stage.settings(tagged(&uid)).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.clear("config").await
    })
}

#[test]
fn nodes_keep_what_they_advertise_while_a_deleted_daemon_set_is_made_again() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        stage.configure("config", json!({ "limit": 6 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let to_nodes = || -> Result<usize> {
            Ok(writes(alone)?.iter().filter(|request| request.resource == "nodes/status").count())
        };
        let first = wait::eventually("all writes to nodes are logged", DEADLINE, async || {
            let count = to_nodes()?;
            ensure!(count >= 3, "{count}");
            Ok(count)
        })
        .await?;
        let before = stage.daemon_set("config").await?.metadata.uid;
        stage.delete_daemon_set("config").await?;
        wait::eventually("there is another one", DEADLINE, async || {
            ensure!(stage.daemon_set("config").await?.metadata.uid != before);
            Ok(())
        })
        .await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.look_again(alone).await?;
        ensure!(to_nodes()? == first, "{} writes to nodes after {first}", to_nodes()?);
        stage.shares(&[Some(2), Some(2), Some(2)]).await?;
        stage.clear("config").await
    })
}

#[test]
fn a_foreign_daemon_set_of_that_name_stays_and_nothing_is_advertised() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let name = "config-cloud-api-adaptor";
        let labels = json!({ "app": "another" });
        let another = json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "nodeSelector": { "no": "where" }, "containers": [{ "name": "main", "image": "any" }] },
                },
            },
        });
        let before = stage.make::<DaemonSet>(another).await?;
        stage.configure("config", json!({ "limit": 2 })).await?;
        let message = stage.until("config", "Conflict", "NameTaken").await?;
        ensure!(message.contains(name), "{message}");
        stage.until("config", "AdaptorReady", "AdaptorWithheld").await?;
        stage.until("config", "CapacityAdvertised", "NoAdaptor").await?;
        stage.shares(&[None]).await?;
        ensure!(stage.daemon_set("config").await?.metadata.generation == before.metadata.generation);
        let daemon_sets: Api<DaemonSet> = Api::namespaced(stage.client.clone(), NAMESPACE);
        daemon_sets.delete(name, &DeleteParams::background()).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2)]).await?;
        stage.clear("config").await
    })
}
