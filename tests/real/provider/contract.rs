//! The contract that every provider keeps.

use anyhow::{Result, ensure};
use peerpod_operator::provider::contract::Cannot;
use testbed::contract::keep;

use crate::support::run;

/// Runs all scenarios on this cloud. Exactly so many must apply to it, so that a scenario that a peer no longer supports is noticed.
fn keeps_the_contract(cloud: &str, scenarios: usize) -> Result<()> {
    run(async {
        let mut failed = Vec::new();
        let tally = keep(cloud, |name, outcome| {
            if let Err(Cannot::Failed(error)) = outcome {
                failed.push(format!("{name}: {error}"));
            }
        })
        .await?;
        ensure!(failed.is_empty(), "{failed:#?}");
        ensure!(tally.passed == scenarios, "{tally:?}");
        Ok(())
    })
}

#[test]
fn azure_keeps_the_contract() -> Result<()> {
    keeps_the_contract("azure", 18)
}

#[test]
fn libvirt_keeps_the_contract() -> Result<()> {
    keeps_the_contract("libvirt", 12)
}

#[test]
fn gcp_keeps_the_contract() -> Result<()> {
    keeps_the_contract("gcp", 15)
}

#[test]
fn ibmcloud_keeps_the_contract() -> Result<()> {
    keeps_the_contract("ibmcloud", 14)
}

#[test]
fn powervs_keeps_the_contract() -> Result<()> {
    keeps_the_contract("ibmcloud-powervs", 14)
}

#[test]
fn byom_keeps_the_contract() -> Result<()> {
    keeps_the_contract("byom", 10)
}

#[test]
fn docker_keeps_the_contract() -> Result<()> {
    keeps_the_contract("docker", 13)
}

#[test]
fn aws_keeps_the_contract() -> Result<()> {
    keeps_the_contract("aws", 17)
}

#[test]
fn alibabacloud_keeps_the_contract() -> Result<()> {
    keeps_the_contract("alibabacloud", 17)
}

#[test]
fn vsphere_keeps_the_contract() -> Result<()> {
    keeps_the_contract("vsphere", 12)
}
