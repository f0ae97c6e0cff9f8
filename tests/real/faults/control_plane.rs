//! API server or etcd dies, and the operator's watches with it.

use anyhow::{Result, ensure};
use cluster::Component;
use futures::future::try_join_all;
use jiff::Timestamp;
use kube::api::DeleteParams;
use testbed::{
    Request, Vm,
    wait::{self, DEADLINE},
};

use super::Hundred;
use crate::support::{Alone, alone};

/// Machines are deleted while a component dies and restarts.
fn dies_and_comes_back(component: Component) -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle(alone).await?;
        let struck = Timestamp::now();
        alone.kill_and_start(component).await?;
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator], struck).await?.within(10)
    })
}

#[test]
fn an_api_server_that_dies_and_comes_back() -> Result<()> {
    dies_and_comes_back(Component::ApiServer)
}

#[test]
fn an_etcd_that_dies_and_comes_back() -> Result<()> {
    dies_and_comes_back(Component::Etcd)
}

#[test]
fn watches_that_the_api_server_closes() -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        // The API server stops in order and ends the watches.
        alone.testbed.cluster_mut().restart(Component::ApiServer).await?;
        let struck = Timestamp::now();
        machines.until_the_middle(alone).await?;
        machines.reaped(alone).await?;
        let cost = machines.cost(alone, &[&alone.operator], struck).await?;
        // The audit log contains only watches that have ended.
        let closed = |request: &Request| request.verb == "watch" && request.resource == "peerpods";
        ensure!(cost.requests.iter().any(closed), "no watch was closed");
        cost.within(3)
    })
}

/// PeerPods that are being deleted.
async fn deleted(alone: &Alone<'_>, names: &[&str]) -> Result<Vec<Vm>> {
    let scene = alone.scene();
    let vms = try_join_all(names.iter().map(|name| scene.pod_with_vm(name))).await?;
    for vm in &vms {
        scene.peerpods.delete(&vm.name(), &DeleteParams::background()).await?;
    }
    Ok(vms)
}

#[test]
fn a_watch_that_expired_during_a_pause() -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        let running = deleted(alone, &["a", "b", "c"]).await?;
        machines.until_the_middle(alone).await?;
        // While the operator is paused, the API server loses all its events. Some happen meanwhile that no watch will report.
        alone.operator.pause()?;
        let struck = Timestamp::now();
        // The operator's last version must not be the latest one, or its watch could resume there.
        alone.testbed.namespace("meanwhile").await?;
        alone.kill_and_start(Component::ApiServer).await?;
        let scene = alone.scene();
        for vm in &running {
            scene.caa.stop_vm(vm, scene.host).await?;
            wait::gone(&scene.peerpods, &vm.name(), DEADLINE).await?;
        }
        alone.operator.resume()?;
        machines.reaped(alone).await?;
        wait::eventually("the operator knows of the one PeerPod alone", DEADLINE, async || {
            let known = alone.operator.metrics().await?.sum("peerpod_operator_peerpods", &[]);
            ensure!((known - 1.0).abs() < 0.5, "it knows of {known} PeerPods");
            Ok(())
        })
        .await?;
        let log = alone.operator.log()?;
        let expired = |line: &str| line.contains("the watch of peerpods failed") && line.contains("Expired");
        ensure!(log.lines().any(expired), "the watch found its place again");
        machines.cost(alone, &[&alone.operator], struck).await?.within(10)
    })
}
