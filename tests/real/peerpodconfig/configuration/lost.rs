//! Nodes that are not ready. In a large cluster there is always one.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::stage::{Stage, configuring};

#[test]
fn a_lost_node_is_reported_and_does_not_prevent_ready() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        let [first, others @ ..] = stage.nodes.names() else { unreachable!("there are three") };
        stage.nodes.lose(first).await?;
        stage.configure("config", json!({ "limit": 6 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let message = stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        ensure!(message.contains("runs on 2 nodes") && message.contains(first), "{message}");
        // The node gets its share when it comes back.
        stage.shares(&[Some(2), Some(2), Some(2)]).await?;
        for other in others {
            stage.nodes.lose(other).await?;
        }
        let message = stage.until("config", "AdaptorReady", "NodesNotReady").await?;
        ensure!(stage.nodes.names().iter().all(|name| message.contains(name)), "{message}");
        stage.until("config", "Ready", "NodesNotReady").await?;

        for name in stage.nodes.names() {
            stage.nodes.find(name).await?;
        }
        // Only real kubelets report running Pods as ready again, so the test makes new Pods.
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let adaptors = ListParams::default().labels("app.kubernetes.io/component=adaptor");
        pods.delete_collection(&DeleteParams::default().grace_period(0), &adaptors).await?;
        wait::eventually("it runs on all again", DEADLINE, async || {
            let message = stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
            ensure!(message == "cloud-api-adaptor runs on 3 nodes", "{message}");
            Ok(())
        })
        .await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.clear("config").await
    })
}
