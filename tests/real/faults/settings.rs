//! Settings and credentials are replaced on disk: by broken ones first, or not at all.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use peers::libvirt::{Libvirtd, TcpAuth, stranger};
use testbed::{Disk, Operator, OperatorOptions, Settings, Testbed};
use tokio::sync::OnceCell;

use super::{Hundred, until_held};
use crate::support::{PROGRAM, alone, alone_with};

#[test]
fn settings_and_credentials_are_replaced_by_broken_ones_first() -> Result<()> {
    alone(async |alone| {
        let dir = tempfile::tempdir()?;
        let (libvirtd, listener) =
            Libvirtd::start_listening(&dir.path().join("d"), TcpAuth::Sasl, None).await?;
        alone.libvirtd = libvirtd;
        let theirs = dir.path().join("stranger");
        stranger(&theirs)?;
        let with = |pki: &Path| {
            let uri = format!("test://{}/default?no_verify=1&pkipath={}", listener.address, pki.display());
            let mut settings = Settings::libvirt(&uri);
            settings.secret.extend(settings.config_map.remove_entry("LIBVIRT_URI"));
            settings
        };
        alone.operator.mount(&with(&listener.pki))?;
        alone.operator.reloaded(2, 0).await?;
        let machines = Hundred::start(alone).await?;

        machines.until_the_middle_of(alone, 0..40).await?;
        let struck = Timestamp::now();
        let mut broken = with(&listener.pki);
        broken.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        alone.operator.mount(&broken)?;
        alone.operator.reloaded(2, 1).await?;
        machines.until_the_middle_of(alone, 40..70).await?;
        // With the stranger's credentials the operator could delete none of them.
        machines.until_left(alone, 30).await?;
        alone.operator.mount(&with(&theirs))?;
        alone.operator.reloaded(3, 1).await?;
        machines.delete(alone, 70..100).await?;
        until_held(alone, "Unauthorized", 30).await?;
        alone.operator.mount(&with(&listener.pki))?;
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator], struck).await?.within(4)
    })
}

#[test]
fn the_disk_of_the_settings_is_full() -> Result<()> {
    let (dir, disk) = (tempfile::tempdir()?, OnceCell::new());
    let start = async |testbed: &Testbed, home: &Path, libvirtd: &Libvirtd| {
        let disk = disk.get_or_try_init(|| Disk::mount(dir.path(), "64k")).await?;
        let home = home.join("operator");
        fs::create_dir(&home)?;
        symlink(disk.path(), home.join("settings"))?;
        let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
        let options = OperatorOptions::new(PROGRAM, home, settings);
        let arguments = vec!["--leader-elect=false".to_owned()];
        Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
    };
    alone_with(start, async |alone| {
        let disk = disk.get().context("the operator was started")?;
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle_of(alone, 0..50).await?;
        let struck = Timestamp::now();
        let mut other = Settings::libvirt(&alone.libvirtd.host().uri().to_string());
        other.config_map.insert("LIBVIRT_NET".into(), "other".into());
        disk.fill()?;
        let full = alone.operator.mount(&other).expect_err("there is no room");
        ensure!(format!("{full:#}").contains("No space left"), "{full:#}");
        machines.delete(alone, 50..100).await?;
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator], struck).await?.within(3)?;
        let metrics = alone.operator.metrics().await?;
        ensure!(metrics.sum("peerpod_operator_settings_valid", &[]) > 0.5, "the last good ones are in force");
        alone.operator.reloaded(1, 0).await?;

        disk.make_room()?;
        alone.operator.mount(&other)?;
        alone.operator.reloaded(2, 0).await?;
        alone.scene().operator_catches_up().await
    })
}
