//! A machine that is a real process with real disks.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use libvirt_client::ConnectUri;
use peerpod_operator::provider::{Claim, InstanceId, NAME_LIMIT, Provider as _, libvirt::Libvirt, ownership};
use peers::libvirt::{BASE_VOLUME, POOL, QemuLibvirtd, Relay};
use testbed::{Settings, vm_name};
use uuid::Uuid;

use crate::support::{Scene, alone, run};

#[test]
fn a_machine_is_deleted_with_process_disks_and_firmware_variables() -> Result<()> {
    alone(async |alone| {
        let dir = tempfile::tempdir()?;
        let libvirtd = QemuLibvirtd::start(dir.path()).await?;
        alone.operator.mount(&Settings::libvirt(&libvirtd.host().uri().to_string()))?;
        let scene = Scene { host: libvirtd.host(), ..alone.scene() };
        let vm = scene.pod_with_vm("web").await?;
        scene.lives(&vm).await?;
        let name = vm.machine.domain.name.clone();
        let files =
            [Path::new(&vm.machine.root.key), Path::new(&vm.machine.cloudinit.key), &libvirtd.nvram(&name)]
                .map(Path::to_owned);
        for file in &files {
            ensure!(file.exists(), "{} is not there", file.display());
        }
        ensure!(qemu_runs(&name)?, "no QEMU runs {name}");

        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;
        ensure!(!qemu_runs(&name)?, "QEMU still runs {name}");
        for file in &files {
            ensure!(!file.exists(), "{} is still there", file.display());
        }
        assert_eq!(scene.host.virsh().volumes(POOL).await?, [BASE_VOLUME]);
        Ok(())
    })
}

/// libvirt's procedure, and its error for an invalid argument.
const DOMAIN_UNDEFINE_FLAGS: i32 = 231;
const INVALID_ARG: i32 = 8;

#[test]
fn a_machine_with_a_checkpoint_is_deleted() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let libvirtd = QemuLibvirtd::start(dir.path()).await?;
        let (host, name) = (libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        host.virsh().run(&["checkpoint-create-as", &name, "backup"]).await?;
        delete(host.uri(), vm.domain.uuid).await?;
        ensure!(!host.virsh().domains().await?.contains(&name), "{name} is still there");
        Ok(())
    })
}

#[test]
fn a_machine_is_deleted_with_firmware_variables_without_checkpoint_support() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let libvirtd = QemuLibvirtd::start(dir.path()).await?;
        let (host, name) = (libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        let old = Relay::start(host, dir.path(), Duration::ZERO)?;
        // libvirt before 5.6 refuses the flag for checkpoints like this.
        old.refuse(DOMAIN_UNDEFINE_FLAGS, &(1_u32 | 2 | 4 | 16).to_be_bytes(), INVALID_ARG);
        delete(old.uri(), vm.domain.uuid).await?;
        ensure!(!host.virsh().domains().await?.contains(&name), "{name} is still there");
        ensure!(!libvirtd.nvram(&name).exists(), "its firmware's variables are still there");
        Ok(())
    })
}

#[test]
fn an_undefined_running_machine_is_deleted_with_disks_and_firmware_variables() -> Result<()> {
    run(async {
        let dir = tempfile::tempdir()?;
        let libvirtd = QemuLibvirtd::start(dir.path()).await?;
        let (host, name) = (libvirtd.host(), vm_name("web"));
        let vm = host.start_pod_vm(&name).await?;
        host.virsh().run(&["undefine", &name, "--keep-nvram"]).await?;
        ensure!(!host.client().domain_is_persistent(&vm.domain).await?);
        delete(host.uri(), vm.domain.uuid).await?;
        ensure!(!host.virsh().domains().await?.contains(&name), "{name} is still there");
        ensure!(!libvirtd.nvram(&name).exists(), "its firmware's variables are still there");
        assert_eq!(host.virsh().volumes(POOL).await?, [BASE_VOLUME]);
        Ok(())
    })
}

/// Deletes the machine of the Pod `web` as the operator does.
async fn delete(uri: &ConnectUri, uuid: Uuid) -> Result<()> {
    let provider = Libvirt::new(&uri.to_string(), POOL, 4)?;
    let id = InstanceId::parse("libvirt", &uuid.to_string())?;
    let own = ownership::verify(provider.describe(&id, &Claim::default()).await?, "web", NAME_LIMIT)?;
    provider.delete(&own).await?;
    Ok(())
}

/// Whether a QEMU process has this domain's name in its command line.
fn qemu_runs(domain: &str) -> Result<bool> {
    let lines =
        fs::read_dir("/proc")?.flatten().filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    Ok(lines.any(|line| line.contains("qemu-system") && line.contains(domain)))
}
