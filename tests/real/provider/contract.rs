//! The contract that every provider keeps. The test of byom is among byom's: its pool is in a cluster, and the tests here need none.

use anyhow::{Result, ensure};
use peerpod_operator::provider::contract::Cannot;
use testbed::{Testbed, contract::keep};

use crate::support::run;

/// Runs all scenarios on this cloud. Exactly so many must apply to it, so that a scenario that a peer no longer supports is noticed.
fn keeps_the_contract(cloud: &str, scenarios: usize) -> Result<()> {
    run(keeps_it_in(None, cloud, scenarios))
}

/// The same for a cloud that uses this cluster.
pub async fn keeps_it_in(cluster: Option<&Testbed>, cloud: &str, scenarios: usize) -> Result<()> {
    let mut failed = Vec::new();
    let tally = keep(cloud, cluster, |name, outcome| {
        if let Err(Cannot::Failed(error)) = outcome {
            failed.push(format!("{name}: {error}"));
        }
    })
    .await?;
    ensure!(failed.is_empty(), "{failed:#?}");
    ensure!(tally.passed == scenarios, "{tally:?}");
    Ok(())
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
