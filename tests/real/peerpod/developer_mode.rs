//! cloud-api-adaptor's developer mode keeps VMs for debugging. The operator respects it.

use anyhow::{Result, ensure};
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use crate::support::{ABANDON, Alone, alone, next_second};

/// A name that an API server generated. No earlier Pod had it, so a newer machine replaces an older one at once.
const WEB: &str = "web-x7k2p";

fn settings(alone: &Alone<'_>, key: &str, value: &str) -> Settings {
    let mut settings = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
    settings.config_map.insert(key.to_owned(), value.to_owned());
    settings
}

#[test]
fn in_developer_mode_machines_stay_until_it_is_turned_off() -> Result<()> {
    alone(async |alone| {
        alone.operator.mount(&settings(alone, "PODVM_DEVELOPER_MODE", "true"))?;
        alone.operator.reloaded(2, 0).await?;
        // One PeerPod whose Pod is gone, one that an administrator gives up, and two of a Pod that runs.
        let gone = alone.scene().pod_with_vm("gone").await?;
        let abandoned = alone.scene().pod_with_vm("abandoned").await?;
        let older = alone.scene().pod_with_vm(WEB).await?;
        next_second(std::slice::from_ref(&older)).await?;
        let pod = alone.scene().pods.sandbox_is_lost(WEB).await?;
        let newer = alone.caa.start_vm(&pod, alone.libvirtd.host()).await?;
        for pod in ["gone", "abandoned"] {
            alone.scene().pods.delete(pod).await?;
        }
        for vm in [&gone, &abandoned, &older] {
            let condition = alone.scene().held(&vm.name(), "DeveloperMode").await?;
            ensure!(condition.type_ == "Stalled", "{condition:?}");
            ensure!(condition.message.contains("PODVM_DEVELOPER_MODE"), "{}", condition.message);
        }
        let event = ["--field-selector=reason=DeveloperMode", "--output=name"];
        wait::eventually("an event says so", DEADLINE, async || {
            let events = alone.scene().kubectl(&[&["get", "events"], &event[..]].concat()).await?;
            ensure!(events.lines().count() >= 3, "{events}");
            Ok(())
        })
        .await?;
        alone.scene().kubectl(&["annotate", "peerpod", &abandoned.name(), ABANDON]).await?;
        alone.scene().released(&abandoned.name()).await?;
        for vm in [&gone, &abandoned, &older, &newer] {
            alone.scene().lives(vm).await?;
        }
        ensure!(alone.scene().peerpods.get(&older.name()).await?.metadata.deletion_timestamp.is_none());

        // The setting's former name has the same effect.
        alone.operator.mount(&settings(alone, "PEERPODS_DEVELOPER_MODE", "1"))?;
        alone.operator.reloaded(3, 0).await?;
        let again = alone.scene().pod_with_vm("again").await?;
        alone.scene().pods.delete("again").await?;
        alone.scene().held(&again.name(), "DeveloperMode").await?;
        alone.scene().lives(&gone).await?;

        alone.operator.mount(&settings(alone, "PODVM_DEVELOPER_MODE", "false"))?;
        for vm in [&gone, &older, &again] {
            alone.scene().reaped(vm).await?;
        }
        alone.scene().lives(&newer).await
    })
}
