//! 20,000 PeerPods, and operators within their installed limits, on a real node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::{node::PodMemory, progress::Progress};
use kube::{ResourceExt as _, api::DeleteParams};
use peerpod_operator::{NAMESPACE, install::NAME};
use testbed::{OperatorPods, RealNode, Shell, wait};
use tokio::time::sleep;

use super::{figures::Figures, real_node, scene::Bench};

/// The number of living PeerPods.
const LIVING: usize = 20_000;
/// The number of further PeerPods that are being deleted when the operators start.
const GOING: usize = 400;
/// The most memory that an operator may ever take, in MiB: a third of its limit.
const ROOM: f64 = 45.0;
/// How often to read memory that has no recorded peak.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(180);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(real_node::STEPS + 3);
    let dir = tempfile::tempdir()?;
    let (node, shell) = real_node::start(dir.path(), &mut progress).await?;
    progress.step("installing by helm");
    shell.documented("helm").await?;
    let bench = Bench::new(&node.testbed, node.libvirtd.host()).await?;
    let operators = Operators { node: &node, shell: &shell, pods: OperatorPods::new(node.testbed.client()) };

    progress.step(format!("{LIVING} PeerPods arrive, one by one"));
    bench.populate(LIVING).await?;
    let arrived = operators.memory().await?;

    progress.step(format!("operators start, and find {GOING} PeerPods going among them"));
    operators.scale(0).await?;
    let dangling = bench.dangling(GOING).await?;
    let peerpods = bench.peerpods();
    for gone in &dangling {
        peerpods.delete(&gone.peerpod, &DeleteParams::default()).await?;
    }
    let reaped = async {
        operators.scale(2).await?;
        for gone in &dangling {
            wait::gone(&peerpods, &gone.peerpod, DEADLINE).await?;
        }
        operators.memory().await
    };
    let mut anonymous = 0;
    let found = tokio::select! {
        found = reaped => found?,
        failed = operators.follow(&mut anonymous) => return Err(failed),
    };
    progress.finish();

    let mut figures = Figures::default();
    figures.info("20,000 PeerPods arrived: anonymous memory", mebibytes(arrived.anonymous)?, "MiB");
    figures.at_most("20,000 PeerPods arrived: all memory, peak", mebibytes(arrived.peak)?, "MiB", ROOM);
    figures.info("20,000 found at start, 400 going: anonymous memory", mebibytes(found.anonymous)?, "MiB");
    figures.info("20,000 found at start, 400 going: anonymous memory, peak", mebibytes(anonymous)?, "MiB");
    figures.at_most(
        "20,000 found at start, 400 going: all memory, peak",
        mebibytes(found.peak)?,
        "MiB",
        ROOM,
    );
    let kills = f64::from(u32::try_from(arrived.kills + found.kills)?);
    figures.exactly("kills for want of memory, and restarts", kills, 0.0);
    Ok(figures)
}

fn mebibytes(bytes: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(bytes >> 10)?) / 1024.0)
}

/// The operators' Pods.
struct Operators<'a> {
    node: &'a RealNode,
    shell: &'a Shell,
    pods: OperatorPods,
}

impl Operators<'_> {
    /// Scales to so many of them, and waits until no others are left.
    async fn scale(&self, replicas: usize) -> Result<()> {
        let commands = format!(
            "kubectl -n {NAMESPACE} scale deployment/{NAME} --replicas={replicas}\n\
             kubectl -n {NAMESPACE} rollout status deployment/{NAME} --timeout=2m"
        );
        self.shell.run(&commands).await?;
        wait::eventually("the operators are as many as asked for", DEADLINE, async || {
            let pods = self.pods.list().await?.len();
            ensure!(pods == replicas, "there are {pods}");
            Ok(())
        })
        .await
    }

    /// The most memory of any of them. A restart counts as a kill, because the cgroup of a killed process is gone with it.
    async fn memory(&self) -> Result<PodMemory> {
        let mut most = PodMemory { anonymous: 0, files: 0, peak: 0, kills: 0 };
        for pod in self.pods.list().await? {
            let memory = self.node.testbed.cluster().memory_of_pod(&pod.uid().unwrap_or_default())?;
            let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let restarts: i32 = containers.map(|it| it.restart_count).sum();
            most = PodMemory {
                anonymous: most.anonymous.max(memory.anonymous),
                files: most.files.max(memory.files),
                peak: most.peak.max(memory.peak),
                kills: most.kills + memory.kills + u64::try_from(restarts)?,
            };
        }
        Ok(most)
    }

    /// Records the most anonymous memory of any of them until it is dropped. Returns only if it cannot continue, with the reason.
    async fn follow(&self, most: &mut u64) -> anyhow::Error {
        loop {
            let pods = match self.pods.list().await.context("looking for the operators' Pods") {
                Ok(pods) => pods,
                Err(error) => return error,
            };
            for pod in pods {
                // A new Pod, or one that is being deleted, may have no cgroup.
                let memory = self.node.testbed.cluster().memory_of_pod(&pod.uid().unwrap_or_default());
                *most = (*most).max(memory.map_or(0, |memory| memory.anonymous));
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}
