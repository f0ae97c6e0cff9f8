//! The tasks of this repository: `cargo xtask TASK`.

mod cluster;

use clap::Parser;

/// Works on this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Starts and ends a real Kubernetes control plane on this machine
    #[command(subcommand)]
    Cluster(cluster::Task),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Cluster(task) => cluster::run(task).await,
    }
}
