//! The sweep of a libvirt host with 5,000 tracked VMs, and how soon it reports untracked VMs.

use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use cluster::{process::Lifetime, progress::Progress};
use peers::libvirt::{Host, Libvirtd};
use testbed::{Operator, OperatorOptions, Options, Settings, Testbed, vm_name};
use tokio::time::sleep;

use super::{
    build_operator,
    figures::Figures,
    scene::{Bench, Requests},
    usage,
};

/// The number of VMs and of their PeerPods.
const VMS: usize = 5_000;
/// The number of measured sweeps. The slowest counts.
const SWEEPS: u32 = 3;
/// The time between two sweeps.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often the metrics are read meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const DEADLINE: Duration = Duration::from_secs(120);

/// The number of untracked VMs, made at different times between two sweeps.
const UNTRACKED: u32 = 4;
/// The time between two sweeps that find the untracked VMs, and also their grace. The defaults are 20 and 30 times as long.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(60);

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(5);
    let program = build_operator(&mut progress)?;
    progress.step("starting the control plane and libvirtd");
    let dir = tempfile::tempdir()?;
    let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
    let libvirtd = Libvirtd::start(&dir.path().join("libvirtd"), Lifetime::Owned).await?;
    let host = libvirtd.host();
    let bench = Bench::new(&testbed, host).await?;
    progress.step(format!("{VMS} VMs and PeerPods"));
    let pods = bench.pods(VMS).await?;
    bench.machines(&pods).await?;

    progress.step(format!("{SWEEPS} sweeps"));
    let settings = Settings::libvirt(&host.uri().to_string());
    let with = |name: &str, argument: String| OperatorOptions {
        arguments: vec![argument],
        ..OperatorOptions::new(&program, dir.path().join(name), settings.clone())
    };
    let idle = Operator::start(&testbed, &with("idle", "--sweep=off".to_owned())).await?;
    // By now the place of the settings is recorded, and all objects are read.
    bench.delete(5).await?;
    let (_, without) = usage::memory(idle.pid())?;
    idle.stop().await?;
    let interval = format!("--sweep-interval={}s", INTERVAL.as_secs());
    let operator = Operator::start(&testbed, &with("sweeping", interval)).await?;
    bench.delete(5).await?;
    let before = Requests::read(&testbed).await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..SWEEPS {
        slowest = slowest.max(sweep(&operator).await?);
    }
    let requests = Requests::read(&testbed).await?.since(&before);
    let (_, peak) = usage::memory(operator.pid())?;
    let metrics = operator.metrics().await?;
    let untracked = metrics.sum("peerpod_operator_untracked_resources", &[]);
    ensure!(untracked < 0.5, "{untracked} VMs count as untracked");
    operator.stop().await?;

    progress.step(format!("{UNTRACKED} VMs that nobody tracks"));
    let reporting = OperatorOptions {
        arguments: vec![
            format!("--sweep-interval={}s", REPORT_INTERVAL.as_secs()),
            format!("--sweep-grace={}s", GRACE.as_secs()),
        ],
        ..with("reporting", String::new())
    };
    let operator = Operator::start(&testbed, &reporting).await?;
    let latest = latest_report(&operator, host).await?;
    progress.finish();

    let mut figures = Figures::default();
    figures.at_most(
        "a sweep of 5,000 VMs and 5,000 PeerPods, the slowest of 3",
        slowest.as_secs_f64(),
        "s",
        3.0,
    );
    figures.at_most("peak of resident memory, above the one without sweeps", peak - without, "MiB", 10.0);
    figures.at_most("API writes of sweeps that find nothing", requests.writes, "", 0.0);
    figures.info("single Pods read by them", requests.pods_read, "");
    let intervals = latest.saturating_sub(GRACE).as_secs_f64() / REPORT_INTERVAL.as_secs_f64();
    figures.at_most(
        "from the end of an untracked VM's grace to its report, the slowest of 4",
        intervals,
        "intervals",
        2.0,
    );
    Ok(figures)
}

/// Waits for the next sweep. Returns the time that it took.
async fn sweep(operator: &Operator) -> Result<Duration> {
    let newest = async || {
        let metrics = operator.metrics().await?;
        let newest = metrics.sum("peerpod_operator_sweep_last_listing_timestamp_seconds", &[]);
        anyhow::Ok(Duration::try_from_secs_f64(newest)?)
    };
    let before = newest().await?;
    let next = async {
        loop {
            let began = newest().await?;
            if began > before {
                // The operator shows a sweep only once it is complete.
                return Ok(UNIX_EPOCH.elapsed()?.saturating_sub(began));
            }
            sleep(LOOK_INTERVAL).await;
        }
    };
    tokio::time::timeout(DEADLINE, next).await.context("there is no further sweep")?
}

/// The longest time from the creation of an untracked VM until the operator reports it.
async fn latest_report(operator: &Operator, host: &Host) -> Result<Duration> {
    let mut made = Vec::new();
    for index in 0..UNTRACKED {
        let name = vm_name(&format!("untracked-{index}"));
        host.start_pod_vm(&name).await?;
        made.push((name, Instant::now()));
        sleep(REPORT_INTERVAL / UNTRACKED).await;
    }
    let mut latest = Duration::ZERO;
    let reported = async {
        while !made.is_empty() {
            for it in operator.sweep().await?.clouds.iter().flat_map(|it| &it.untracked) {
                if it.verdict != "watch"
                    && let Some(at) = made.iter().position(|(name, _)| *name == it.name)
                {
                    latest = latest.max(made.swap_remove(at).1.elapsed());
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(GRACE + DEADLINE, reported).await.context("not all are reported")??;
    Ok(latest)
}
