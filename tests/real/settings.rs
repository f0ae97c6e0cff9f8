//! Wrong settings and clouds that do not answer: nothing is lost, and the operator recovers by itself.

use anyhow::{Result, ensure};
use testbed::{
    Operator, OperatorOptions, Settings,
    wait::{self, DEADLINE},
};

use crate::support::{Alone, PROGRAM, alone, alone_with};

fn libvirt(alone: &Alone<'_>) -> Settings {
    Settings::libvirt(&alone.libvirtd.host().uri().to_string())
}

/// Waits until the metric says whether the settings are valid, or is missing.
async fn settings_are_valid(alone: &Alone<'_>, valid: Option<bool>) -> Result<()> {
    wait::eventually("the settings were read again", DEADLINE, async || {
        let metrics = alone.operator.metrics().await?;
        let mut lines = metrics.text().lines();
        let told = lines
            .find_map(|line| line.strip_prefix(r#"peerpod_operator_settings_valid{settings="default"} "#));
        ensure!(told.map(|told| told == "1") == valid, "settings_valid is {told:?}");
        Ok(())
    })
    .await
}

/// Runs a test with an operator whose settings have only this cloud.
fn with_cloud(
    cloud: &str,
    arguments: &[&str],
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    let start = async |testbed: &testbed::Testbed, dir: &std::path::Path, _: &_| {
        let mut settings = Settings::default();
        settings.config_map.insert("CLOUD_PROVIDER".into(), cloud.into());
        let mut options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
        options.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Operator::start(testbed, &options).await
    };
    alone_with(start, test)
}

#[test]
fn deletions_wait_for_valid_settings_and_then_continue_at_once() -> Result<()> {
    with_cloud("nonsense", &[], async |alone| {
        settings_are_valid(alone, Some(false)).await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "InvalidSettings").await?;
        assert!(condition.message.contains("CLOUD_PROVIDER"), "{}", condition.message);
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().reaped(&vm).await?;
        settings_are_valid(alone, Some(true)).await
    })
}

#[test]
fn settings_valid_is_absent_if_the_operator_deletes_no_machines() -> Result<()> {
    with_cloud("nonsense", &["--controllers=peerpodconfig"], async |alone| {
        alone.operator.reloaded(0, 1).await?;
        settings_are_valid(alone, None).await
    })
}

#[test]
fn broken_settings_leave_the_last_good_ones_in_force() -> Result<()> {
    alone(async |alone| {
        let mut broken = Settings::default();
        broken.config_map.insert("CLOUD_PROVIDER".into(), "nonsense".into());
        alone.operator.mount(&broken)?;
        settings_are_valid(alone, Some(false)).await?;
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
        settings_are_valid(alone, Some(false)).await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "InvalidSettings").await?;
        assert_eq!(condition.type_, "Stalled");
        assert!(condition.message.contains("LIBVIRT_URI"), "{}", condition.message);
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().reaped(&vm).await
    })
}

#[test]
fn a_machine_of_an_unreachable_cloud_is_deleted_once_it_is_reachable() -> Result<()> {
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.operator.mount(&Settings::libvirt("test+unix:///default?socket=/nowhere"))?;
        alone.operator.reloaded(2, 0).await?;
        alone.scene().pods.delete("web").await?;
        let condition = alone.scene().held(&vm.name(), "CloudUnavailable").await?;
        assert_eq!(condition.type_, "Reconciling");
        alone.scene().lives(&vm).await?;

        alone.operator.mount(&libvirt(alone))?;
        alone.scene().reaped(&vm).await
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
        // The test driver forgets its domains, so this one is absent now.
        alone.libvirtd.restart().await?;
        alone.scene().released(&vm.name()).await
    })
}

#[test]
fn a_hung_cloud_is_reported_and_the_deletion_then_continues() -> Result<()> {
    alone(async |alone| {
        alone.scene().operator_catches_up().await?;
        let vm = alone.scene().pod_with_vm("web").await?;
        alone.libvirtd.pause()?;
        alone.scene().pods.delete("web").await?;
        let held = alone.scene().held(&vm.name(), "CloudUnavailable").await;
        alone.libvirtd.resume()?;
        held?;
        alone.scene().reaped(&vm).await
    })
}
