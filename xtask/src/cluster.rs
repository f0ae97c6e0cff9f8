//! `cargo xtask cluster`: a cluster that stays until it is taken down.

use std::io::{Write as _, stderr, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use cluster::named::{self, Named};
use cluster::tools::Tools;
use cluster::{Cluster, node};

use crate::interrupt::{INTERRUPTED, interrupted};

/// What to do with the cluster.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Starts a cluster, unless it already runs; the first time it builds the programs for it
    Up(Up),
    /// Prints the line that makes a shell use the cluster, with a kubectl of its version
    Env(Name),
    /// Puts an image on the cluster's real node, from an archive of `cargo xtask image`
    Import(Import),
    /// Ends a cluster and removes everything that it left
    Down(Name),
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    name: Name,
    /// With a real node, which runs Pods; needs root
    #[arg(long)]
    node: bool,
}

#[derive(Args)]
pub(crate) struct Import {
    #[command(flatten)]
    name: Name,
    /// The OCI archive
    archive: PathBuf,
}

#[derive(Args)]
pub(crate) struct Name {
    /// Which cluster: several can run side by side
    #[arg(long, default_value = "default")]
    name: String,
}

pub(crate) async fn run(task: Task) -> Result<()> {
    match task {
        Task::Up(Up { name: Name { name }, node }) => up(&name, node).await,
        Task::Env(Name { name }) => env(&name),
        Task::Import(Import { name: Name { name }, archive }) => {
            running(&name)?.import_archive(&archive).await
        }
        Task::Down(Name { name }) => down(&name).await,
    }
}

async fn up(name: &str, node: bool) -> Result<()> {
    let obstacle = if node { node::obstacle() } else { None };
    if let Some(obstacle) = &obstacle {
        writeln!(stderr(), "There is only a fake node: {obstacle}.")?;
    }
    let (cluster, said) = match start(name, node && obstacle.is_none()).await? {
        named::Up::Started(cluster) => (cluster, "runs"),
        named::Up::Already(cluster) => (cluster, "is already running"),
    };
    writeln!(
        stderr(),
        "Cluster {name} {said} at {}; its logs are in {}.",
        cluster.server_url(),
        cluster.logs().display()
    )?;
    writeln!(stderr(), "Use it in this shell: eval \"$(cargo xtask cluster env --name {name})\"")?;
    if let Some(host) = cluster.host_address() {
        writeln!(
            stderr(),
            "Pods run on its node `{}`, from images that are there: cargo xtask cluster import --name {name} ARCHIVE\n\
             They find servers of this machine at {host}.",
            node::NAME
        )?;
    }
    Ok(())
}

/// Starts the cluster of this name, unless it runs. An interrupt ends what this has started.
pub(crate) async fn start(name: &str, node: bool) -> Result<named::Up> {
    if matches!(named::find(name)?, Named::Absent) {
        // An interrupt ends builds at once.
        Tools::ensure().await?;
        if node {
            node::install().await?;
        }
    }
    let interrupted = interrupted()?;
    let mut starting = Box::pin(named::up(name, node));
    tokio::select! {
        up = &mut starting => up,
        () = interrupted => {
            // Processes that stay are recorded only once they run, and must be recorded so that they can be ended.
            writeln!(stderr(), "Interrupted: the cluster ends when its start is over.")?;
            if let Ok(named::Up::Started(_)) = starting.await {
                named::down(name).await?;
            }
            bail!(INTERRUPTED);
        }
    }
}

fn env(name: &str) -> Result<()> {
    writeln!(stdout(), "{}", exports(&running(name)?))?;
    Ok(())
}

/// The line that makes a shell use this cluster.
pub(crate) fn exports(cluster: &Cluster) -> String {
    let programs = cluster.kubectl_program().parent().unwrap_or(Path::new("/"));
    // A kubectl of another version may be on the PATH. The cluster is on this machine, whatever proxy the environment names.
    format!(
        "export KUBECONFIG={} PATH={}:\"$PATH\" NO_PROXY={},\"${{NO_PROXY:-${{no_proxy:-}}}}\"",
        quote(&cluster.kubeconfig()),
        quote(programs),
        cluster.server_ip(),
    )
}

/// The cluster of this name. Fails unless all of it runs.
fn running(name: &str) -> Result<Cluster> {
    match named::find(name)? {
        Named::Running(cluster) => Ok(cluster),
        Named::Damaged(cluster) => {
            let damage = named::describe_damage(name, &cluster);
            bail!("{damage}: clear it away with `cargo xtask cluster down --name {name}`")
        }
        Named::Absent => {
            bail!("there is no cluster {name}: start it with `cargo xtask cluster up --name {name}`")
        }
    }
}

async fn down(name: &str) -> Result<()> {
    let said = if named::down(name).await? { "is gone" } else { "was not there" };
    writeln!(stderr(), "Cluster {name} {said}.")?;
    Ok(())
}

/// A path as one word of a POSIX shell.
pub(crate) fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        assert_eq!(quote(Path::new("/a b/c'd")), r"'/a b/c'\''d'");
    }
}
