//! `cargo xtask demo`: stories on a real control plane and a real libvirtd, printed as they are observed.

mod build;
mod columns;
mod example;
mod fact;
mod kept;
mod observers;
mod operator;
mod paint;
pub(crate) mod podset;
pub(crate) mod ptemplate;
mod stage;
mod stories;
mod summary;
mod timeline;

use std::{
    io::{self, Write as _},
    pin::{Pin, pin},
};

use anyhow::{Result, bail};
use clap::Args;
use cluster::{node, process::Lifetime, progress::Progress, tools::Tools};
use peerpod_operator::install::NAME;
use peers::libvirt::Libvirtd;

use self::{
    paint::{Paint, Style, WIDTH, wrap},
    stage::Stage,
    stories::STORIES,
    timeline::Timeline,
};
use crate::interrupt::{INTERRUPTED, interrupted};

/// What to do with the demo.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools, reason = "these are flags of a command line")]
pub(crate) struct Task {
    /// Leaves everything running at the end, to explore it
    #[arg(long)]
    keep: bool,
    /// Runs the operator as a process on this machine, with fake nodes only: for users without root
    #[arg(long, conflicts_with = "down")]
    no_node: bool,
    /// Fails if this machine can run no real node, instead of going on without one
    #[arg(long, conflicts_with_all = ["no_node", "down"])]
    node: bool,
    /// Ends what --keep left running
    #[arg(long, conflicts_with = "keep")]
    down: bool,
}

const INTRODUCTION: &str = "A peer pod is a Pod that runs in a VM of its own beside the node. cloud-api-adaptor creates the VM \
     and records it in a PeerPod object, which the Pod owns. If the Pod is deleted and the VM stays, this \
     operator deletes the VM. The stories show when it does so, and when it must not. One of them \
     shows how the operator sets how many peer pods each node may run.";
const PLAYED: &str = "Played: the Pods' kubelets, and cloud-api-adaptor under its own rights. The VMs are those of libvirt's test driver: \
    domains and volumes without a guest inside. Every line of a timeline was observed: by watches of the API server, in \
    its audit log, or by virsh.\n\
    The first run builds the programs of Kubernetes from source: about a quarter of an hour. Later ones take about half a \
    minute.";
/// What is real: with a node, and without one.
const WITH_NODE: &str = "Real: etcd, API server, scheduler, controller manager with its garbage collector, libvirtd, and a \
    node with kubelet and containerd. The operator is two Pods of its own image on that node, let in under the profile \
    `restricted`; they come to libvirt by TCP.";
const WITHOUT_NODE: &str = "Real: etcd, API server, scheduler, controller manager with its garbage collector, libvirtd, and \
    the operator under its own ServiceAccount's token.";

pub(crate) async fn run(task: &Task) -> Result<()> {
    if task.down {
        let _lock = kept::lock().await?;
        let said = if kept::down().await? { "is gone." } else { "was not there." };
        return Ok(writeln!(io::stdout(), "The demo {said}")?);
    }
    kept::ensure_none()?;
    let paint = Paint::for_stdout();
    writeln!(io::stdout(), "{}\n", paint.paint(Style::Bold, "peerpod-operator: the demo"))?;
    let obstacle = if task.no_node { Some("--no-node".to_owned()) } else { node::obstacle() };
    if let Some(obstacle) = obstacle.as_ref().filter(|_| task.node) {
        bail!("{obstacle}");
    }
    let with_node = obstacle.is_none();
    let real = if with_node { WITH_NODE } else { WITHOUT_NODE };
    paragraphs(&[INTRODUCTION, real, PLAYED].join("\n"))?;
    if let Some(obstacle) = obstacle {
        writeln!(
            io::stdout(),
            "  The operator runs as a process on this machine, not as a Pod: {obstacle}.\n"
        )?;
    }

    // Everything ends by itself on Ctrl-C, and nothing is left.
    let mut progress = Progress::new(4);
    progress.step("Debian packages of libvirt");
    Libvirtd::install()?;
    progress.step("programs of the control plane");
    Tools::ensure().await?;
    if with_node {
        node::install().await?;
    }
    progress.step("building the operator");
    let program = build::operator(NAME, &mut progress).await?;

    if !task.keep {
        let dir = tempfile::Builder::new().prefix("peerpod-demo-").tempdir()?;
        let starting = Box::pin(Stage::start(dir.path(), Lifetime::Owned, program, with_node));
        perform(starting, progress, paint).await?.result?;
        writeln!(io::stdout(), "\n  Everything has ended. To explore it: cargo xtask demo --keep")?;
        return Ok(());
    }
    let _lock = kept::lock().await?;
    kept::ensure_none()?;
    let dir = kept::dir()?;
    let starting = Box::pin(Stage::start(&dir, Lifetime::Detached, program, with_node));
    match perform(starting, progress, paint).await {
        Ok(played) => {
            Box::pin(kept::invite(played.stage, paint)).await?;
            played.result
        }
        Err(error) => {
            kept::down().await?;
            Err(error)
        }
    }
}

/// A stage after its stories.
struct Played {
    stage: Stage,
    /// Whether every story succeeded.
    result: Result<()>,
}

/// Waits for the stage and plays. Fails if there is nothing to keep: without a stage, or after an interrupt.
async fn perform(
    mut starting: Pin<Box<impl Future<Output = Result<Stage>>>>,
    mut progress: Progress,
    paint: Paint,
) -> Result<Played> {
    progress.step("starting libvirtd, the control plane and the operator");
    let mut interrupted = pin!(interrupted()?);
    let stage = tokio::select! {
        stage = &mut starting => stage?,
        () = &mut interrupted => {
            // Processes that stay are recorded only once they run, and must be recorded so that they can be ended.
            // The outcome does not matter.
            let _ = starting.await;
            bail!(INTERRUPTED);
        }
    };
    progress.finish();
    let result = tokio::select! {
        result = Box::pin(play(&stage, paint)) => result,
        () = interrupted => bail!(INTERRUPTED),
    };
    Ok(Played { stage, result })
}

/// Plays the stories, up to the first that fails.
async fn play(stage: &Stage, paint: Paint) -> Result<()> {
    let (_observers, observations) = observers::start(stage).await?;
    let mut timeline = Timeline::new(observations, paint);
    let mut results = Vec::new();
    let mut failure = None;
    for (number, story) in (1..).zip(STORIES) {
        let title = format!("Story {number} of {}: {}", STORIES.len(), story.title);
        writeln!(io::stdout(), "\n{}", paint.paint(Style::Bold, &title))?;
        paragraphs(story.about)?;
        match story.play(stage, &mut timeline).await {
            Ok(outcome) => results.push((story, Some(outcome))),
            Err(error) => {
                results.push((story, None));
                // The first error is the one to report.
                let _ = timeline.settle().await;
                failure =
                    Some(error.context(format!("{title}: something else happened than the story says")));
                break;
            }
        }
    }
    let mut stdout = io::stdout().lock();
    if failure.is_some() {
        writeln!(stdout, "\n{}", stage.operator.log_tail().await)?;
    }
    write!(stdout, "\n{}", summary::table(paint, &results))?;
    failure.map_or(Ok(()), Err)
}

/// Prints running text.
fn paragraphs(text: &str) -> Result<()> {
    for line in text.lines().flat_map(|paragraph| wrap(paragraph, WIDTH - 2)) {
        writeln!(io::stdout(), "  {line}")?;
    }
    Ok(writeln!(io::stdout())?)
}
