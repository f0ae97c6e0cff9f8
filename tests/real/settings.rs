//! Settings that are wrong, and clouds that do not answer: nothing is lost, and everything goes on by itself.

use anyhow::{Result, ensure};
use testbed::{
    Operator, OperatorOptions, Settings,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone, alone_with};

fn libvirt(alone: &Alone<'_>) -> Settings {
    Settings::libvirt(&alone.libvirtd.host().uri().to_string())
}

async fn settings_are_valid(alone: &Alone<'_>, valid: f64) -> Result<()> {
    wait::eventually("the settings were read again", DEADLINE, async || {
        let value = alone.operator.metrics().await?.sum("peerpod_operator_settings_valid", &[]);
        ensure!((value - valid).abs() < 0.5, "settings_valid is {value}");
        Ok(())
    })
    .await
}

#[test]
fn deletions_wait_for_settings_that_work_and_go_on_at_once() -> Result<()> {
    let start = async |testbed: &testbed::Testbed, dir: &std::path::Path, _: &_| {
        let mut broken = Settings::default();
        broken.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), broken)).await
    };
    alone_with(start, async |alone| {
        settings_are_valid(alone, 0.0).await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "InvalidSettings").await?;
        assert!(condition.message.contains("CLOUD_PROVIDER"), "{}", condition.message);
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().released(&vm.name()).await?;
        alone.scene().vanished(&vm).await?;
        settings_are_valid(alone, 1.0).await
    })
}

#[test]
fn broken_settings_leave_the_last_good_ones_in_force() -> Result<()> {
    alone(async |alone| {
        let mut broken = Settings::default();
        broken.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        alone.operator.mount(&broken)?;
        settings_are_valid(alone, 0.0).await?;
        alone.scene().operator_catches_up().await
    })
}

#[test]
fn two_values_for_what_deletion_needs_stop_deletions_until_one_is_gone() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        let mut conflicting = libvirt(alone);
        conflicting.secret.insert("LIBVIRT_URI".into(), "test+unix:///default?socket=/nowhere".into());
        alone.operator.mount(&conflicting)?;
        wait::eventually("the operator noticed the conflict", DEADLINE, async || {
            ensure!(alone.operator.log()?.contains("LIBVIRT_URI"));
            Ok(())
        })
        .await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "InvalidSettings").await?;
        assert_eq!(condition.type_, "Stalled");
        assert!(condition.message.contains("LIBVIRT_URI"), "{}", condition.message);
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().released(&vm.name()).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_machine_that_an_unreachable_cloud_runs_goes_once_the_cloud_is_reached() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.operator.mount(&Settings::libvirt("test+unix:///default?socket=/nowhere"))?;
        alone.operator.reloaded(2, 0).await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "CloudUnavailable").await?;
        assert_eq!(condition.type_, "Reconciling");
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().released(&vm.name()).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_cloud_that_went_down_is_found_again_when_it_is_back() -> Result<()> {
    alone(async |alone| {
        alone.scene().operator_catches_up().await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.stop().await?;
        alone.scene().pods.delete("web").await?;
        alone.scene().held(&vm.name(), "CloudUnavailable").await?;
        // The test driver forgets its domains: this one is absent now.
        alone.libvirtd.restart().await?;
        alone.scene().released(&vm.name()).await
    })
}

#[test]
fn a_cloud_that_hangs_is_said_to_and_goes_on_where_it_was() -> Result<()> {
    alone(async |alone| {
        alone.scene().operator_catches_up().await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.pause()?;
        alone.scene().pods.delete("web").await?;
        let held = alone.scene().held(&vm.name(), "CloudUnavailable").await;
        alone.libvirtd.resume()?;
        held?;
        alone.scene().released(&vm.name()).await?;
        alone.scene().vanished(&vm).await
    })
}
