//! Helpers of all tests here.

mod clear;
pub mod clouds;
pub mod refusal;
mod scene;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use cluster::{Component, process::Lifetime};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use peerpod_operator::api::v1alpha1::PeerPod;
use peers::libvirt::Libvirtd;
use testbed::{Caa, Operator, OperatorOptions, Options, Settings, Testbed, Vm, wait};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Mutex, OnceCell, Semaphore},
    time::{sleep, timeout},
};

use self::clear::clear;
pub use self::scene::Scene;

/// The annotation that makes the operator give the VM of a PeerPod up.
pub const ABANDON: &str = "peerpods.confidentialcontainers.org/release=abandon";

/// How long a stopped component stays stopped: long enough for a spinning loop to show.
pub const OUTAGE: Duration = Duration::from_secs(3);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_peerpod-operator");

/// The time limit of a test, once it has its cluster.
const LIMIT: Duration = Duration::from_secs(300);

/// All tests of the process share this runtime, so that a later test can use a connection that an earlier one opened.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starting tokio")
});

/// Started once: if it does not start, each test that needs it says why.
static SHARED: OnceCell<Result<Shared, String>> = OnceCell::const_new();

/// How much tests with a cluster of their own may load at once. The processors are few.
const CAPACITY: usize = 10;
static TURNS: Semaphore = Semaphore::const_new(CAPACITY);

/// How much a test with a cluster of its own loads.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// It waits most of its time.
    Low = 1,
    Usual = 2,
}

/// The clusters of [`alone`] that are free.
static FREE: Mutex<Vec<Testbed>> = Mutex::const_new(Vec::new());

struct Shared {
    testbed: Testbed,
    libvirtd: Libvirtd,
    operator: Operator,
    caa: Caa,
}

impl Shared {
    async fn start() -> Result<Self> {
        let dir = run_dir()?;
        let options = Options { audit: true, ..Options::new(dir.join("shared")) };
        let libvirtd_dir = dir.join("l");
        let (testbed, libvirtd) =
            tokio::try_join!(Testbed::start(&options), Libvirtd::start(&libvirtd_dir, Lifetime::Owned),)?;
        let caa = Caa::install(&testbed).await?;
        let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
        let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
        let operator = Operator::start(&testbed, &options).await?;
        Ok(Self { testbed, libvirtd, operator, caa })
    }
}

/// The cluster, libvirtd and operator that a test has to itself.
pub struct Alone<'a> {
    pub testbed: &'a mut Testbed,
    pub operator: Operator,
    pub libvirtd: Libvirtd,
    pub caa: Caa,
    pub namespace: String,
}

/// Runs a test that shares its cluster, libvirtd and operator with others.
pub fn beside_others(test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    RUNTIME.block_on(async {
        let start = async || Shared::start().await.map_err(|error| format!("{error:#}"));
        let shared = SHARED.get_or_init(start).await.as_ref().map_err(|error| anyhow!("{error}"))?;
        let namespace = shared.testbed.namespace("test").await?;
        let scene =
            Scene::new(&shared.testbed, &shared.operator, shared.libvirtd.host(), &shared.caa, namespace);
        let outcome = timeout(LIMIT, test(&scene)).await.context("the test takes too long").flatten();
        outcome.inspect_err(|_| println!("{}", scene.operator.log_tail()))
    })
}

/// Runs a test with a libvirtd and an operator of its own, on a cluster that no other test uses meanwhile. So no operator waits for the
/// lease of another one, or for its own after it was killed.
pub fn alone(test: impl AsyncFnOnce(&mut Alone) -> Result<()>) -> Result<()> {
    alone_with(operator_of_one, test)
}

/// An operator for this libvirtd without leader election.
async fn operator_of_one(testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd) -> Result<Operator> {
    let settings = Settings::libvirt(&libvirtd.host().uri().to_string());
    let options = OperatorOptions::new(PROGRAM, dir.join("operator"), settings);
    let arguments = vec!["--leader-elect=false".to_owned()];
    Operator::start(testbed, &OperatorOptions { arguments, ..options }).await
}

/// Like [`alone`], but `start` starts the operator. It gets a folder and the libvirtd.
pub fn alone_with(
    start: impl AsyncFnOnce(&Testbed, &Path, &Libvirtd) -> Result<Operator>,
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    on_own_cluster(Load::Usual, async |testbed| on(testbed, start, test).await)
}

/// Like [`alone_with`], for a test that waits most of its time.
pub fn alone_waiting(
    start: impl AsyncFnOnce(&Testbed, &Path, &Libvirtd) -> Result<Operator>,
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    on_own_cluster(Load::Low, async |testbed| on(testbed, start, test).await)
}

/// Like [`alone_with`], but `start` starts only what the operator uses, a cloud for example. It gets a folder and the libvirtd, and
/// returns what the test gets, and the operator's settings.
pub fn alone_beside<T>(
    start: impl AsyncFnOnce(&Path, &Libvirtd) -> Result<(T, Settings)>,
    test: impl AsyncFnOnce(&mut Alone, &T) -> Result<()>,
) -> Result<()> {
    let started = OnceCell::new();
    let operator = async |testbed: &Testbed, dir: &Path, libvirtd: &Libvirtd| {
        let (it, settings) = start(dir, libvirtd).await?;
        let _ = started.set(it);
        Operator::start(testbed, &OperatorOptions::new(PROGRAM, dir.join("operator"), settings)).await
    };
    alone_with(operator, async |alone| test(alone, started.get().context("it was started")?).await)
}

