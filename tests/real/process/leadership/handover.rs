//! A leader that ends, in order or not, and the one that follows it.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use operator_kit::lease::{DURATION, RELEASE_DELAY, RETRY_PERIOD};
use tokio::time::sleep;

use super::{
    answered_calls, delete, elected, ended, ensure_given, leads, lease_requests, standby, until_leads,
    until_reaped_more_than,
};

#[test]
fn one_of_two_acts_and_their_election_is_cheap() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        alone.scene().operator_catches_up().await?;
        ensure!(second.health("/readyz").await?.0 == 200, "a standby is ready");
        ensure!(!leads(&second).await? && answered_calls(&second).await? < 0.5, "a standby does nothing");
        until_reaped_more_than(0.0, &alone.operator).await?;

        let settled = Timestamp::now();
        sleep(5 * RETRY_PERIOD).await;
        let requests = lease_requests(alone, settled)?;
        ensure!(requests.iter().all(|request| request.code < 400), "{requests:?}");
        ensure!((1..=6).contains(&requests.len()), "{} in five renewal periods", requests.len());
        Ok(())
    })
}

#[test]
fn a_leader_that_ends_in_order_hands_over_at_once() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        let told = Instant::now();
        let status = alone.operator.stop().await?;
        ensure!(status.success(), "it ended with {status}");
        delete(alone, &vm).await?;
        alone.scene().released(&vm.name()).await?;
        ensure_given(told.elapsed())?;
        until_reaped_more_than(0.0, &second).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_stopped_leader_drops_a_hung_call_and_hands_over_before_expiry() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        // From here on the operator has a connection. An attempt to connect would end before the operator's patience does.
        alone.scene().operator_catches_up().await?;
        alone.libvirtd.pause()?;
        delete(alone, &vm).await?;
        alone.operator.calls().await?;
        let told = Instant::now();
        let (status, next) = tokio::try_join!(alone.operator.stop(), async {
            until_leads(&second).await?;
            anyhow::Ok(told.elapsed())
        })?;
        let ended = told.elapsed();
        alone.libvirtd.resume()?;
        ensure!(status.success(), "it ended with {status}");
        // The next operator may lead only once no call of the first can still arrive, but long before the lease would have expired.
        ensure!(next > RELEASE_DELAY, "too soon: {next:?}");
        ensure_given(next)?;
        ensure!(ended < DURATION, "it ended after {ended:?}");
        let log = alone.operator.log()?;
        ensure!(
            log.contains("which took too long; releasing the lease in") && log.contains("released the lease"),
            "{log}"
        );
        alone.scene().released(&vm.name()).await?;
        until_reaped_more_than(0.0, &second).await?;
        alone.scene().vanished(&vm).await
    })
}

#[test]
fn a_leader_that_is_killed_is_followed_when_its_lease_has_expired() -> Result<()> {
    elected(&[], async |alone| {
        let (second, _dir) = standby(alone).await?;
        let vm = ended(alone, "web").await?;
        alone.operator.kill().await?;
        let killed = Instant::now();
        delete(alone, &vm).await?;
        alone.scene().released(&vm.name()).await?;
        let reaped = killed.elapsed();
        until_reaped_more_than(0.0, &second).await?;
        // The leader renewed the lease at most one period before its end.
        ensure!(
            reaped > DURATION.checked_sub(RETRY_PERIOD * 2).context("it is longer")?,
            "too soon: {reaped:?}"
        );
        ensure!(reaped < 2 * DURATION, "the next leader reaped after {reaped:?}");
        Ok(())
    })
}
