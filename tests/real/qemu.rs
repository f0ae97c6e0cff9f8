//! A machine that is a real process with real disks.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use peers::libvirt::{BASE_VOLUME, POOL, QemuLibvirtd};
use testbed::Settings;

use crate::support::{Scene, alone};

#[test]
fn a_qemu_machine_goes_with_its_process_its_disks_and_its_firmware_variables() -> Result<()> {
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
        scene.released(&vm.name()).await?;
        scene.vanished(&vm).await?;
        ensure!(!qemu_runs(&name)?, "QEMU still runs {name}");
        for file in &files {
            ensure!(!file.exists(), "{} is still there", file.display());
        }
        assert_eq!(scene.host.virsh().volumes(POOL).await?, [BASE_VOLUME]);
        Ok(())
    })
}

/// Whether a QEMU process has this domain's name in its command line.
fn qemu_runs(domain: &str) -> Result<bool> {
    let lines =
        fs::read_dir("/proc")?.flatten().filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    Ok(lines.any(|line| line.contains("qemu-system") && line.contains(domain)))
}
