//! Places that the settings no longer name. Their VMs do not count as absent, whatever happens to the operator.

mod clouds;
mod hosts;
mod kept_connection;
mod record;
mod vcenters;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use peerpod_operator::{NAMESPACE, names::PLACES};
use peers::libvirt::{Libvirtd, QemuLibvirtd, Relay};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    Settings, Vm,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, Scene};

fn libvirt(alone: &Alone<'_>) -> Settings {
    Settings::libvirt(&alone.libvirtd.host().uri().to_string())
}

/// The record of places.
fn records(alone: &Alone<'_>) -> Api<ConfigMap> {
    Api::namespaced(alone.testbed.client(), NAMESPACE)
}

/// The entries of the record by key.
pub async fn entries(alone: &Alone<'_>) -> Result<Vec<(String, Value)>> {
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
pub async fn forget(alone: &Alone<'_>, key: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "data": { key: null } }));
    records(alone).patch(PLACES, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Makes the record say that another host answered at this place.
pub async fn set_other_host(alone: &Alone<'_>, key: &str) -> Result<()> {
    let (_, mut entry) =
        entries(alone).await?.into_iter().find(|it| it.0 == key).context("it is not recorded")?;
    entry["host"] = json!({ "named": "00000000-0000-4000-8000-000000000000" });
    let patch = Patch::Merge(json!({ "data": { key: entry.to_string() } }));
    records(alone).patch(PLACES, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Another libvirtd, and the settings for it.
pub async fn another(dir: &Path) -> Result<(Libvirtd, Settings)> {
    let libvirtd = Libvirtd::start(&dir.join("l"), Lifetime::Owned).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    Ok((libvirtd, settings))
}

/// Two hosts, and an address that leads to the first of them.
struct TwoHosts {
    relay: Relay,
    before: QemuLibvirtd,
    after: QemuLibvirtd,
    /// The folders of the hosts and of the relay.
    dirs: [TempDir; 3],
}

impl TwoHosts {
    async fn start() -> Result<Self> {
        let dirs = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
        let (before, after) =
            tokio::try_join!(QemuLibvirtd::start(dirs[0].path()), QemuLibvirtd::start(dirs[1].path()))?;
        let relay = Relay::start(before.host(), dirs[2].path(), Duration::ZERO)?;
        Ok(Self { relay, before, after, dirs })
    }

    /// Makes the settings name the address. Waits until the operator knows the first host and has connections to it. Returns the key of
    /// the place, and the VM of a Pod `stays` on this host.
    async fn until_known(&self, alone: &mut Alone<'_>) -> Result<(String, Vm)> {
        alone.operator.mount(&Settings::libvirt(&self.relay.uri().to_string()))?;
        let key = until_recorded(alone, 2).await?;
        let scene = Scene { host: self.before.host(), ..alone.scene() };
        let stays = scene.pod_with_vm("stays").await?;
        let known = scene.pod_with_vm("known").await?;
        scene.pods.delete("known").await?;
        scene.reaped(&known).await?;
        Ok((key, stays))
    }
}
