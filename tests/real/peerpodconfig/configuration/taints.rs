//! Nodes that do not take cloud-api-adaptor's Pods.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::wait::{self, DEADLINE};

use super::stage::{RESOURCE, Stage, configuring};

#[test]
fn tainted_nodes_are_reported_and_advertise_only_their_running_vms() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 3).await?;
        stage.configure("config", json!({ "limit": 6 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2), Some(2), Some(2)]).await?;
        let node = stage.nodes.names()[0].as_str();
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let peer: Pod = serde_json::from_value(json!({
            "metadata": { "name": "peer" },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main", "image": "any", "resources": { "limits": { RESOURCE: "1" } } }],
            },
        }))?;
        pods.create(&PostParams::default(), &peer).await?;
        wait::present(&pods, "peer", "its kubelet took it", DEADLINE, |pod| {
            pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
        })
        .await?;

        let taints = |taints: Value| Patch::Merge(json!({ "spec": { "taints": taints } }));
        let tainted = taints(json!([{ "key": "for", "value": "db", "effect": "NoSchedule" }]));
        stage.nodes.api().patch(node, &PatchParams::default(), &tainted).await?;
        let message = stage.until("config", "AdaptorReady", "NodesTainted").await?;
        ensure!(
            message.contains("1 of 3") && message.contains(node) && message.contains("for=db"),
            "{message}"
        );
        stage.until("config", "Ready", "NodesTainted").await?;
        stage.shares(&[Some(1), Some(2), Some(3)]).await?;
        let message = stage.until("config", "CapacityAdvertised", "Advertised").await?;
        ensure!(message.contains(node), "{message}");
        // cloud-api-adaptor tolerates the taint.
        let tolerant = json!({ "tolerations": [{ "key": "for", "operator": "Exists" }] });
        stage.configure("config", json!({ "limit": 6, "adaptor": tolerant })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2), Some(2), Some(2)]).await?;
        // The taint is removed.
        stage.configure("config", json!({ "limit": 6 })).await?;
        stage.until("config", "AdaptorReady", "NodesTainted").await?;
        stage.nodes.api().patch(node, &PatchParams::default(), &taints(json!(null))).await?;
        stage.until("config", "Ready", "AllReady").await?;
        stage.shares(&[Some(2), Some(2), Some(2)]).await?;
        pods.delete("peer", &DeleteParams::default().grace_period(0)).await?;
        stage.clear("config").await
    })
}
