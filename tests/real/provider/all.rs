//! All clouds at once, in one operator.

use std::{cell::OnceCell, path::Path};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use peerpod_operator::provider::{
    CLOUDS,
    contract::{Behavior, Cannot, Example, Kind, Left},
};
use peers::libvirt::Libvirtd;
use testbed::{
    MountedFolder, Operator, OperatorOptions, Testbed,
    contract::Played,
    wait::{self, DEADLINE},
};

use crate::support::{PROGRAM, Scene, alone_with};

/// What a cloud may do to its users.
const TROUBLES: [Behavior; 3] = [Behavior::Hangs, Behavior::Throttled, Behavior::Unauthorized];

/// A cloud with its name.
struct One {
    name: &'static str,
    played: Played,
}

/// A VM at one of the clouds, and the PeerPod that records it.
struct Recorded<'a> {
    at: &'a One,
    pod: String,
    example: Example,
    peerpod: String,
}

/// The options of an operator for all clouds, the first by its ordinary settings.
fn options(clouds: &[One], dir: &Path) -> Result<OperatorOptions> {
    let (first, further) = clouds.split_first().context("there is no cloud")?;
    let mut arguments = Vec::new();
    for One { name, played } in further {
        let settings =
            MountedFolder::create(dir.join(format!("{name}-settings")), &played.settings.config_map)?;
        let credentials =
            MountedFolder::create(dir.join(format!("{name}-credentials")), &played.settings.secret)?;
        let folders = [&settings, &credentials].map(|it| it.path().display().to_string()).join(",");
        arguments.push(format!("--provider={name}={folders}"));
    }
    let options = OperatorOptions::new(PROGRAM, dir.join("operator"), first.played.settings.clone());
    Ok(OperatorOptions { arguments, ..options })
}

impl<'a> Recorded<'a> {
    /// A running Pod of this name with its VM.
    async fn make(scene: &Scene<'_>, at: &'a One, round: usize) -> Result<Self> {
        let pod = format!("{}-{round}", at.name);
        let owner = scene.pods.run(&pod).await?;
        let example =
            at.played.peer.make(Kind::Running, &pod).await.map_err(|it| anyhow::anyhow!("{pod}: {it}"))?;
        let peerpod = scene.caa.record(&owner, at.name, &example.id).await?.name_any();
        Ok(Self { at, pod, example, peerpod })
    }

    async fn left(&self) -> Result<Left> {
        self.at.played.peer.left(&self.example).await.map_err(|it| anyhow::anyhow!("{}: {it}", self.pod))
    }

    /// Waits until VM and PeerPod are gone.
    async fn reaped(&self, scene: &Scene<'_>) -> Result<()> {
        wait::gone(&scene.peerpods, &self.peerpod, 2 * DEADLINE).await?;
        let left = self.left().await?;
        ensure!(!left.vm && left.belongings == 0, "{} has {left:?}", self.pod);
        Ok(())
    }

    /// Makes its cloud behave so. Gives whether there is such a thing.
    async fn behave(&self, behavior: Behavior) -> Result<bool> {
        match self.at.played.peer.behave(behavior, &self.example).await {
            Ok(()) => Ok(true),
            Err(Cannot::Here(_)) => Ok(false),
            Err(Cannot::Failed(error)) => Err(anyhow::anyhow!("{}: {behavior:?}: {error}", self.pod)),
        }
    }
}

/// A VM at each cloud. In every second cloud there is trouble of some kind: there the VM stays, and at all others it goes meanwhile.
/// Gives those that stayed.
async fn trouble<'a>(scene: &Scene<'_>, clouds: &'a [One], round: usize) -> Result<Vec<Recorded<'a>>> {
    let all = try_join_all(clouds.iter().map(|at| Recorded::make(scene, at, round))).await?;
    let (mut troubled, mut well) = (Vec::new(), Vec::new());
    for (number, recorded) in all.into_iter().enumerate() {
        let behavior = TROUBLES[(number / 2) % TROUBLES.len()];
        // The pool of byom is in the cluster: its trouble would be that of all.
        let is_one = number % 2 == round && recorded.at.name != "byom" && recorded.behave(behavior).await?;
        if is_one { troubled.push(recorded) } else { well.push(recorded) }
    }
    ensure!(troubled.len() >= 3, "only {} clouds are in trouble", troubled.len());
    for Recorded { pod, .. } in troubled.iter().chain(&well) {
        scene.pods.delete(pod).await?;
    }
    try_join_all(well.iter().map(|it| it.reaped(scene))).await?;
    for it in &troubled {
        ensure!(it.left().await?.vm, "{} is gone", it.pod);
        ensure!(scene.peerpods.get_opt(&it.peerpod).await?.is_some(), "{} is released", it.peerpod);
        it.behave(Behavior::Well).await?;
    }
    Ok(troubled)
}

#[test]
fn one_operator_serves_all_clouds_and_trouble_at_half_of_them_delays_no_other() -> Result<()> {
    let clouds = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let all = CLOUDS.into_iter().map(async |cloud| {
            let played = Played::start(cloud.name(), Some(testbed)).await;
            Ok::<_, anyhow::Error>(One { name: cloud.name(), played: played.context(cloud.name())? })
        });
        let all = try_join_all(all).await?;
        let operator = Operator::start(testbed, &options(&all, dir)?).await;
        ensure!(clouds.set(all).is_ok());
        operator
    };
    alone_with(start, async |alone| {
        let (scene, clouds) = (alone.scene(), clouds.get().context("they were started")?);
        ensure!(clouds.len() == 10, "{} clouds", clouds.len());
        let mut troubled = trouble(&scene, clouds, 0).await?;
        troubled.extend(trouble(&scene, clouds, 1).await?);
        try_join_all(troubled.iter().map(|it| it.reaped(&scene))).await.map(drop)
    })
}
