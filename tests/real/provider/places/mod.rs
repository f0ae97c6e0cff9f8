//! Places that the settings no longer name. Their VMs do not count as absent, whatever happens to the operator.

mod clouds;
mod hosts;
mod kept_connection;
mod record;
mod vcenters;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use peerpod_operator::{NAMESPACE, names::PLACES};
use peers::libvirt::Libvirtd;
use serde_json::{Value, json};
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use crate::support::Alone;

fn libvirt(alone: &Alone<'_>) -> Settings {
    Settings::libvirt(&alone.libvirtd.host().uri().to_string())
}

/// The record of places.
fn records(alone: &Alone<'_>) -> Api<ConfigMap> {
    Api::namespaced(alone.testbed.client(), NAMESPACE)
}

/// The entries of the record by key.
async fn entries(alone: &Alone<'_>) -> Result<Vec<(String, Value)>> {
    let record = records(alone).get_opt(PLACES).await?;
    let data = record.and_then(|record| record.data).unwrap_or_default();
    data.into_iter().map(|(key, text)| Ok((key, serde_json::from_str(&text)?))).collect()
}

/// Waits until so many places are recorded. Returns the key of the one that the settings name.
pub async fn until_recorded(alone: &Alone<'_>, count: usize) -> Result<String> {
    wait::eventually("the places are recorded", DEADLINE, async || {
        let entries = entries(alone).await?;
        ensure!(entries.len() == count, "{entries:?}");
        let current = entries.into_iter().find(|(_, entry)| entry.get("until").is_none());
        Ok(current.context("no place is the current one")?.0)
    })
    .await
}

/// Deletes an entry of the record, as an administrator would.
async fn forget(alone: &Alone<'_>, key: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "data": { key: null } }));
    records(alone).patch(PLACES, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Another libvirtd, and the settings for it.
async fn another(dir: &Path) -> Result<(Libvirtd, Settings)> {
    let libvirtd = Libvirtd::start(&dir.join("l"), Lifetime::Owned).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    Ok((libvirtd, settings))
}
