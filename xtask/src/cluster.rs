//! `cargo xtask cluster`: a cluster that stays until it is taken down.

use std::io::{Write as _, stderr, stdout};
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use cluster::Cluster;
use cluster::named::{self, Named, Up};

/// What to do with the cluster.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Starts a cluster, unless it runs already; the first time it builds the programs for that
    Up(Name),
    /// Prints the line that makes a shell use the cluster
    Env(Name),
    /// Ends a cluster and removes all it has left
    Down(Name),
}

#[derive(Args)]
pub(crate) struct Name {
    /// Which cluster: several can run side by side
    #[arg(long, default_value = "default")]
    name: String,
}

pub(crate) async fn run(task: Task) -> Result<()> {
    match task {
        Task::Up(Name { name }) => up(&name).await,
        Task::Env(Name { name }) => env(&name),
        Task::Down(Name { name }) => down(&name).await,
    }
}

async fn up(name: &str) -> Result<()> {
    let (cluster, said) = match named::up(name).await? {
        Up::Started(cluster) => (cluster, "runs"),
        Up::Already(cluster) => (cluster, "is already running"),
    };
    writeln!(
        stderr(),
        "Cluster {name} {said} at {}; its logs are in {}.",
        cluster.server_url(),
        cluster.logs().display()
    )?;
    writeln!(stderr(), "Use it in this shell: eval \"$(cargo xtask cluster env --name {name})\"")?;
    Ok(())
}

fn env(name: &str) -> Result<()> {
    match named::find(name)? {
        Named::Running(cluster) => print_env(&cluster),
        Named::Damaged(cluster) => bail!(named::describe_damage(name, &cluster)),
        Named::Absent => {
            bail!("there is no cluster {name}: start it with `cargo xtask cluster up --name {name}`")
        }
    }
}

fn print_env(cluster: &Cluster) -> Result<()> {
    writeln!(stdout(), "export KUBECONFIG={}", quote(&cluster.kubeconfig()))?;
    Ok(())
}

async fn down(name: &str) -> Result<()> {
    let said = if named::down(name).await? { "is gone" } else { "was not there" };
    writeln!(stderr(), "Cluster {name} {said}.")?;
    Ok(())
}

/// A path as one word of a POSIX shell.
fn quote(path: &Path) -> String {
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
