//! The record of places.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use peerpod_operator::{
    NAMESPACE,
    install::{self, PEERPODCONFIG_ROLE},
    names::PLACES,
};
use peers::libvirt::Libvirtd;
use serde_json::json;
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use super::{another, entries, forget, libvirt, records, until_recorded};
use crate::support::{Scene, alone, alone_beside};

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
        // The place without room, too: it counts although the settings may be set back.
        until_recorded(alone, 10).await?;

        for key in more.keys() {
            forget(alone, key).await?;
        }
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        scene.reaped(&vm).await
    })
}

#[test]
fn of_two_places_that_the_settings_name_the_one_of_the_config_map_is_recorded() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let start = async |_: &Path, libvirtd: &Libvirtd| {
        let (other, mut of_secret) = another(dir.path()).await?;
        of_secret.secret.extend(of_secret.config_map.remove_entry("LIBVIRT_URI"));
        let here = Settings::libvirt(&libvirtd.host().uri().to_string());
        let both = Settings { secret: of_secret.secret.clone(), ..here };
        Ok(((other, of_secret), both))
    };
    alone_beside(start, async |alone, (_other, of_secret)| {
        until_recorded(alone, 1).await?;
        // cloud-api-adaptor uses the ConfigMap's value.
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.operator.mount(of_secret)?;
        until_recorded(alone, 2).await?;
        let scene = alone.scene();
        scene.pods.delete("web").await?;
        let condition = scene.held(&vm.name(), "InvalidSettings").await?;
        ensure!(condition.message.contains("the VM is there"), "{condition:?}");
        scene.lives(&vm).await
    })
}

#[test]
fn settings_that_only_cloud_api_adaptor_can_use_are_not_forgotten_when_they_are_set_back() -> Result<()> {
    alone(async |alone| {
        until_recorded(alone, 1).await?;
        let dir = tempfile::tempdir()?;
        let (libvirtd, _) = another(dir.path()).await?;
        // The operator refuses this parameter, and libvirt's own library does not.
        let uri = "qemu+tls://127.0.0.1:1/system?tls_priority=NORMAL";
        alone.operator.mount(&Settings::libvirt(uri))?;
        until_recorded(alone, 2).await?;
        let unknown = entries(alone).await?.into_iter().find(|(_, entry)| entry["address"] == "");
        let (key, _) = unknown.context("the unknown place is recorded")?;
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        let vm = scene.pod_with_vm("web").await?;

        alone.operator.mount(&libvirt(alone))?;
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        scene.pods.delete("web").await?;
        wait::eventually("the condition names the entry", DEADLINE, async || {
            let condition = scene.held(&vm.name(), "InvalidSettings").await?;
            ensure!(condition.message.contains(&key), "{condition:?}");
            Ok(())
        })
        .await?;
        scene.lives(&vm).await?;

        forget(alone, &key).await?;
        alone.scene().released(&vm.name()).await
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
