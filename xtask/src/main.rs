//! The tasks of this repository: `cargo xtask TASK`.

mod artifacts;
mod bench;
mod cluster;
mod contract;
mod current;
mod demo;
mod example;
mod fresh;
mod image;
mod interrupt;
mod manifests;
mod release;
mod test;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;
use testbed::repository;

use self::interrupt::unless_interrupted;

/// Works on this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    // Against the cluster of the current kubeconfig.
    /// Applies the CRDs; `install run` also runs the operator
    Install(current::Install),
    /// Runs the operator on this machine
    Run(current::Run),
    /// Applies a PeerPodConfig and a peer pod
    Samples,
    /// Deletes the CRDs, unless PeerPods or PeerPodConfigs are left
    Uninstall,
    /// Installs everything by kustomize: the operator's image and a provider
    Deploy(current::Deploy),
    /// Drains what `deploy` installed, and deletes it
    Undeploy(current::Deploy),

    // Without a cluster, or with one of their own.
    /// Plays stories with the operator on a real control plane and node, and prints them as they happen
    Demo(demo::Task),
    /// Starts and ends a real Kubernetes control plane on this machine
    #[command(subcommand)]
    Cluster(cluster::Task),
    /// Installs and runs the operators in examples/
    Example(example::Task),
    /// Writes the generated files: manifests/, kustomize/, helm/ and docs/src/reference/
    Manifests(manifests::Task),
    /// Writes the image of the operator or an example as an OCI archive, with its bill of materials, and pushes it
    Image(image::Task),
    /// Runs all checks: formatting, lints, generated files, tests on a real control plane
    Test,
    /// Runs the scenarios that every provider must pass on the clouds of this machine
    Contract(contract::Task),
    /// Runs a command of the README in a pristine Debian root file system, as on a new machine
    Fresh(fresh::Task),
    /// Measures speed, memory and API requests, and prints them next to their targets
    Bench(bench::Task),
}

#[tokio::main]
async fn main() -> ExitCode {
    // Without the stack that `RUST_BACKTRACE` asks for: it would hide what the task said last.
    task(Task::parse()).await.map_or_else(
        |error| {
            // If even this cannot be written, the exit code must do.
            let _ = writeln!(io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

async fn task(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Install(task) => current::install(&task),
        Task::Run(task) => current::run(&task),
        Task::Samples => current::samples(),
        Task::Uninstall => current::uninstall(),
        Task::Deploy(task) => current::deploy(&task),
        Task::Undeploy(task) => current::undeploy(&task),
        Task::Demo(task) => demo::run(&task).await,
        Task::Cluster(task) => cluster::run(task).await,
        Task::Example(task) => example::run(task).await,
        Task::Manifests(task) => manifests::run(&task),
        Task::Image(task) => image::run(&task).await,
        Task::Test => test::run().await,
        Task::Contract(task) => unless_interrupted(contract::run(&task)).await,
        Task::Fresh(task) => fresh::run(&task).await,
        Task::Bench(task) => unless_interrupted(Box::pin(bench::run(&task))).await,
    }
}
