//! Clusters that outlive the program which started them, found again by name.
//!
//! Each has its folder in `~/.local/state/peerpod-operator/clusters/`. These functions only ever end processes that the cluster's own
//! state file identifies.

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

/// The state of a named cluster.
#[derive(Debug)]
pub enum Named {
    /// No cluster.
    Absent,
    /// All components run.
    Running(Cluster),
    /// Some or all components have ended, by themselves or with the machine.
    Damaged(Cluster),
}

/// What [`up`] found or started.
#[derive(Debug)]
pub enum Up {
    /// It has just been started.
    Started(Cluster),
    /// It was already running and was left as it is.
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

/// Starts a cluster under this name unless it runs already, with one fake node and, if asked for, a real one. Fails if it runs without
/// a real node that is asked for.
pub async fn up(name: &str, real_node: bool) -> Result<Up> {
    let dir = folder(name)?;
    let _lock = lock(name).await?;
    match find(name)? {
        Named::Running(cluster) => {
            ensure!(
                !real_node || cluster.host_address().is_some(),
                "cluster {name} runs without a real node, which it gets only at its start: end it first, with \
                 `cargo xtask cluster down --name {name}`"
            );
            return Ok(Up::Already(cluster));
        }
        Named::Damaged(cluster) => {
            bail!(
                "{}: clear it away with `cargo xtask cluster down --name {name}`",
                describe_damage(name, &cluster)
            )
        }
        Named::Absent => {}
    }
    if dir.exists() {
        // A failed start leaves its logs there.
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    let options =
        ClusterOptions { lifetime: Lifetime::Detached, fake_nodes: 1, real_node, ..ClusterOptions::new(dir) };
    Ok(Up::Started(Cluster::start(&options).await?))
}

/// Ends the cluster of this name, whole or damaged, and removes its folder. Returns false if there was none.
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
    // No cluster's name has a dot, so the lock file cannot be mistaken for a cluster's folder.
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
