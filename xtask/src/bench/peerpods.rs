//! The PeerPod controller with a real API server and libvirt's test driver, whose answers take almost no time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::{process::Lifetime, progress::Progress};
use kube::api::ListParams;
use peers::libvirt::Libvirtd;
use testbed::{Operator, OperatorOptions, Options, Settings, Testbed};
use tokio::time::{sleep, timeout};

use super::{
    build_operator,
    figures::{Figures, median_and_slowest},
    handover,
    scene::{Bench, Requests},
    slow, usage,
};

/// The number of measured deletions.
const DELETIONS: usize = 400;
/// The number of PeerPods that live while memory is measured.
const LIVING: usize = 4_200;
/// The number of starts. The median counts.
const STARTS: usize = 9;
/// How long the operator must write nothing.
const QUIET: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(120);
/// What a failure of the first deletions means.
const CONNECTING: &str = "deleting a few, so that everything is connected";

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(9);
    let program = build_operator(&mut progress)?;
    progress.step("starting the control plane and libvirtd");
    let dir = tempfile::tempdir()?;
    let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
    let libvirtd = Libvirtd::start(&dir.path().join("libvirtd"), Lifetime::Owned).await?;
    let bench = Bench::new(&testbed, libvirtd.host()).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(&program, dir.path().join("operator"), settings.clone());
    let mut operator = Operator::start(&testbed, &options).await?;

    let mut figures = Figures::default();
    progress.step("starting the operator again and again");
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(start(&bench, &mut operator).await?);
    }
    let [median, _] = median_and_slowest(&starts);
    figures.at_most("start to ready", median * 1e3, "ms", 50.0);

    progress.step(format!("{DELETIONS} deletions"));
    bench.delete(5).await.context(CONNECTING)?;
    let (idle, _) = usage::memory(operator.pid())?;
    figures.info("resident memory, idle", idle, "MiB");
    measure_deletions(&bench, &operator, &mut figures).await?;
    operator.stop().await?;

    progress.step("both controllers, idle");
    let both = vec!["--controllers=peerpod,peerpodconfig".to_owned()];
    let both = OperatorOptions {
        arguments: both,
        ..OperatorOptions::new(&program, dir.path().join("both"), settings.clone())
    };
    let both = Operator::start(&testbed, &both).await?;
    bench.delete(5).await.context(CONNECTING)?;
    let (idle, _) = usage::memory(both.pid())?;
    figures.at_most("resident memory, idle, both controllers", idle, "MiB", 11.0);
    both.stop().await?;

    progress.step("deletions from a slow cloud, and from one that hangs for a third of them");
    slow::measure(&bench, &libvirtd, &program, dir.path(), &mut figures).await?;
    progress.step("two replicas, one after the other");
    handover::measure(&bench, &settings, &program, dir.path(), &mut figures).await?;
    operator.start_again()?;
    operator.ready().await?;

    progress.step(format!("memory with {LIVING} PeerPods"));
    bench.populate(LIVING).await?;
    let (grown, _) = usage::memory(operator.pid())?;
    figures.info("resident memory, PeerPods arrived one by one", grown, "MiB");
    start(&bench, &mut operator).await?;
    bench.delete(5).await?;
    let (resident, peak) = usage::memory(operator.pid())?;
    figures.info("resident memory, PeerPods found at start", resident, "MiB");
    figures.at_most("resident memory, PeerPods found at start, peak", peak, "MiB", 20.0);

    progress.step(format!("nothing, for {QUIET:?}"));
    let (before, cpu) = (Requests::read(&testbed).await?, usage::cpu(operator.pid())?);
    sleep(QUIET).await;
    let spent = usage::cpu(operator.pid())? - cpu;
    figures.at_most(
        "API writes while nothing changes",
        Requests::read(&testbed).await?.writes - before.writes,
        "",
        0.0,
    );
    figures.info("operator CPU while nothing changes", spent * 1e3 / QUIET.as_secs_f64(), "ms/s");
    progress.finish();
    Ok(figures)
}

/// Stops the operator and starts it again. Returns the time until it is ready.
async fn start(bench: &Bench<'_>, operator: &mut Operator) -> Result<Duration> {
    operator.stop().await?;
    // After any write, such as one of the lease, the API server delays the next list by up to 100 ms, until its cache has seen the
    // write. That is not the operator's time.
    bench.peerpods().list(&ListParams::default().limit(1)).await?;
    let started = Instant::now();
    operator.start_again()?;
    let ready = async {
        while !operator.health("/readyz").await.is_ok_and(|(status, _)| status == 200) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(DEADLINE, ready).await.context("the operator does not become ready")?;
    Ok(started.elapsed())
}

/// Deletes machines of Pods that have ended. The time starts at the first call.
async fn measure_deletions(bench: &Bench<'_>, operator: &Operator, figures: &mut Figures) -> Result<()> {
    let dangling = bench.dangling(DELETIONS).await?;
    let pid = operator.pid();
    let (before, cpu) = (Requests::read(bench.testbed).await?, usage::cpu(pid)?);
    let (calls, all) = bench.delete_and_wait(&dangling, &dangling).await?;
    let cpu = usage::cpu(pid)? - cpu;
    let requests = Requests::read(bench.testbed).await?.since(&before);
    let count = f64::from(u32::try_from(DELETIONS)?);
    figures.info("400 deletions: the delete calls themselves", calls, "s");
    figures.at_most("400 deletions: until all were gone, after that", all - calls, "s", 0.3);
    figures.at_most("400 deletions: operator CPU", cpu, "s", 0.4);
    figures.at_most("API writes for each deletion", requests.writes / count, "", 1.0);
    figures.info("Pods read for each deletion", requests.pods_read / count, "");
    let left = bench.host.virsh().domains().await?;
    ensure!(!left.iter().any(|domain| domain.starts_with("podvm-")), "domains are left: {left:?}");
    Ok(())
}
