//! Places that the settings no longer name. Their VMs do not count as absent, whatever happens to the operator.

use std::{cell::OnceCell, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    install::{self, PEERPODCONFIG_ROLE},
    names::PLACES,
    provider::aws,
};
use peers::{
    aws::Moto,
    gcp::{ComputeEngine, Instance, OTHER_PROJECT, OTHER_ZONE, PERMISSIONS},
    libvirt::{Libvirtd, QemuLibvirtd, Relay},
};
use serde_json::{Value, json};
use testbed::{
    Operator, OperatorOptions, Request, Settings, Testbed, vm_name,
    wait::{self, DEADLINE},
};

use super::former::Former;
use crate::{
    process::leadership::{elected, standby, until_leads},
    support::{ABANDON, Alone, PROGRAM, Scene, alone, alone_with},
};

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

/// The operators' writes to the record so far.
fn writes(alone: &Alone<'_>) -> Result<Vec<Request>> {
    let mut requests = alone.testbed.audit()?.of_operator()?;
    requests.retain(|request| request.is_write() && request.resource == "configmaps");
    Ok(requests)
}

/// Another libvirtd, and the settings for it.
async fn another(dir: &Path) -> Result<(Libvirtd, Settings)> {
    let libvirtd = Libvirtd::start(&dir.join("l"), Lifetime::Owned).await?;
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    Ok((libvirtd, settings))
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
        for says in ["LIBVIRT_URI pointed to another place before, until 2", "the VM is there"] {
            ensure!(condition.message.contains(says), "{condition:?}");
        }
        ensure!(!condition.message.contains(&before), "{condition:?}");
        let told = format!("LIBVIRT_URI pointed to {before} before, until 2");
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
            ["LIBVIRT_URI pointed to another place", "cannot find out whether the VM is there", ABANDON]
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
        let written = writes(alone)?.len();
        let (here, gone) =
            (alone.scene().pod_with_vm("here").await?, alone.scene().pod_with_vm("gone").await?);
        let dir = tempfile::tempdir()?;
        let (_libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        let second = until_recorded(alone, 2).await?;
        ensure!(second != first);
        ensure!(writes(alone)?.len() == written + 1, "{:?}", writes(alone)?);

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
        ensure!(writes(alone)?.len() == written + 1, "{:?}", writes(alone)?);

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
        let dirs = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
        let (before, after) =
            tokio::try_join!(QemuLibvirtd::start(dirs[0].path()), QemuLibvirtd::start(dirs[1].path()))?;
        let address = Relay::start(before.host(), dirs[2].path(), Duration::ZERO)?;
        alone.operator.mount(&Settings::libvirt(&address.uri().to_string()))?;
        let key = until_recorded(alone, 2).await?;
        let on_former = Scene { host: before.host(), ..alone.scene() };
        let stays = on_former.pod_with_vm("stays").await?;
        // The operator knows the former host, and has connections to it.
        let known = on_former.pod_with_vm("known").await?;
        on_former.pods.delete("known").await?;
        on_former.released(&known.name()).await?;

        drop(address);
        let _address = Relay::start(after.host(), dirs[2].path(), Duration::ZERO)?;
        let scene = Scene { host: after.host(), ..alone.scene() };
        scene.pods.delete("stays").await?;
        let condition = scene.held(&stays.name(), "InvalidSettings").await?;
        for says in ["another host, account or pool answers there than before", key.as_str(), PLACES, ABANDON]
        {
            ensure!(condition.message.contains(says), "{condition:?}");
        }
        let uuid = |entry: &Value| entry["host"]["named"].as_str().map(ToOwned::to_owned);
        let found = entries(alone).await?.into_iter().find(|(it, _)| *it == key).context("it is recorded")?.1;
        let expected = after.host().client().host_uuid().await?.map(|uuid| uuid.to_string());
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
        Scene { host: before.host(), ..alone.scene() }.lives(&stays).await?;

        forget(alone, &key).await?;
        alone.scene().released(&stays.name()).await?;
        alone.scene().released(&later).await
    })
}

