//! Two replicas: how soon the second one continues after the first one ended, and the cost until then.

use std::{
    mem::swap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use operator_kit::lease::RETRY_PERIOD;
use testbed::{Metrics, Operator, OperatorOptions, Settings, wait};
use tokio::time::sleep;

use super::{figures::Figures, scene::Bench, usage};

/// The number of hand-overs. The slowest counts.
const HAND_OVERS: usize = 5;
/// The number of renewal periods during which nothing else happens.
const PERIODS: u32 = 10;
const DEADLINE: Duration = Duration::from_secs(30);

pub(super) async fn measure(
    bench: &Bench<'_>,
    settings: &Settings,
    program: &Path,
    dir: &Path,
    figures: &mut Figures,
) -> Result<()> {
    let options = |name: &str| OperatorOptions::new(program, dir.join(name), settings.clone());
    let mut leader = Operator::start(bench.testbed, &options("first")).await?;
    bench.delete(1).await?;
    let mut standby = Operator::start(bench.testbed, &options("second")).await?;
    until_stands_by(&standby, 0).await?;
    until_swept(&leader).await?;

    let before = next_request(bench).await?;
    sleep(PERIODS * RETRY_PERIOD).await;
    let requests = requests(bench).await? - before;
    figures.at_most(
        "two replicas, idle: API requests in a renewal period",
        requests / f64::from(PERIODS),
        "",
        1.0,
    );
    let (resident, _) = usage::memory(standby.pid())?;
    figures.at_most("second replica, idle: resident memory", resident, "MiB", 14.0);

    let mut slowest = 0.0_f64;
    for _ in 0..HAND_OVERS {
        let ends = async {
            let status = leader.stop().await?;
            ensure!(status.success(), "the leader ended with {status}");
            Ok(())
        };
        slowest = slowest.max(followed(bench, ends, &standby).await?);
        let stood_by = times_stood_by(&leader)?;
        leader.start_again()?;
        until_stands_by(&leader, stood_by).await?;
        swap(&mut leader, &mut standby);
    }
    figures.at_most("leader ends in order: until the next one has reaped", slowest, "s", 2.0);
    let killed = followed(bench, leader.kill(), &standby).await?;
    figures.at_most("leader killed: until the next one has reaped", killed, "s", 20.0);
    standby.stop().await?;
    Ok(())
}

/// Ends the leader, then deletes a PeerPod. Returns the seconds from the leader's end until the next leader has reaped it.
async fn followed(bench: &Bench<'_>, ends: impl Future<Output = Result<()>>, next: &Operator) -> Result<f64> {
    let machine = bench.dangling(1).await?;
    let before = reaped(next).await?;
    let started = Instant::now();
    ends.await?;
    bench.delete_and_wait(&machine, &machine).await?;
    let elapsed = started.elapsed().as_secs_f64();
    // The operator counts it once the API server has answered, a moment after the PeerPod is gone.
    wait::eventually("the next leader has reaped it", DEADLINE, async || {
        ensure!(reaped(next).await? > before);
        Ok(())
    })
    .await?;
    Ok(elapsed)
}

async fn reaped(operator: &Operator) -> Result<f64> {
    Ok(operator.metrics().await?.sum("peerpod_operator_deletions_total", &[]))
}

/// Waits until an operator has seen more than so many times that another one leads.
async fn until_stands_by(operator: &Operator, times: usize) -> Result<()> {
    operator.ready().await?;
    wait::eventually("the second operator stands by", DEADLINE, async || {
        ensure!(times_stood_by(operator)? > times);
        Ok(())
    })
    .await
}

/// Waits for the first sweep of a leader: it reads once which cluster this is, a quarter of a minute after the start.
async fn until_swept(leader: &Operator) -> Result<()> {
    wait::eventually("the leader has swept", DEADLINE, async || {
        let swept = leader.metrics().await?.sum("peerpod_operator_sweep_last_listing_timestamp_seconds", &[]);
        ensure!(swept > 0.0);
        Ok(())
    })
    .await
}

fn times_stood_by(operator: &Operator) -> Result<usize> {
    Ok(operator.log()?.matches("standing by").count())
}

/// The number of requests just after a new one. From there on, so many periods contain at most so many renewals.
async fn next_request(bench: &Bench<'_>) -> Result<f64> {
    let before = requests(bench).await?;
    let mut now = before;
    wait::eventually("an operator asks the API server again", DEADLINE, async || {
        now = requests(bench).await?;
        ensure!(now > before);
        Ok(())
    })
    .await?;
    Ok(now)
}

/// The number of requests of `ServiceAccounts`. Here only the operators have one.
async fn requests(bench: &Bench<'_>) -> Result<f64> {
    let text = bench.testbed.cluster().kubectl(&["get", "--raw", "/metrics"]).await?;
    let of_service_accounts = [("flow_schema", "service-accounts")];
    Ok(Metrics::parse(text)?.sum("apiserver_flowcontrol_dispatched_requests_total", &of_service_accounts))
}
