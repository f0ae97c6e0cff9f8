//! Clusters that outlive the program which started them, found again by name.
//!
//! Each has its folder in `~/.local/state/peerpod-operator/clusters/`. Only processes that the cluster's own state file
//! identifies are ever ended.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::component::Component;
use crate::control_plane::{Cluster, ClusterOptions};
use crate::folders;
use crate::process::Lifetime;

/// How long to wait for another command that works on the same cluster.
const LOCK_DEADLINE: Duration = Duration::from_secs(300);

/// What there is of a name.
#[derive(Debug)]
pub enum Named {
    /// No cluster.
    Absent,
    /// All components run.
    Running(Cluster),
    /// Some or all components have ended, by themselves or with the machine.
    Damaged(Cluster),
}

/// What [`up`] found or made.
#[derive(Debug)]
pub enum Up {
    /// It was started now.
    Started(Cluster),
    /// It ran already and was left as it is.
    Already(Cluster),
}

/// Looks a cluster up.
pub fn find(name: &str) -> Result<Named> {
    Ok(match Cluster::open(&folder(name)?)? {
        None => Named::Absent,
        Some(cluster) if cluster.ended().is_empty() => Named::Running(cluster),
        Some(cluster) => Named::Damaged(cluster),
    })
}

/// Starts a cluster under this name, with one fake node and, if asked for, a real one, unless it runs already.
pub async fn up(name: &str, real_node: bool) -> Result<Up> {
    let dir = folder(name)?;
    let _lock = lock(name).await?;
    match find(name)? {
        Named::Running(cluster) => return Ok(Up::Already(cluster)),
        Named::Damaged(cluster) => {
            bail!(
                "{}: clear it away with `cargo xtask cluster down --name {name}`",
                describe_damage(name, &cluster)
            )
        }
        Named::Absent => {}
    }
    if dir.exists() {
        // A start that failed left its logs.
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    let options =
        ClusterOptions { lifetime: Lifetime::Detached, fake_nodes: 1, real_node, ..ClusterOptions::new(dir) };
    Ok(Up::Started(Cluster::start(&options).await?))
}

/// Ends the cluster of this name, whole or damaged, and removes its folder; false if there was nothing.
pub async fn down(name: &str) -> Result<bool> {
    let dir = folder(name)?;
    let _lock = lock(name).await?;
    if let Some(mut cluster) = Cluster::open(&dir)? {
        cluster.stop().await?;
    }
    let existed = dir.exists();
    if existed {
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    Ok(existed)
}

/// Says what is wrong with a damaged cluster, and where to read on.
pub fn describe_damage(name: &str, cluster: &Cluster) -> String {
    let ended: Vec<_> = cluster.ended().into_iter().map(Component::name).collect();
    format!(
        "cluster {name} is not whole: no {} runs (logs in {})",
        ended.join(", no "),
        cluster.logs().display()
    )
}

fn clusters() -> Result<PathBuf> {
    Ok(folders::state()?.join("clusters"))
}

fn folder(name: &str) -> Result<PathBuf> {
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    ensure!(fits, "{name:?} is no name for a cluster: use up to 63 of a-z, 0-9 and -");
    Ok(clusters()?.join(name))
}

async fn lock(name: &str) -> Result<File> {
    let clusters = clusters()?;
    fs::create_dir_all(&clusters).with_context(|| format!("creating {}", clusters.display()))?;
    // A dot, which no cluster's name has: the file can't be taken for a folder of one.
    folders::lock(&clusters.join(format!("{name}.lock")), LOCK_DEADLINE, || ()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_not_lead_out_of_the_folder() {
        for name in ["", "..", "a/b", "a.lock", "A", &"a".repeat(64)] {
            assert!(folder(name).is_err(), "{name:?}");
        }
        assert!(folder("default").is_ok());
    }
}
