//! Two replicas, of which the leader fails.

use std::time::Instant;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use testbed::Operator;

use super::Hundred;
use crate::process::leadership::{elected, ensure_given, standby, until_leads, until_stands_by};

/// How many deletions and releases an operator has logged.
fn deeds(operator: &Operator) -> Result<usize> {
    let log = operator.log()?;
    let is_deed = |line: &&str| line.contains("deleting the VM") || line.contains("removed the finalizer");
    Ok(log.lines().filter(is_deed).count())
}

#[test]
fn a_leader_that_is_killed() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle(alone).await?;
        alone.operator.kill().await?;
        let struck = Timestamp::now();
        machines.reaped(alone).await?;
        machines.cost(alone, &[&alone.operator, &second], struck).await?.within(4)
    })
}

#[test]
fn a_leader_that_is_paused_until_another_one_leads() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle(alone).await?;
        alone.operator.pause()?;
        let struck = Timestamp::now();
        let done = deeds(&alone.operator)?;
        until_leads(&second).await?;
        // The second operator already works on the machines that the resumed one had begun with.
        alone.operator.resume()?;
        until_stands_by(&alone.operator).await?;
        machines.reaped(alone).await?;
        let done_since = deeds(&alone.operator)? - done;
        // It may have stood still in the middle of a step, after the look whether it leads.
        ensure!(done_since <= 1, "it did {done_since} things after its time was over");
        machines.cost(alone, &[&alone.operator, &second], struck).await?.within(4)
    })
}

#[test]
fn a_leader_that_hands_over() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let machines = Hundred::start(alone).await?;
        machines.until_the_middle_of(alone, 0..50).await?;
        let told = (Timestamp::now(), Instant::now());
        let led = async {
            until_leads(&second).await?;
            Ok(told.1.elapsed())
        };
        let reaped = async {
            machines.delete(alone, 50..100).await?;
            machines.reaped(alone).await
        };
        let (status, took, ()) = tokio::try_join!(alone.operator.stop(), led, reaped)?;
        ensure!(status.success(), "it ended with {status}");
        ensure!(deeds(&second)? > 0, "the first one did everything");
        let cost = machines.cost(alone, &[&alone.operator, &second], told.0).await?;
        // On a busy machine the first operator drops work that takes too long, and gives the lease away some seconds later. The
        // second one begins that work again.
        if !alone.operator.log()?.contains("dropped the work in progress") {
            ensure_given(took)?;
            let twice: Vec<_> = cost.begun.iter().filter(|(_, begun)| **begun > 1).collect();
            ensure!(twice.is_empty(), "begun by both: {twice:?}");
        }
        cost.within(3)
    })
}
