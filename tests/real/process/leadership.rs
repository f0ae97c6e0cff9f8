//! Several candidates for one lease: exactly one acts at a time, whatever happens to it.

mod disturbed;
mod handover;
mod shared;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use operator_kit::lease::{DURATION, RETRY_PERIOD};
use serde_json::json;
use tempfile::TempDir;
use testbed::{
    Operator, OperatorOptions, Request, Settings, Vm,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone_with};

/// Runs a test with one operator that takes part in the election, with further arguments if any are given.
pub fn elected(arguments: &[String], test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    let start =
        async |testbed: &testbed::Testbed, dir: &std::path::Path, libvirtd: &peers::libvirt::Libvirtd| {
            let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
            let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
            options.arguments.extend_from_slice(arguments);
            Operator::start(testbed, &options).await
        };
    alone_with(start, test)
}

/// A second operator beside the first, which leads. Also the second one's folder.
pub async fn standby(alone: &Alone<'_>) -> Result<(Operator, TempDir)> {
    until_leads(&alone.operator).await?;
    let dir = tempfile::tempdir()?;
    let settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(PROGRAM, dir.path().join("operator"), settings);
    let operator = Operator::start(alone.testbed, &options).await?;
    wait::eventually("the second operator has seen the first one's lease", DEADLINE, async || {
        ensure!(operator.log()?.contains("standing by"));
        Ok(())
    })
    .await?;
    Ok((operator, dir))
}

async fn leads(operator: &Operator) -> Result<bool> {
    Ok(operator.metrics().await?.sum("peerpod_operator_leader", &[]) > 0.5)
}

/// Waits until this operator leads.
pub async fn until_leads(operator: &Operator) -> Result<()> {
    wait::eventually("the operator leads", DEADLINE, async || {
        ensure!(leads(operator).await?);
        Ok(())
    })
    .await
}

/// Waits until this operator no longer leads.
pub async fn until_stands_by(operator: &Operator) -> Result<()> {
    wait::eventually("the operator leads no more", DEADLINE, async || {
        ensure!(!leads(operator).await?);
        Ok(())
    })
    .await
}

/// How many calls to the cloud have been answered.
async fn answered_calls(operator: &Operator) -> Result<f64> {
    let metrics = operator.metrics().await?;
    let sum = |labels: &[(&str, &str)]| metrics.sum("peerpod_operator_provider_calls_total", labels);
    Ok(sum(&[]) - sum(&[("result", "abandoned")]))
}

async fn deletions(operator: &Operator) -> Result<f64> {
    Ok(operator.metrics().await?.sum("peerpod_operator_deletions_total", &[]))
}

/// The operator counts a deletion once the API server has answered, a moment after the PeerPod is gone.
async fn until_reaped_more_than(before: f64, operator: &Operator) -> Result<()> {
    wait::eventually("it was this operator that reaped", DEADLINE, async || {
        ensure!(deletions(operator).await? > before + 0.5);
        Ok(())
    })
    .await
}

/// Fails if the next operator leads so late that the lease may have expired instead of having been released.
pub fn ensure_given(took: Duration) -> Result<()> {
    // The leader renewed the lease that long before at the most.
    let expires = DURATION.checked_sub(RETRY_PERIOD).context("it is longer")?;
    ensure!(took < expires, "it took {took:?}, as if the lease had to expire");
    Ok(())
}

/// The operators' requests for leases since then, without watches that still run.
fn lease_requests(alone: &Alone<'_>, since: Timestamp) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit()?.of_operator()?;
    requests.retain(|request| request.resource == "leases" && request.time >= since);
    Ok(requests)
}

/// A machine whose Pod has ended. The operator reaps it at once when its PeerPod is deleted.
async fn ended(alone: &Alone<'_>, name: &str) -> Result<Vm> {
    let scene = alone.scene();
    let vm = scene.pod_with_vm(name).await?;
    let pods: Api<Pod> = Api::namespaced(alone.testbed.client(), &scene.namespace);
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    pods.patch_status(name, &PatchParams::default(), &failed).await?;
    Ok(vm)
}

async fn delete(alone: &Alone<'_>, vm: &Vm) -> Result<()> {
    alone.scene().peerpods.delete(&vm.name(), &DeleteParams::background()).await?;
    Ok(())
}
