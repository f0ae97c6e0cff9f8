//! The metrics of the capacity.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::wait::{self, DEADLINE};

use super::stage::{RESOURCE, Stage, configuring};
use crate::support::Alone;

/// Whether a configuration is ready.
const READY: &str = "peerpod_operator_peerpodconfig_ready";

/// Waits until the metrics show these VMs of a configuration: advertised, used and free ones. `None`: no such metric.
async fn shown(alone: &Alone<'_>, config: &str, expected: [Option<u32>; 3]) -> Result<()> {
    let names = ["advertised", "used", "free"].map(|what| format!("peerpod_operator_capacity_{what}_vms"));
    wait::eventually(&format!("{expected:?} of {config} is shown"), DEADLINE, async || {
        let metrics = alone.operator.metrics().await?;
        let has_ready = metrics.label_values(READY, "config").contains(config);
        ensure!(has_ready == expected[0].is_some(), "{READY}: {has_ready}");
        for (name, expected) in names.iter().zip(expected) {
            let is_shown = metrics.label_values(name, "config").contains(config);
            let value = metrics.sum(name, &[("config", config)]);
            ensure!(is_shown == expected.is_some(), "{name}: {is_shown}");
            ensure!((value - f64::from(expected.unwrap_or(0))).abs() < 0.1, "{name}: {value}");
        }
        Ok(())
    })
    .await
}

#[test]
fn the_metrics_show_the_capacity_of_each_configuration_until_it_is_deleted() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &alone.namespace);
        let running: Pod = serde_json::from_value(json!({
            "metadata": { "name": "before" },
            "spec": {
                "nodeSelector": stage.label,
                "containers": [{ "name": "main", "image": "any", "resources": { "limits": { RESOURCE: "1" } } }],
            },
        }))?;
        // A Pod runs before the operator first counts the Pods of the configuration under test.
        stage.configure("first", json!({ "limit": 3 })).await?;
        stage.shares(&[Some(1), Some(2)]).await?;
        pods.create(&PostParams::default(), &running).await?;
        wait::present(&pods, "before", "it runs", DEADLINE, |pod| {
            pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
        })
        .await?;
        stage.delete("first").await?;
        shown(alone, "first", [None; 3]).await?;

        stage.configure("config", json!({ "limit": 4 })).await?;
        shown(alone, "config", [Some(4), Some(1), Some(3)]).await?;
        stage.configure("unlimited", json!({})).await?;
        shown(alone, "unlimited", [Some(0), None, None]).await?;
        stage.delete("unlimited").await?;
        pods.delete("before", &DeleteParams::default().grace_period(0)).await?;
        stage.clear("config").await?;
        shown(alone, "config", [None; 3]).await
    })
}
