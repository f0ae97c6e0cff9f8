//! All clouds at once, in one operator.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use peerpod_operator::provider::contract::{Behavior, Example};
use peers::libvirt::Libvirtd;
use testbed::{
    Operator, Testbed,
    wait::{self, DEADLINE},
};

use crate::support::{Scene, alone_with, clouds::CloudPeer};

/// Faults of a cloud.
const TROUBLES: [Behavior; 3] = [Behavior::Hangs, Behavior::Throttled, Behavior::Unauthorized];

/// A VM at one of the clouds, and the PeerPod that records it.
struct Recorded<'a> {
    at: &'a CloudPeer,
    pod: String,
    example: Example,
    peerpod: String,
}

impl<'a> Recorded<'a> {
    /// A running Pod of this name with its VM.
    async fn make(scene: &Scene<'_>, at: &'a CloudPeer, round: usize) -> Result<Self> {
        let pod = format!("{}-{round}", at.name);
        let owner = scene.pods.run(&pod).await?;
        let example = at.make_vm(&pod).await?;
        let peerpod = scene.caa.record(&owner, at.name, &example.id).await?.name_any();
        Ok(Self { at, pod, example, peerpod })
    }

    /// Waits until VM and PeerPod are gone.
    async fn reaped(&self, scene: &Scene<'_>) -> Result<()> {
        wait::gone(&scene.peerpods, &self.peerpod, 2 * DEADLINE).await?;
        let left = self.at.left(&self.example).await?;
        ensure!(!left.vm && left.belongings == 0, "{} has {left:?}", self.pod);
        Ok(())
    }
}

/// Makes a VM at each cloud. Every second cloud has a fault: its VM stays, and the VMs of all other clouds are deleted meanwhile.
/// Returns the VMs that stayed.
async fn trouble<'a>(scene: &Scene<'_>, clouds: &'a [CloudPeer], round: usize) -> Result<Vec<Recorded<'a>>> {
    let all = try_join_all(clouds.iter().map(|at| Recorded::make(scene, at, round))).await?;
    let (mut troubled, mut well) = (Vec::new(), Vec::new());
    for (number, recorded) in all.into_iter().enumerate() {
        let behavior = TROUBLES[(number / 2) % TROUBLES.len()];
        // The pool of byom is in the cluster, so its fault would be a fault of all clouds.
        let is_one = number % 2 == round
            && recorded.at.name != "byom"
            && recorded.at.behave(behavior, &recorded.example).await?;
        if is_one { troubled.push(recorded) } else { well.push(recorded) }
    }
    ensure!(troubled.len() >= 3, "only {} clouds are in trouble", troubled.len());
    for Recorded { pod, .. } in troubled.iter().chain(&well) {
        scene.pods.delete(pod).await?;
    }
    try_join_all(well.iter().map(|it| it.reaped(scene))).await?;
    for it in &troubled {
        ensure!(it.at.left(&it.example).await?.vm, "{} is gone", it.pod);
        ensure!(scene.peerpods.get_opt(&it.peerpod).await?.is_some(), "{} is released", it.peerpod);
        it.at.behave(Behavior::Well, &it.example).await?;
    }
    Ok(troubled)
}

#[test]
fn one_operator_serves_all_clouds_and_trouble_at_half_of_them_delays_no_other() -> Result<()> {
    let clouds = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let all = CloudPeer::start_all(testbed, &[]).await?;
        let operator = Operator::start(testbed, &CloudPeer::options(&all, dir)?).await;
        ensure!(clouds.set(all).is_ok());
        operator
    };
    alone_with(start, async |alone| {
        let (scene, clouds) = (alone.scene(), clouds.get().context("they were started")?);
        let mut troubled = trouble(&scene, clouds, 0).await?;
        troubled.extend(trouble(&scene, clouds, 1).await?);
        try_join_all(troubled.iter().map(|it| it.reaped(&scene))).await.map(drop)
    })
}
