//! A VM at a place that the settings no longer name.

use anyhow::{Result, ensure};
use kube::ResourceExt as _;
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use super::places::until_recorded;
use crate::support::Alone;

/// A VM at one place of a cloud, the settings that name this place, and settings that name another one.
pub struct Former<'a> {
    pub cloud: &'a str,
    pub id: &'a str,
    pub before: &'a Settings,
    pub here: &'a Settings,
    /// The setting that names the place.
    pub setting: &'a str,
    /// Words that the PeerPod and its events must not contain.
    pub hidden: &'a [&'a str],
}

impl Former<'_> {
    /// Fails unless the VM holds the PeerPod of a Pod `web` until the settings name its place again. `is_there` says whether the VM exists.
    pub async fn holds(&self, alone: &mut Alone<'_>, is_there: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let pod = alone.scene().pods.run("web").await?;
        let peerpod = alone.scene().caa.record(&pod, self.cloud, self.id).await?.name_any();
        alone.operator.mount(self.here)?;
        alone.operator.reloaded(2, 0).await?;
        until_recorded(alone, 2).await?;

        alone.scene().pods.delete("web").await?;
        let held = alone.scene().held(&peerpod, "InvalidSettings").await?;
        ensure!(held.message.contains(self.setting), "{}", held.message);
        alone.scene().shows_none_of(&peerpod, self.hidden).await?;
        ensure!(is_there().await?, "the VM is gone");

        alone.operator.mount(self.before)?;
        // The deletion takes the cloud some time.
        wait::gone(&alone.scene().peerpods, &peerpod, 2 * DEADLINE).await?;
        ensure!(!is_there().await?, "the VM is there");
        Ok(())
    }
}
