//! Thousands of PeerPods that share a Pod or a machine. A user who creates them must not be able to occupy the operator.

use std::{
    cell::Cell,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use testbed::{
    Operator,
    wait::{self, DEADLINE},
};
use tokio::time::sleep;
use uuid::Uuid;

use crate::support::{Alone, alone, next_second};

/// PeerPods made at the same time.
const CONCURRENCY: usize = 32;

/// An upper bound for one deletion on busy processors. A deletion that waited for the crowd would take minutes.
const SOON: Duration = Duration::from_secs(45);

/// Records these machines for a Pod.
async fn record(alone: &Alone<'_>, pod: &Pod, machines: impl Iterator<Item = String>) -> Result<()> {
    let made =
        stream::iter(machines).map(|machine| async move { alone.caa.record(pod, "libvirt", &machine).await });
    made.buffer_unordered(CONCURRENCY).try_for_each(|_| async { Ok(()) }).await
}

/// Has machines of other Pods deleted until `work` is done. Fails if a deletion takes too long.
async fn while_others_are_deleted(alone: &Alone<'_>, work: impl Future<Output = Result<()>>) -> Result<()> {
    let done = Cell::new(false);
    let work = async { work.await.inspect(|()| done.set(true)) };
    let others = async {
        let scene = alone.scene();
        for number in 0.. {
            let name = format!("other-{number}");
            let vm = scene.pod_with_vm(&name).await?;
            let start = Instant::now();
            scene.pods.delete(&name).await?;
            scene.released(&vm.name()).await?;
            ensure!(start.elapsed() < SOON, "the deletion of {name} took {:?}", start.elapsed());
            // The machine of the last round is gone, too, so only PeerPods of `work` are left.
            if done.get() {
                break;
            }
        }
        Ok(())
    };
    try_join(work, others).await.map(drop)
}

/// Waits until the operator has this many PeerPods in its cache, and its queue is empty.
async fn quiet(operator: &Operator, count: usize) -> Result<()> {
    let expected = f64::from(u32::try_from(count)?);
    wait::eventually("the operator has looked at all PeerPods", 2 * DEADLINE, async || {
        let metrics = operator.metrics().await?;
        let known = metrics.sum("peerpod_operator_peerpods", &[]);
        let queued = metrics.sum("peerpod_operator_peerpods_queued", &[]);
        ensure!(
            (known - expected).abs() < 0.5 && queued < 0.5,
            "it knows of {known}, {queued} of them are queued"
        );
        Ok(())
    })
    .await
}

/// The number of reconciles of PeerPods so far.
async fn looks(operator: &Operator) -> Result<f64> {
    Ok(operator.metrics().await?.sum("peerpod_operator_reconciles_total", &[]))
}

/// The processor time that the operator has used so far.
fn cpu(operator: &Operator) -> Result<Duration> {
    let pid = operator.pid();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("the name ends")?;
    // In hundredths of a second: the 14th field and the 15th.
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

#[test]
fn thousands_that_name_the_machine_of_their_pod_cost_nothing() -> Result<()> {
    const COUNT: usize = 2000;
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm("web").await?;
        let pod = alone.scene().pods.api().get("web").await?;
        let machine = vm.machine.domain.uuid.to_string();
        let same = std::iter::repeat_n(machine, COUNT);
        while_others_are_deleted(alone, record(alone, &pod, same)).await?;
        quiet(&alone.operator, COUNT + 1).await?;

        let (cpu_before, looks_before) = (cpu(&alone.operator)?, looks(&alone.operator).await?);
        sleep(Duration::from_secs(20)).await;
        let spent = cpu(&alone.operator)?.saturating_sub(cpu_before);
        ensure!(spent <= Duration::from_secs(1), "{spent:?} of processor time in 20 s");
        let looks = looks(&alone.operator).await? - looks_before;
        ensure!(looks < 10.0, "{looks} looks in 20 s");
        ensure!(alone.operator.health("/healthz").await?.0 == 200);
        alone.scene().lives(&vm).await
    })
}

#[test]
fn hundreds_of_siblings_take_few_reconciles_and_are_deleted_with_their_pod() -> Result<()> {
    const COUNT: usize = 300;
    // Generated, so that the operator does not wait for a start of an earlier Pod of that name before it reports a doubt.
    const WEB: &str = "web-x7k2p";
    alone(async |alone| {
        let vm = alone.scene().pod_with_vm(WEB).await?;
        let pod = alone.scene().pods.api().get(WEB).await?;
        next_second(std::slice::from_ref(&vm)).await?;
        // Half of them name machines that do not exist, the others all name the same one.
        let machine = vm.machine.domain.uuid;
        let machines = (0..COUNT).map(|number| {
            let other = Uuid::from_u64_pair(fastrand::u64(..), number as u64);
            if number % 2 == 0 { other } else { machine }.to_string()
        });
        let before = looks(&alone.operator).await?;
        while_others_are_deleted(alone, record(alone, &pod, machines)).await?;
        quiet(&alone.operator, COUNT + 1).await?;
        // A report that the API server was too slow for is written by the next reconcile, after 75 s at most.
        wait::eventually("the doubt is reported", 2 * DEADLINE, async || {
            alone.scene().held(&vm.name(), "AmbiguousSiblings").await
        })
        .await?;
        let each = (looks(&alone.operator).await? - before) / 300.0;
        ensure!(each < 10.0, "each was looked at {each} times");

        let peerpods = alone.scene().peerpods;
        let all = async {
            let (delete, every) = (DeleteParams::background(), ListParams::default());
            peerpods.delete_collection(&delete, &every).await.context("deleting all PeerPods").map(drop)
        };
        let pods = alone.scene().pods;
        try_join(all, pods.delete(WEB)).await?;
        wait::eventually("all PeerPods are gone", 2 * DEADLINE, async || {
            let left = peerpods.list_metadata(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "{} are left, such as {}", left.len(), left[0].name_any());
            Ok(())
        })
        .await?;
        alone.scene().vanished(&vm).await?;
        let each = (looks(&alone.operator).await? - before) / 300.0;
        ensure!(each < 30.0, "each was looked at {each} times");
        Ok(())
    })
}
