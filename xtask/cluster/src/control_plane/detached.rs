//! The record of a detached cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::Cluster;
use crate::component::{Component, Plan};
use crate::folders;
use crate::process::{Identity, Lifetime, Process};

/// The file that records a detached cluster, in its folder.
pub(super) const STATE_FILE: &str = "cluster.json";

/// The record by which a detached cluster is found again.
#[derive(Serialize, Deserialize)]
struct State {
    plan: Plan,
    processes: BTreeMap<Component, Identity>,
}

impl Cluster {
    /// Finds the detached cluster of this folder; `None` if there never was one or it was stopped.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(STATE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let state: State = serde_json::from_slice(&text).with_context(|| {
            format!("reading {}: end the cluster's processes by hand, then remove the folder", path.display())
        })?;
        let mut processes = BTreeMap::new();
        for (component, identity) in &state.processes {
            if let Some(process) = Process::find(component.name(), identity, &state.plan.logs())? {
                processes.insert(*component, process);
            }
        }
        Ok(Some(Self::of(state.plan, processes)))
    }

    /// Writes the record by which a detached cluster is found again.
    pub(super) fn save(&self) -> Result<()> {
        if self.plan.lifetime == Lifetime::Owned {
            return Ok(());
        }
        let identities =
            self.processes.iter().map(|(component, process)| (*component, process.identity().clone()));
        let state = State { plan: self.plan.clone(), processes: identities.collect() };
        let path = self.plan.dir.join(STATE_FILE);
        let new = path.with_extension("new");
        folders::write_private(&new, &serde_json::to_string_pretty(&state)?)?;
        fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))
    }
}
