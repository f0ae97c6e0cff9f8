//! The lease of upstream's reaper, which the operator shares: while one of the two acts, the other does not.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use operator_kit::lease::RETRY_PERIOD;
use peerpod_operator::{NAMESPACE, names::PEERPOD_CTRL_LEASE};
use tokio::time::{sleep, timeout};

use super::{answered_calls, delete, elected, ended, leads, until_leads};

/// Another candidate for a Lease, which takes and keeps it by the rules of client-go's leader election: wait for the
/// record to stay unchanged for its duration, replace it whole, count a transition.
struct Reaper {
    leases: Api<Lease>,
    seen: Option<(LeaseSpec, Instant)>,
}

impl Reaper {
    const IDENTITY: &str = "peerpod-ctrl-controller-manager-5d8f_9f4c";

    fn new(client: Client) -> Self {
        Self { leases: Api::namespaced(client, NAMESPACE), seen: None }
    }

    /// Tries once to take or renew the lease. Returns whether it then holds it.
    async fn attempt(&mut self) -> Result<bool> {
        let now = MicroTime(Timestamp::now());
        let mine = LeaseSpec {
            holder_identity: Some(Self::IDENTITY.into()),
            lease_duration_seconds: Some(15),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        };
        let params = PostParams::default();
        let Some(mut lease) = self.leases.get_opt(PEERPOD_CTRL_LEASE).await? else {
            let metadata = ObjectMeta { name: Some(PEERPOD_CTRL_LEASE.into()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(mine) };
            return Ok(self.leases.create(&params, &lease).await.is_ok());
        };
        let spec = lease.spec.take().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.seen = Some((spec.clone(), Instant::now()));
        }
        let since = self.seen.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let duration = spec.lease_duration_seconds.context("a lease has a duration")?;
        let valid = since.elapsed() < Duration::from_secs(duration.try_into()?);
        let transitions = spec.lease_transitions.context("a lease counts its transitions")?;
        lease.spec = Some(match holder {
            Self::IDENTITY => LeaseSpec { acquire_time: spec.acquire_time, ..mine },
            other if !other.is_empty() && valid => return Ok(false),
            _ => LeaseSpec { lease_transitions: Some(transitions + 1), ..mine },
        });
        Ok(self.leases.replace(PEERPOD_CTRL_LEASE, &params, &lease).await.is_ok())
    }

    /// Tries every two seconds until this has ended. Returns the number of attempts and of successes.
    async fn attempts_during(&mut self, work: impl Future<Output = Result<()>>) -> Result<(usize, usize)> {
        let (mut work, mut all, mut successful) = (pin!(work), 0, 0);
        loop {
            successful += usize::from(self.attempt().await?);
            all += 1;
            if let Ok(ended) = timeout(RETRY_PERIOD, work.as_mut()).await {
                ended?;
                return Ok((successful, all));
            }
        }
    }
}

/// Longer than an unrenewed lease lasts.
const PAST_EXPIRY: Duration = Duration::from_secs(18);

#[test]
fn while_upstreams_reaper_holds_the_shared_lease_nothing_is_touched() -> Result<()> {
    elected(&[format!("--lease-name={PEERPOD_CTRL_LEASE}")], async |alone| {
        // The operator's turn ends first, so that the reaper finds the lease free.
        until_leads(&alone.operator).await?;
        alone.operator.stop().await?;
        let mut reaper = Reaper::new(alone.testbed.client());
        ensure!(reaper.attempt().await?, "a lease that was given up is free for anyone");
        alone.operator.start_again()?;
        alone.operator.ready().await?;
        let vm = ended(alone, "web").await?;
        delete(alone, &vm).await?;
        // The reaper also renews while the test looks: on a busy machine this may take as long as the lease lasts.
        let untouched = async {
            sleep(PAST_EXPIRY).await;
            ensure!(!leads(&alone.operator).await? && answered_calls(&alone.operator).await? < 0.5);
            alone.scene().lives(&vm).await?;
            ensure!(alone.scene().writes()?.is_empty(), "{:?}", alone.scene().writes()?);
            Ok(())
        };
        let (successful, all) = reaper.attempts_during(untouched).await?;
        ensure!(successful == all, "the reaper renewed its lease {successful} of {all} times");

        // The reaper stops renewing.
        alone.scene().released(&vm.name()).await
    })
}

#[test]
fn while_the_operator_holds_the_shared_lease_upstreams_reaper_does_not_get_it() -> Result<()> {
    elected(&[format!("--lease-name={PEERPOD_CTRL_LEASE}")], async |alone| {
        until_leads(&alone.operator).await?;
        let mut reaper = Reaper::new(alone.testbed.client());
        let leads_on = async {
            sleep(PAST_EXPIRY).await;
            ensure!(leads(&alone.operator).await?);
            Ok(())
        };
        let (successful, _) = reaper.attempts_during(leads_on).await?;
        ensure!(successful == 0, "the reaper took the lease");
        alone.scene().operator_catches_up().await
    })
}