#[test]
fn nothing_is_decided_while_the_places_cannot_be_read() -> Result<()> {
    alone(async |alone| {
        until_recorded(alone, 1).await?;
        let (here, gone) =
            (alone.scene().pod_with_vm("here").await?, alone.scene().pod_with_vm("gone").await?);
        alone.operator.kill().await?;
        // The other controller may read all ConfigMaps.
        for role in [install::NAME, PEERPODCONFIG_ROLE] {
            let none =
                ["patch", "role", role, "-n", NAMESPACE, "--type=merge", "--patch", r#"{"rules": []}"#];
            alone.testbed.cluster().kubectl(&none).await?;
        }
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        let scene = alone.scene();
        scene.caa.delete_machine(&gone, scene.host).await?;
        for (pod, vm) in [("here", &here), ("gone", &gone)] {
            scene.pods.delete(pod).await?;
            let condition = scene.held(&vm.name(), "Unauthorized").await?;
            ensure!(condition.message.contains(PLACES), "{condition:?}");
        }
        scene.lives(&here).await?;

        alone.testbed.install_objects().await?;
        for vm in [&here, &gone] {
            alone.scene().reaped(vm).await?;
        }
        Ok(())
    })
}

#[test]
fn a_place_for_which_there_is_no_room_is_not_used_until_an_administrator_makes_some() -> Result<()> {
    alone(async |alone| {
        until_recorded(alone, 1).await?;
        // As if an administrator added places that the operator has never seen.
        let entry = |number: usize| json!({ "cloud": "libvirt", "address": format!("test+tcp://127.0.0.1:{number}/default") });
        let more: Vec<_> =
            (1..=8).map(|number| (format!("mine-{number}"), entry(number).to_string())).collect();
        let more: std::collections::BTreeMap<_, _> = more.into_iter().collect();
        records(alone).patch(PLACES, &PatchParams::default(), &Patch::Merge(json!({ "data": more }))).await?;
        let dir = tempfile::tempdir()?;
        let (libvirtd, elsewhere) = another(dir.path()).await?;
        alone.operator.mount(&elsewhere)?;
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        let condition = scene.held(&vm.name(), "InvalidSettings").await?;
        ensure!(condition.message.contains("delete the entries"), "{condition:?}");
        scene.lives(&vm).await?;

        for key in more.keys() {
            forget(alone, key).await?;
        }
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        scene.reaped(&vm).await
    })
}

#[test]
fn the_record_holds_no_user_and_no_credential() -> Result<()> {
    alone(async |alone| {
        let uri = "qemu+ssh://secret-user@127.0.0.1:1/system?keyfile=/secret/key&known_hosts=/secret/hosts&no_verify=1";
        alone.operator.mount(&Settings::libvirt(uri))?;
        until_recorded(alone, 2).await?;
        let text = format!("{:?}", entries(alone).await?);
        ensure!(text.contains("qemu+ssh://127.0.0.1:1/system") && !text.contains("secret"), "{text}");
        // After the record is deleted, with whatever content, the operator begins anew with the present place.
        records(alone).delete(PLACES, &DeleteParams::default()).await?;
        until_recorded(alone, 1).await.map(drop)
    })
}

#[test]
fn a_vm_in_the_former_project_holds_its_peerpod_until_the_project_is_named_again() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let peer = ComputeEngine::start(&dir.join("gcp")).await?;
        let key = peer.account("operator@peer-pods", &PERMISSIONS, peer.address()).await?;
        let here = Settings::gcp(peer.address(), Some(key));
        let mut before = here.clone();
        before.config_map.insert("GCP_PROJECT_ID".into(), OTHER_PROJECT.into());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((peer, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (peer, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        let name = vm_name("web");
        let instance = Instance { project: OTHER_PROJECT, zone: OTHER_ZONE, ..Instance::running(&name) };
        peer.make(&instance).await?;
        let hidden = [OTHER_PROJECT, "127.0.0.1"];
        let vm = Former { cloud: "gcp", id: &name, before, here, setting: "GCP_PROJECT_ID", hidden: &hidden };
        vm.holds(alone, async || Ok(peer.state(&instance).await?.instance)).await
    })
}

#[test]
fn a_vm_in_the_former_region_holds_its_peerpod_until_the_region_is_named_again() -> Result<()> {
    let cloud = OnceCell::new();
    let start = async |testbed: &Testbed, dir: &Path, _: &Libvirtd| {
        let moto = Moto::start(&dir.join("aws")).await?;
        let before = Settings::aws(moto.api(), Some(moto.user(aws::POLICY).await?));
        let mut here = before.clone();
        here.config_map.insert("AWS_REGION".into(), "us-east-1".into());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), before.clone());
        let _ = cloud.set((moto, before, here));
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let (moto, before, here) = cloud.get().context("the cloud was started")?;
        until_recorded(alone, 1).await?;
        // The VM has an elastic address and an interface of its own.
        let id = moto.make(&vm_name("web"), "running").await?;
        let hidden = ["eu-west-1", "127.0.0.1", "123456789012"];
        let vm = Former { cloud: "aws", id: &id, before, here, setting: "AWS_REGION", hidden: &hidden };
        vm.holds(alone, async || Ok(moto.left(&id).await?.vm)).await?;
        let left = moto.left(&id).await?;
        ensure!(left.belongings == 0, "{left:?}");
        Ok(())
    })
}
