//! The libvirt daemon stops or hangs.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use libvirt_client::Volume;
use peers::libvirt::BASE_VOLUME;
use testbed::wait::{self, DEADLINE};
use tokio::time::sleep;

use super::{DRIVERS_OWN, Hundred, until_held};
use crate::support::{Alone, OUTAGE, alone};

/// What a daemon has. The test gives it to the daemon's successor, because libvirt's test driver stores nothing.
#[derive(PartialEq)]
struct Inventory {
    domains: Vec<String>,
    volumes: Vec<Volume>,
}

impl Inventory {
    /// The inventory once the daemon has done all changes that the operator asked for.
    async fn at_rest(alone: &Alone<'_>) -> Result<Self> {
        let mut before = Self::take(alone).await;
        wait::eventually("the daemon has done all that it was asked to", DEADLINE, async || {
            let last = std::mem::replace(&mut before, Self::take(alone).await)?;
            ensure!(before.as_ref().is_ok_and(|now| *now == last), "it is at work");
            Ok(last)
        })
        .await
    }

    async fn take(alone: &Alone<'_>) -> Result<Self> {
        let (client, pool) = (alone.libvirtd.host().client(), alone.libvirtd.host().pool());
        let mut domains = Vec::new();
        for domain in client.domains().await?.iter().filter(|domain| domain.name != DRIVERS_OWN) {
            domains.push(client.domain_xml(domain).await?);
        }
        let mut volumes = client.pool_volumes(pool).await?;
        volumes.retain(|volume| volume.name != BASE_VOLUME);
        Ok(Self { domains, volumes })
    }

    async fn restore(&self, alone: &Alone<'_>) -> Result<()> {
        let host = alone.libvirtd.host();
        for volume in &self.volumes {
            let format = if volume.name.strip_suffix(".iso").is_some() { "raw" } else { "qcow2" };
            host.volume(&volume.name, format, "").await?;
        }
        for xml in &self.domains {
            let domain = host.client().domain_define(xml).await?;
            host.client().domain_create(&domain).await?;
        }
        Ok(())
    }
}

#[test]
fn a_daemon_that_stops_and_comes_back_with_its_machines() -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle(alone).await?;
        // Nothing may change between the inventory and the daemon's end.
        alone.operator.pause()?;
        let inventory = Inventory::at_rest(alone).await?;
        // Without the two machines that stay.
        let left = inventory.domains.len() - 2;
        alone.libvirtd.stop().await?;
        let struck = Timestamp::now();
        alone.operator.resume()?;
        until_held(alone, "CloudUnavailable", left).await?;
        sleep(OUTAGE).await;
        alone.operator.pause()?;
        alone.libvirtd.restart().await?;
        inventory.restore(alone).await?;
        alone.operator.resume()?;
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator], struck).await?.within(8)
    })
}

#[test]
fn a_daemon_that_hangs_until_calls_fail_and_then_resumes() -> Result<()> {
    alone(async |alone| {
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle(alone).await?;
        alone.libvirtd.pause()?;
        let struck = Timestamp::now();
        let unavailable = until_held(alone, "CloudUnavailable", 1).await;
        alone.libvirtd.resume()?;
        unavailable?;
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator], struck).await?.within(4)
    })
}
