//! A cloud that accepts few requests a second, and the memory that several clouds take.

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
    provider::{CLOUDS, aws},
};
use peers::{Does, HttpRelay, aws::Moto, gcp::ComputeEngine, libvirt::Libvirtd};
use testbed::{Operator, OperatorOptions, Options, Settings, Testbed, contract::Played, vm_name, wait};
use tokio::time::sleep;

use super::{
    build_operator,
    figures::Figures,
    scene::{Bench, CONCURRENCY},
    usage,
};

/// The delay of each answer.
const LATE: Duration = Duration::from_millis(200);
/// The number of reads in a deletion. It also has one write.
const READS: f64 = 3.0;
/// The time in which the operator learns the rate.
const LEARNT: Duration = Duration::from_secs(15);
/// The time limit of all deletions.
const PATIENCE: Duration = Duration::from_secs(600);

/// A cloud that accepts few requests a second.
struct Few {
    /// The number of measured deletions.
    deletions: u32,
    /// How many reads a second the cloud accepts, and how many writes.
    rate: u32,
    /// The most time that the deletions may take, as a multiple of what the rate allows.
    target: f64,
}

/// At the second rate, the operator's concurrent calls would wait longer for their turns than its timeout allows.
const FEW: [Few; 2] =
    [Few { deletions: 1_000, rate: 20, target: 1.1 }, Few { deletions: 300, rate: 6, target: 1.2 }];

/// A token bucket: how many requests the cloud still accepts.
struct Bucket {
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: f64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { rate, tokens: rate, at: Instant::now() }))
    }

    fn takes(&mut self) -> bool {
        let now = Instant::now();
        self.tokens = (self.tokens + now.duration_since(self.at).as_secs_f64() * self.rate).min(self.rate);
        self.at = now;
        let takes = self.tokens >= 1.0;
        self.tokens -= if takes { 1.0 } else { 0.0 };
        takes
    }
}

pub(super) async fn run() -> Result<Figures> {
    let mut progress = Progress::new(3 + FEW.len());
    let program = build_operator(&mut progress)?;
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
    let mut operator = Operator::start(&testbed, &options).await?;
    let bench = Bench::new(&testbed, libvirtd.host()).await?;
    bench.delete(5).await.context("deleting a few, so that everything is connected")?;
    figures.at_most("resident memory, idle, with aws, gcp and libvirt", idle(&operator)?, "MiB", 15.0);

    for few in &FEW {
        progress.step(format!("{} deletions at {} requests a second", few.deletions, few.rate));
        // moto serves one request at a time, and takes seconds to list the instances of earlier deletions for the sweep. Meanwhile answers
        // gather, and what follows them would leave at once. Nor does the operator know the rate of the last cloud.
        let moto = Moto::start(&dir.path().join(format!("aws-{}", few.rate))).await?;
        let key = moto.user(aws::POLICY).await?;
        operator.stop().await?;
        relay.lead_to(moto.api());
        operator.mount(&Settings::aws(relay.address(), Some(key)))?;
        operator.start_again()?;
        operator.ready().await?;
        few.measure(&bench, &moto, &relay, &mut figures).await?;
    }
    operator.stop().await?;
    progress.step("all clouds at once");
    let idle = idle_with_all(&testbed, &program, dir.path()).await?;
    figures.at_most("resident memory, idle, with all ten clouds", idle, "MiB", 18.0);
    progress.finish();
    Ok(figures)
}

/// The memory of an operator that has listed each cloud once, in MiB.
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
    Ok(usage::memory(operator.pid())?.0)
}

impl Few {
    async fn measure(
        &self,
        bench: &Bench<'_>,
        moto: &Moto,
        relay: &HttpRelay,
        figures: &mut Figures,
    ) -> Result<()> {
        let Self { deletions, rate, target } = *self;
        let peerpods = dangling(bench, moto, usize::try_from(deletions)?).await?;
        let refused = limit(relay, rate.into());
        let started = Instant::now();
        let api = bench.peerpods();
        let params = DeleteParams::default();
        let deleted = peerpods.iter().map(|name| api.delete(name, &params));
        stream::iter(deleted).buffer_unordered(CONCURRENCY).try_for_each(|_| async { Ok(()) }).await?;
        gone(&api).await?;
        let took = started.elapsed().as_secs_f64();
        relay.forget_rules();
        let what = format!("{deletions} deletions at {rate} reads and {rate} writes a second");
        figures.info(what.clone(), took, "s");
        let least = f64::from(deletions) * READS / f64::from(rate);
        figures.at_most(format!("{what}, beside what the rate allows"), took / least, "", target);
        let refused = refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let late = refused.iter().filter(|at| at.duration_since(started) > LEARNT).count();
        let early = f64::from(u32::try_from(refused.len() - late)?);
        figures.info(format!("refusals of {rate} a second until that was learnt"), early, "");
        figures.exactly(
            format!("refusals of {rate} a second after that"),
            f64::from(u32::try_from(late)?),
            0.0,
        );
        Ok(())
    }
}

/// Instances of Pods that have ended. Returns the names of their PeerPods.
async fn dangling(bench: &Bench<'_>, moto: &Moto, count: usize) -> Result<Vec<String>> {
    let pods = bench.pods(count).await?;
    let ended = pods.iter().map(|pod| bench.end(pod));
    stream::iter(ended).buffer_unordered(CONCURRENCY).try_collect::<Vec<_>>().await?;
    let recorded = pods.iter().map(|pod| async {
        let id = moto.make(&vm_name(&pod.name_any()), "bare").await?;
        anyhow::Ok(bench.caa.record(pod, "aws", &id).await?.name_any())
    });
    stream::iter(recorded).buffer_unordered(CONCURRENCY).try_collect().await
}

/// Makes the cloud slow from now on, and limits its requests to this rate. Returns the times at which it refused a request.
fn limit(relay: &HttpRelay, rate: f64) -> Arc<Mutex<Vec<Instant>>> {
    let refused = Arc::<Mutex<Vec<Instant>>>::default();
    let (reads, writes, refusals) = (Bucket::new(rate), Bucket::new(rate), Arc::clone(&refused));
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
