//! A cloud that takes few requests a second, and the memory that several clouds take.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cluster::{process::Lifetime, progress::Progress};
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use peerpod_operator::{
    api::v1alpha1::PeerPod,
    install,
    provider::{CLOUDS, aws},
};
use peers::{Does, HttpRelay, aws::Moto, gcp::ComputeEngine, libvirt::Libvirtd};
use testbed::{Operator, OperatorOptions, Options, Settings, Testbed, contract::Played, vm_name, wait};
use tokio::time::sleep;

use super::{
    figures::Figures,
    peerpods::{Bench, CONCURRENCY},
    usage,
};
use crate::release;

/// Deletions that are measured.
const DELETIONS: usize = 1_000;
/// How late each answer comes.
const LATE: Duration = Duration::from_millis(200);
/// How many requests a second the cloud takes, of those that read and of those that write.
const RATE: f64 = 20.0;
/// Of the requests of a deletion, those that read. One writes.
const READS: f64 = 3.0;
/// Within this time the operator learns the rate.
const LEARNT: Duration = Duration::from_secs(15);
/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the cloud still takes.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { tokens: RATE, at: Instant::now() }))
    }

    fn takes(&mut self) -> bool {
        let now = Instant::now();
        self.tokens = (self.tokens + now.duration_since(self.at).as_secs_f64() * RATE).min(RATE);
        self.at = now;
        let takes = self.tokens >= 1.0;
        self.tokens -= if takes { 1.0 } else { 0.0 };
        takes
    }
}

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(5);
    progress.step("building the operator (release)");
    let program = release::build(install::NAME, &["--quiet"])?;
    progress.step("starting the control plane and the clouds");
    let dir = tempfile::tempdir()?;
    let testbed = Testbed::start(&Options::new(dir.path().join("testbed"))).await?;
    let libvirtd = Libvirtd::start(&dir.path().join("libvirtd"), Lifetime::Owned).await?;
    let gcp = ComputeEngine::start(&dir.path().join("gcp")).await?;
    let moto = Moto::start(&dir.path().join("aws")).await?;
    let relay = HttpRelay::start(moto.api()).await?;
    let key = moto.user(aws::POLICY).await?;
    let mut figures = Figures::default();

    let mut options = OperatorOptions::new(
        &program,
        dir.path().join("operator"),
        Settings::aws(relay.address(), Some(key)),
    );
    let account = gcp.account("operator@peer-pods", &peers::gcp::PERMISSIONS, gcp.address()).await?;
    let further = [
        ("libvirt", Settings::libvirt(&libvirtd.host().uri().to_string())),
        ("gcp", Settings::gcp(gcp.address(), Some(account))),
    ];
    for (cloud, settings) in &further {
        options.add_cloud(cloud, settings)?;
    }
    let operator = Operator::start(&testbed, &options).await?;
    let bench = Bench::new(&testbed, libvirtd.host()).await?;
    bench.delete(5).await.context("deleting a few, so that everything is connected")?;
    figures.add("resident memory, idle, with aws, gcp and libvirt", idle(&operator)?, "MiB", 15.0);

    progress.step(format!("{DELETIONS} instances"));
    let peerpods = dangling(&bench, &moto).await?;
    progress.step(format!("{DELETIONS} deletions, of which the cloud takes few a second"));
    let refused = limit(&relay);
    let started = Instant::now();
    let api = bench.peerpods();
    let params = DeleteParams::default();
    let deleted = peerpods.iter().map(|name| api.delete(name, &params));
    stream::iter(deleted).buffer_unordered(CONCURRENCY).try_for_each(|_| async { Ok(()) }).await?;
    gone(&api).await?;
    let count = f64::from(u32::try_from(DELETIONS)?);
    let ratio = started.elapsed().as_secs_f64() / (count * READS / RATE);
    figures.tell("1,000 deletions at 20 reads and 20 writes a second", started.elapsed().as_secs_f64(), "s");
    figures.add("beside what the cloud's rate allows", ratio, "", 1.1);
    let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let late = refused.iter().filter(|at| at.duration_since(started) > LEARNT).count();
    figures.tell("refusals until the rate was learnt", f64::from(u32::try_from(refused.len() - late)?), "");
    figures.add_count("refusals after that", f64::from(u32::try_from(late)?), 0.0);
    operator.stop().await?;
    progress.step("all clouds at once");
    let idle = idle_with_all(&testbed, &program, dir.path()).await?;
    figures.add("resident memory, idle, with all ten clouds", idle, "MiB", 18.0);
    progress.finish();
    Ok(figures)
}

/// The memory of an operator that has listed each of all clouds, in MiB.
async fn idle_with_all(testbed: &Testbed, program: &Path, dir: &Path) -> Result<f64> {
    let all = CLOUDS.into_iter().map(async |cloud| {
        let played = Played::start(cloud.name(), Some(testbed)).await.context(cloud.name())?;
        anyhow::Ok((cloud.name(), played))
    });
    let all = try_join_all(all).await?;
    let ((_, first), further) = all.split_first().context("there is no cloud")?;
    let mut options = OperatorOptions::new(program, dir.join("operator-of-all"), first.settings.clone());
    for (cloud, played) in further {
        options.add_cloud(cloud, &played.settings)?;
    }
    let operator = Operator::start(testbed, &options).await?;
    wait::eventually("all clouds are listed", PATIENCE, async || {
        let listed = operator.sweep().await?.clouds.iter().filter(|it| it.listed.is_some()).count();
        ensure!(listed == all.len(), "{listed} of {} are", all.len());
        Ok(())
    })
    .await?;
    let idle = idle(&operator)?;
    operator.stop().await?;
    Ok(idle)
}

fn idle(operator: &Operator) -> Result<f64> {
    Ok(usage::memory(operator.process().identity().pid)?.0)
}

/// Instances of Pods that have ended, and the names of their PeerPods.
async fn dangling(bench: &Bench<'_>, moto: &Moto) -> Result<Vec<String>> {
    let pods = bench.pods(DELETIONS).await?;
    let ended = pods.iter().map(|pod| bench.end(pod));
    stream::iter(ended).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
    let recorded = pods.iter().map(|pod| async {
        let id = moto.make(&vm_name(&pod.name_any()), "bare").await?;
        anyhow::Ok(bench.caa.record(pod, "aws", &id).await?.name_any())
    });
    stream::iter(recorded).buffer_unordered(CONCURRENCY).try_collect().await
}

/// From now on the cloud is slow, and takes [`RATE`] requests a second. Gives when it refused one.
fn limit(relay: &HttpRelay) -> Arc<Mutex<Vec<Instant>>> {
    let refused = Arc::<Mutex<Vec<Instant>>>::default();
    let (reads, writes, refusals) = (Bucket::new(), Bucket::new(), Arc::clone(&refused));
    let too_many = move |seen: &peers::Seen| {
        let bucket = if seen.body.contains("Action=Terminate") { &writes } else { &reads };
        let takes = bucket.lock().unwrap_or_else(PoisonError::into_inner).takes();
        if !takes {
            refusals.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
        !takes
    };
    let body = "<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>";
    relay.rule(too_many, Does::Answer { status: 503, headers: Vec::new(), body: body.to_owned() });
    relay.rule(|_| true, Does::Delay(LATE));
    refused
}

async fn gone(api: &Api<PeerPod>) -> Result<()> {
    let last = async {
        while !api.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
            sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, last).await.context("PeerPods do not go")?
}
