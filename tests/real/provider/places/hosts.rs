//! Another host of libvirt: the settings name it, or the address leads there.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::names::PLACES;
use peers::libvirt::Relay;
use serde_json::Value;
use testbed::{
    Request,
    wait::{self, DEADLINE},
};

use super::{TwoHosts, another, entries, forget, libvirt, until_recorded};
use crate::{
    process::leadership::{elected, standby, until_leads},
    support::{ABANDON, Alone, Scene, alone},
};

/// The operators' writes to the record so far.
fn writes(alone: &Alone<'_>) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit()?.of_operator()?;
    requests.retain(|request| request.is_write() && request.resource == "configmaps");
    Ok(requests)
}

/// Waits until the audit log shows so many writes. It shows a write a little later.
async fn until_written(alone: &Alone<'_>, count: usize) -> Result<()> {
    wait::eventually("the audit log shows the writes to the record", DEADLINE, async || {
        let writes = writes(alone)?;
        ensure!(writes.len() == count, "{writes:?}");
        Ok(())
    })
    .await
}

#[test]
fn a_machine_in_the_former_place_holds_its_peerpod_until_the_place_is_named_again() -> Result<()> {
    alone(async |alone| {
        let (here, gone) =
            (alone.scene().pod_with_vm("here").await?, alone.scene().pod_with_vm("gone").await?);
        let dir = tempfile::tempdir()?;
        let (_libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        alone.operator.reloaded(2, 0).await?;
        wait::eventually("the operator says that there is a former place", DEADLINE, async || {
            ensure!(alone.operator.log()?.contains("the settings named another place before"));
            Ok(())
        })
        .await?;

        let scene = alone.scene();
        scene.caa.delete_machine(&gone, scene.host).await?;
        scene.pods.delete("gone").await?;
        scene.released(&gone.name()).await?;

        scene.pods.delete("here").await?;
        let condition = scene.held(&here.name(), "InvalidSettings").await?;
        let before = scene.host.uri().address();
        for says in ["LIBVIRT_URI also pointed to another place, until 2", "the VM is there"] {
            ensure!(condition.message.contains(says), "{condition:?}");
        }
        ensure!(!condition.message.contains(&before), "{condition:?}");
        let told = format!("LIBVIRT_URI also pointed to {before}, until 2");
        ensure!(alone.operator.log()?.contains(&told), "the log does not name the place");
        scene.lives(&here).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().reaped(&here).await
    })
}

#[test]
fn a_machine_is_not_absent_while_its_possible_former_place_is_unreachable() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        let dir = tempfile::tempdir()?;
        let (libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        alone.operator.reloaded(2, 0).await?;
        alone.libvirtd.stop().await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "CloudUnavailable").await?;
        for says in
            ["LIBVIRT_URI also pointed to another place", "cannot find out whether the VM is there", ABANDON]
        {
            ensure!(condition.message.contains(says), "{condition:?}");
        }

        // The operator still deletes VMs in the present place.
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        let newer = scene.pod_with_vm("newer").await?;
        scene.pods.delete("newer").await?;
        scene.reaped(&newer).await?;

        // The driver has forgotten its domains.
        alone.libvirtd.restart().await?;
        alone.scene().released(&vm.name()).await
    })
}

#[test]
fn a_vm_in_the_former_place_holds_its_peerpod_until_the_place_is_forgotten() -> Result<()> {
    alone(async |alone| {
        let first = until_recorded(alone, 1).await?;
        // One write creates the ConfigMap. Each place is written before its host is asked, and again with its host.
        until_written(alone, 3).await?;
        let (here, gone) =
            (alone.scene().pod_with_vm("here").await?, alone.scene().pod_with_vm("gone").await?);
        let dir = tempfile::tempdir()?;
        let (_libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        let second = until_recorded(alone, 2).await?;
        ensure!(second != first);
        let written = 5;
        until_written(alone, written).await?;

        alone.operator.kill().await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        let scene = alone.scene();
        scene.caa.delete_machine(&gone, scene.host).await?;
        scene.pods.delete("gone").await?;
        scene.released(&gone.name()).await?;
        scene.pods.delete("here").await?;
        let condition = scene.held(&here.name(), "InvalidSettings").await?;
        ensure!(condition.message.contains("the VM is there"), "{condition:?}");
        scene.lives(&here).await?;
        ensure!(writes(alone)?.len() == written, "{:?}", writes(alone)?);

        forget(alone, &first).await?;
        alone.scene().released(&here.name()).await?;
        alone.scene().lives(&here).await
    })
}

#[test]
fn a_vm_in_the_former_place_holds_its_peerpod_under_any_leader() -> Result<()> {
    elected(&[], async |alone| {
        let (mut second, _dir) = standby(alone).await?;
        until_recorded(alone, 1).await?;
        let here = alone.scene().pod_with_vm("here").await?;
        let dir = tempfile::tempdir()?;
        let (_libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        until_recorded(alone, 2).await?;
        second.mount(&elsewhere)?;
        second.reloaded(2, 0).await?;
        alone.operator.stop().await?;
        until_leads(&second).await?;
        alone.scene().pods.delete("here").await?;
        alone.scene().held(&here.name(), "InvalidSettings").await?;
        alone.scene().lives(&here).await?;

        second.mount(&libvirt(alone))?;
        alone.scene().reaped(&here).await
    })
}

#[test]
fn an_address_that_leads_to_another_host_makes_no_vm_absent() -> Result<()> {
    alone(async |alone| {
        let hosts = TwoHosts::start().await?;
        let (key, stays) = hosts.until_known(alone).await?;
        let (before, after) = (hosts.before.host(), hosts.after.host());

        drop(hosts.relay);
        let _relay = Relay::start(after, hosts.dirs[2].path(), Duration::ZERO)?;
        let scene = Scene { host: after, ..alone.scene() };
        scene.pods.delete("stays").await?;
        let condition = scene.held(&stays.name(), "InvalidSettings").await?;
        for says in ["another host, account or pool answers there than before", key.as_str(), PLACES, ABANDON]
        {
            ensure!(condition.message.contains(says), "{condition:?}");
        }
        let uuid = |entry: &Value| entry["host"]["named"].as_str().map(ToOwned::to_owned);
        let found = entries(alone).await?.into_iter().find(|(it, _)| *it == key).context("it is recorded")?.1;
        let expected = after.client().host_uuid().await?.map(|uuid| uuid.to_string());
        ensure!(uuid(&found) == expected && found.get("moved").is_some(), "{found}");

        // The operator still deletes VMs on the host that answers now.
        let goes = scene.pod_with_vm("goes").await?;
        scene.pods.delete("goes").await?;
        scene.reaped(&goes).await?;

        // A new process knows it, too.
        alone.operator.kill().await?;
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        let later = alone.scene().pods.run("later").await?;
        let later =
            alone.scene().caa.record(&later, "libvirt", &stays.machine.domain.uuid.to_string()).await?;
        alone.scene().pods.delete("later").await?;
        let later = later.metadata.name.context("it has a name")?;
        alone.scene().held(&later, "InvalidSettings").await?;
        Scene { host: before, ..alone.scene() }.lives(&stays).await?;

        forget(alone, &key).await?;
        alone.scene().released(&stays.name()).await?;
        alone.scene().released(&later).await
    })
}