/// Like [`alone_with`], with a second cluster. The time limit begins when the test has both: it may wait long for them. Only one test
/// may take two clusters: several such tests would block each other.
pub fn alone_with_another(
    start: impl AsyncFnOnce(&Testbed, &Path, &Libvirtd) -> Result<Operator>,
    test: impl AsyncFnOnce(&mut Alone, &mut Testbed) -> Result<()>,
) -> Result<()> {
    on_own_cluster(Load::Usual, async |testbed| {
        with_own_cluster(Load::Usual, async |other| {
            on(testbed, start, async |alone| test(alone, other).await).await
        })
        .await
    })
}

/// Runs a test on a cluster that no other test uses meanwhile, without libvirtd and operator.
pub fn without_operator(test: impl AsyncFnOnce(&Testbed) -> Result<()>) -> Result<()> {
    on_own_cluster(Load::Usual, async |testbed| {
        timeout(LIMIT, test(testbed)).await.context("the test takes too long").flatten()
    })
}

/// Runs a test that needs none of this.
pub fn run(test: impl Future<Output = Result<()>>) -> Result<()> {
    run_on(async { Ok(()) }, async |()| test.await)
}

/// Runs a test on something that several tests share. The first of them starts it.
pub fn run_on<S>(
    shared: impl Future<Output = Result<S>>,
    test: impl AsyncFnOnce(S) -> Result<()>,
) -> Result<()> {
    RUNTIME.block_on(async {
        let shared = shared.await?;
        timeout(LIMIT, test(shared)).await.context("the test takes too long").flatten()
    })
}

fn on_own_cluster(load: Load, work: impl AsyncFnOnce(&mut Testbed) -> Result<()>) -> Result<()> {
    RUNTIME.block_on(with_own_cluster(load, work))
}

/// Does this with a cluster that no other test uses meanwhile.
async fn with_own_cluster(load: Load, work: impl AsyncFnOnce(&mut Testbed) -> Result<()>) -> Result<()> {
    let _turn = TURNS.acquire_many(load as u32).await?;
    let free = FREE.lock().await.pop();
    let mut testbed = match free {
        Some(testbed) => testbed,
        None => new_testbed(None).await?,
    };
    clear(&mut testbed).await.context("clearing away what the test before left")?;
    testbed.audit()?.mark()?;
    work(&mut testbed).await?;
    // Only a test that succeeded returns its cluster. After a failure the state of a cluster is unknown.
    FREE.lock().await.push(testbed);
    Ok(())
}

/// Like [`alone_with`], on a cluster of this older version. Few tests need one, so it ends with the test: an idle cluster takes memory
/// and processor time.
pub fn alone_on(
    version: &str,
    start: impl AsyncFnOnce(&Testbed, &Path, &Libvirtd) -> Result<Operator>,
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    RUNTIME.block_on(async {
        let _turn = TURNS.acquire_many(Load::Usual as u32).await?;
        let mut testbed = new_testbed(Some(version.to_owned())).await?;
        on(&mut testbed, start, test).await
    })
}

/// Runs a test on this cluster, with a libvirtd and an operator for it.
async fn on(
    testbed: &mut Testbed,
    start: impl AsyncFnOnce(&Testbed, &Path, &Libvirtd) -> Result<Operator>,
    test: impl AsyncFnOnce(&mut Alone) -> Result<()>,
) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let libvirtd = Libvirtd::start(&dir.path().join("l"), Lifetime::Owned).await?;
    let caa = Caa::install(testbed).await?;
    let namespace = testbed.namespace("alone").await?;
    let operator = start(testbed, dir.path(), &libvirtd).await?;
    let mut alone = Alone { testbed, operator, libvirtd, caa, namespace };
    let outcome = timeout(LIMIT, test(&mut alone)).await.context("the test takes too long").flatten();
    outcome.inspect_err(|_| println!("{}", alone.operator.log_tail()))
}

/// Another cluster in a folder of its own.
async fn new_testbed(emulated_version: Option<String>) -> Result<Testbed> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let dir = run_dir()?.join(format!("alone-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    Testbed::start(&Options { audit: true, emulated_version, ..Options::new(dir) }).await
}

impl Alone<'_> {
    /// The scene in this test's namespace.
    pub fn scene(&self) -> Scene<'_> {
        let host = self.libvirtd.host();
        Scene::new(self.testbed, &self.operator, host, &self.caa, self.namespace.clone())
    }

    /// Kills a component, which cuts its connections, and starts it again after a while.
    pub async fn kill_and_start(&mut self, component: Component) -> Result<()> {
        let cluster = self.testbed.cluster_mut();
        cluster.process(component).context("it runs")?.kill().await?;
        sleep(OUTAGE).await;
        cluster.start_component(component).await
    }
}

/// The creation time of a PeerPod, in whole seconds.
pub fn created(vm: &Vm) -> Timestamp {
    vm.peerpod.creation_timestamp().expect("the API server sets it").0
}

/// Waits until a later second than the creation of these. The operator orders siblings by whole seconds.
pub async fn next_second(vms: &[Vm]) -> Result<()> {
    wait::second_after(vms.iter().map(created).max().context("a second later than none")?).await
}

/// The condition that is True.
pub fn condition(peerpod: &PeerPod) -> Option<Condition> {
    peerpod
        .status
        .iter()
        .flat_map(|status| &status.conditions)
        .find(|condition| condition.status == "True")
        .cloned()
}

/// The folder of this run's files. It stays for inspection until the next run.
pub fn run_dir() -> Result<PathBuf> {
    static DIR: LazyLock<Result<(PathBuf, File), String>> =
        LazyLock::new(|| testbed::run_dir().map_err(|error| format!("{error:#}")));
    DIR.as_ref().map(|(dir, _)| dir.clone()).map_err(|error| anyhow::anyhow!(error.clone()))
}
