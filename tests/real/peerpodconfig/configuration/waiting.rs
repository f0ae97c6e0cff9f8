//! A cloud-api-adaptor that is not ready because of Pods on its node.

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::stage::{RUNTIME_CLASS, Stage, configuring};

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

#[test]
fn the_pods_that_cloud_api_adaptor_waits_for_are_named_with_their_node() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 1).await?;
        let node = stage.nodes.names().first().context("a node")?.clone();
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let make = async |name: &str| {
            let pod = serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": {
                    "nodeName": node, "runtimeClassName": RUNTIME_CLASS, "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "main", "image": "any" }],
                },
            }))?;
            pods.create(&PostParams::default(), &pod).await?;
            wait::present(&pods, name, "it is ready", DEADLINE, is_ready).await
        };
        make("older").await?;
        wait::second_after(Timestamp::now()).await?;
        stage.configure("config", json!({ "limit": 5 })).await?;
        stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        wait::second_after(Timestamp::now()).await?;
        make("newer").await?;

        // No kubelet runs the probe of a fake node's Pod.
        let own: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
        let of_adaptor = ListParams::default().labels("app.kubernetes.io/component=adaptor");
        let adaptor = own.list(&of_adaptor).await?.items.pop().context("cloud-api-adaptor has a Pod")?;
        let says = |ready: &str| {
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            Patch::Strategic(json!({ "status": { "conditions": conditions } }))
        };
        let params = PatchParams::default();
        own.patch_status(&adaptor.name_any(), &params, &says("False")).await?;
        let told = format!(
            "on node {node}, cloud-api-adaptor waits for the Pods {}/older (ready since before it started): it becomes ready when each \
             of them has become ready since it started, or is deleted; delete those that have ended, and those that were ready before; \
             0 of 1 Pods are ready",
            alone.namespace
        );
        wait::eventually("the message names the older Pod alone", 3 * DEADLINE, async || {
            let message = stage.until("config", "AdaptorReady", "AdaptorStarting").await?;
            ensure!(message.starts_with(&told), "{message}");
            Ok(())
        })
        .await?;
        for name in ["older", "newer"] {
            pods.delete(name, &DeleteParams::default()).await?;
        }
        own.patch_status(&adaptor.name_any(), &params, &says("True")).await?;
        stage.until("config", "AdaptorReady", "AdaptorRunning").await?;
        stage.clear("config").await
    })
}
