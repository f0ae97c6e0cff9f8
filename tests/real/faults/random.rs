//! Random lives of Pods under random faults: no VM of a living Pod and no foreign VM is touched, and in the end all other VMs are gone.
//!
//! Several lanes play beside each other, and nothing waits for the operators before the end. [`life`] takes only steps after which the
//! rules of `src/peerpod/decide.rs` leave no doubt about what becomes of each VM, whenever the operators see it.

mod fault;
mod life;

use std::{collections::HashSet, env, path::Path, pin::pin};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use futures::{StreamExt as _, future::try_join_all};
use kube::{
    Api, ResourceExt as _,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use libvirt_client::ErrorCode;
use peers::libvirt::{BASE_VOLUME, Libvirtd, POOL};
use testbed::{
    Operator, OperatorOptions, Pods,
    wait::{self, DEADLINE},
};
use uuid::Uuid;

use self::{
    fault::{Faults, Line},
    life::{Lane, Life, World},
};
use super::DRIVERS_OWN;
use crate::{
    process::leadership::until_leads,
    support::{PROGRAM, alone_beside, condition},
};

/// The steps of a round. More of them are played in several rounds, each with a seed, a libvirtd and operators of its own.
const ROUND: usize = 60;

/// One of so many steps is a fault.
const FAULT_EVERY: usize = 5;

const LANES: usize = 4;

/// Fails when a PeerPod is gone and its VM is not. Does not end otherwise.
async fn released_early(world: &World) -> Result<()> {
    let mut events = pin!(watcher(world.peerpods.clone(), watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        // A watch that failed begins again.
        let Ok(watcher::Event::Delete(peerpod)) = event else { continue };
        let vm = Uuid::parse_str(peerpod.instance_id())?;
        let found = world.host.client().domain_lookup_by_uuid(vm).await;
        let is_gone = found.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::NoDomain));
        ensure!(is_gone, "the PeerPod {} is gone before its VM: {found:?}", peerpod.name_any());
    }
    bail!("the watch of PeerPods ended")
}

/// Waits until everything is gone that has to go. Fails unless everything else is there.
async fn settled(world: &World, lanes: &[Lane]) -> Result<()> {
    let lives = || lanes.iter().flat_map(|lane| &lane.lives);
    let stay: HashSet<_> = lives().flat_map(Life::peerpods).collect();
    // If the cloud fails while a replaced PeerPod of a running Pod is being deleted, the operator tries again after 75 s at most.
    wait::eventually("all PeerPods are released that have to be", 2 * DEADLINE, async || {
        let mut left = world.peerpods.list(&ListParams::default()).await?.items;
        left.retain(|peerpod| !stay.contains(&peerpod.name_any()));
        let left: Vec<_> = left.iter().map(|it| (it.name_any(), condition(it).map(|it| it.reason))).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await?;
    for lane in lanes {
        lane.check(world).await?;
    }
    let stay = lives().flat_map(Life::vms);
    let stay = stay.flat_map(|(vm, _)| [&vm.domain.name, &vm.root.name, &vm.cloudinit.name]);
    let stay: HashSet<_> = stay.map(String::as_str).chain([DRIVERS_OWN, BASE_VOLUME]).collect();
    let (domains, volumes) = (world.host.virsh().domains().await?, world.host.virsh().volumes(POOL).await?);
    let left: Vec<_> = domains.iter().chain(&volumes).filter(|name| !stay.contains(name.as_str())).collect();
    ensure!(left.is_empty(), "the domains and volumes {left:?} are left");
    Ok(())
}

fn round(seed: u64, steps: usize) -> Result<()> {
    let start = async |dir: &Path, libvirtd: &Libvirtd| {
        let line = Line::open(dir, libvirtd)?;
        let settings = line.settings.clone();
        Ok((line, settings))
    };
    alone_beside(start, async |alone, line| {
        until_leads(&alone.operator).await?;
        let dir = tempfile::tempdir()?;
        let options = OperatorOptions::new(PROGRAM, dir.path().join("operator"), line.settings.clone());
        let mut second = Operator::start(alone.testbed, &options).await?;
        let world = World {
            pods: Pods::new(alone.testbed.client(), &alone.namespace),
            peerpods: Api::namespaced(alone.testbed.client(), &alone.namespace),
            caa: alone.caa.clone(),
            host: alone.libvirtd.host().clone(),
        };
        let mut random = Rng::with_seed(seed);
        let mut faults = Faults {
            random: random.fork(),
            cluster: alone.testbed.cluster(),
            libvirtd: &alone.libvirtd,
            line,
            replicas: [&mut alone.operator, &mut second],
        };
        let lane = |number| Lane { number, random: random.fork(), lives: Vec::new() };
        let mut lanes: Vec<_> = (0..LANES).map(lane).collect();

        let count = steps / FAULT_EVERY;
        let each = (steps - count).div_ceil(LANES);
        let play = async {
            let lives = try_join_all(lanes.iter_mut().map(|lane| lane.play(&world, each)));
            tokio::try_join!(lives, faults.play(count))?;
            settled(&world, &lanes).await
        };
        let outcome = tokio::select! {
            outcome = play => outcome,
            outcome = released_early(&world) => outcome,
        };
        outcome.inspect_err(|_| println!("{}", second.log_tail()))?;

        let lives = || lanes.iter().flat_map(|lane| &lane.lives);
        for forged in lives().filter(|life| !life.lives).flat_map(|life| &life.forged) {
            alone.scene().held(forged, "NotThisPodsVM").await?;
        }
        let stayed: Vec<_> =
            lives().flat_map(Life::vms).map(|(vm, _)| format!("\"{}\"", vm.domain.name)).collect();
        for replica in [&alone.operator, &second] {
            ensure!(replica.process().is_running(), "an operator ended by itself");
            let log = replica.log()?;
            for deletion in log.lines().filter(|line| line.contains("deleting the VM")) {
                ensure!(!stayed.iter().any(|name| deletion.contains(name)), "it tried: {deletion}");
            }
        }
        Ok(())
    })
}

/// The number in this environment variable, if it is set.
fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(value) = env::var(variable) else { return Ok(None) };
    value.parse().map(Some).with_context(|| format!("{variable}={value} is no number"))
}

#[test]
fn random_lives_of_pods_under_random_faults() -> Result<()> {
    let seed = number("PEERPOD_RANDOM_SEED")?.unwrap_or_else(|| fastrand::u32(..).into());
    let steps = number("PEERPOD_RANDOM_STEPS")?.map_or(Ok(ROUND), usize::try_from)?;
    for (seed, done) in (seed..).zip((0..steps).step_by(ROUND)) {
        let steps = ROUND.min(steps - done);
        println!("PEERPOD_RANDOM_SEED={seed} PEERPOD_RANDOM_STEPS={steps} repeats this round");
        round(seed, steps).with_context(|| format!("the round of PEERPOD_RANDOM_SEED={seed}"))?;
    }
    Ok(())
}
