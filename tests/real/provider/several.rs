//! One operator for several clouds.

use std::path::Path;

use anyhow::{Result, ensure};
use peers::libvirt::Libvirtd;
use testbed::{
    MountedFolder, Operator, OperatorOptions, Settings, Testbed,
    wait::{self, DEADLINE},
};

use crate::support::{PROGRAM, alone_with};

#[test]
fn a_further_cloud_has_settings_of_its_own_whatever_those_of_the_first_say() -> Result<()> {
    let start = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let further = Settings::libvirt(&libvirtd.host().uri().to_string());
        let settings = MountedFolder::create(dir.join("libvirt-settings"), &further.config_map)?;
        let credentials = MountedFolder::create(dir.join("libvirt-credentials"), &further.secret)?;
        let mut first = Settings::default();
        first.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), first);
        let folders = [&settings, &credentials].map(|it| it.path().display().to_string()).join(",");
        options.arguments = vec![format!("--provider=libvirt={folders}")];
        Operator::start(testbed, &options).await
    };
    alone_with(start, async |alone| {
        let scene = alone.scene();
        let vm = scene.pod_with_vm("web").await?;
        scene.pods.delete("web").await?;
        scene.reaped(&vm).await?;

        let metrics = alone.operator.metrics().await?;
        for (settings, valid) in [("default", 0.0), ("libvirt", 1.0)] {
            let told = metrics.sum("peerpod_operator_settings_valid", &[("settings", settings)]);
            ensure!((told - valid).abs() < 0.5, "settings_valid of {settings} is {told}");
        }
        wait::eventually("the problem of the first settings is shown", DEADLINE, async || {
            let (status, text) = alone.operator.health("/readyz").await?;
            ensure!(status == 200 && text.contains("settings: "), "{status}: {text}");
            Ok(())
        })
        .await
    })
}
