//! The API server stops for a while, and all watches with it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster::Component;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::stage::{RESOURCE, Stage, configuring};

#[test]
fn nodes_are_corrected_soon_after_an_outage() -> Result<()> {
    configuring(async |alone| {
        let stage = Stage::set(alone, 2).await?;
        stage.configure("config", json!({ "limit": 4 })).await?;
        stage.until("config", "Ready", "AllReady").await?;
        let cut = Instant::now();
        alone.kill_and_start(Component::ApiServer).await?;
        let (outage, start) = (cut.elapsed(), Instant::now());
        let reset = json!({ "status": { "capacity": { RESOURCE: "0" }, "allocatable": { RESOURCE: "0" } } });
        for node in stage.nodes.names() {
            let reset = Patch::Merge(&reset);
            stage.nodes.api().patch_status(node, &PatchParams::default(), &reset).await?;
        }
        stage.shares(&[Some(2), Some(2)]).await?;
        let took = start.elapsed();
        // Each watch waits longer after each refusal, in total about twice as long as the outage at most.
        ensure!(
            took < Duration::from_secs(10) + 3 * outage,
            "nodes were put right after {took:?}, {outage:?} long"
        );
        stage.clear("config").await
    })
}
