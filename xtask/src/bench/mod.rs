//! `cargo xtask bench`: measures, and prints each figure beside its target. It fails if a figure misses its target.

mod admission;
mod clouds;
mod config;
mod figures;
mod handover;
mod install;
mod memory;
mod peerpods;
mod real_node;
mod samples;
mod scene;
mod slow;
mod status;
mod sweep;
mod usage;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use cluster::progress::Progress;
use peerpod_operator::install::NAME;

use crate::release;

/// What to measure.
#[derive(Args)]
pub(crate) struct Task {
    #[arg(value_enum)]
    what: What,
    /// Also writes the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Deletions against an instant, a slow and a partly hanging cloud; hand-over, memory, API requests, start-up
    Peerpods,
    /// Reviews of Pods that the webhook answers by TLS: rate, latency, memory
    Admission,
    /// One PeerPodConfig: how soon its objects exist; 5,000 nodes: writes, and the operator's memory
    Config,
    /// From `helm upgrade --install` to the first VM that the operator deletes, on a real node; needs root
    Install,
    /// 20,000 PeerPods: the memory of operators within their limits, on a real node; needs root
    Memory,
    /// 1,000 deletions on a cloud that takes 20 requests a second, and idle memory with several clouds
    Clouds,
    /// The sweep of 5,000 VMs and as many PeerPods
    Sweep,
    /// 20,000 PeerPods and their Pods: how long the command status takes, and its memory
    Status,
    /// The operators in examples/: 1,000 Pods of 100 `PodSets`, idle memory, and writes while nothing changes
    Samples,
}

pub(crate) async fn run(task: &Task) -> Result<()> {
    let figures = match task.what {
        What::Peerpods => peerpods::run().await?,
        What::Admission => admission::run().await?,
        What::Config => config::run().await?,
        What::Install => Box::pin(install::run()).await?,
        What::Memory => Box::pin(memory::run()).await?,
        What::Clouds => Box::pin(clouds::run()).await?,
        What::Sweep => Box::pin(sweep::run()).await?,
        What::Status => Box::pin(status::run()).await?,
        What::Samples => Box::pin(samples::run()).await?,
    };
    print!("{}", figures.table());
    if let Some(path) = &task.json {
        std::fs::write(path, figures.json()?).with_context(|| format!("writing {}", path.display()))?;
    }
    let missed = figures.missed();
    ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

/// Builds the operator as it is released, as a step of a benchmark. Returns the program.
fn build_operator(progress: &mut Progress) -> Result<PathBuf> {
    progress.step("building the operator (release)");
    release::build(NAME, &["--quiet"])
}
