//! Helpers of all tests here.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::process::Lifetime;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use peerpod_operator::{
    NAMESPACE,
    api::v1alpha1::PeerPod,
    names::{CONFIG_MAP, LEASE},
};
use peers::libvirt::{Host, Libvirtd};
use serde_json::{Value, json};
use testbed::{
    Caa, Metrics, OperatorPods, Pods, RealNode, Shell, Testbed, Vm, stand_in,
    wait::{self, DEADLINE},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{OnceCell, RwLock},
    time::timeout,
};

use crate::installation::Way;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_peerpod-operator");

/// The time limit of a test, once it has the cluster.
const LIMIT: Duration = Duration::from_secs(300);

/// All tests of the process share this runtime, so that a later test can use a connection that an earlier one opened.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starting tokio")
});

static SHARED: OnceCell<RwLock<Installation>> = OnceCell::const_new();

/// A working installation and its surroundings.
pub struct Installation {
    pub testbed: Testbed,
    pub libvirtd: Libvirtd,
    /// cloud-api-adaptor's writes, under the rights of the present installation.
    pub caa: Option<Caa>,
    /// How the operator is installed; `None` while it is not.
    pub way: Option<Way>,
    pub shell: Shell,
    pub dir: PathBuf,
    _lock: File,
}

/// Runs a test beside others.
pub fn beside_others(test: impl AsyncFnOnce(&Installation) -> Result<()>) -> Result<()> {
    run(async |shared| {
        let shared = shared.read().await;
        within_limit(test(&*shared)).await
    })
}

/// Runs a test while no other one does.
pub fn alone(test: impl AsyncFnOnce(&mut Installation) -> Result<()>) -> Result<()> {
    run(async |shared| {
        let mut shared = shared.write().await;
        within_limit(test(&mut *shared)).await
    })
}

fn run(test: impl AsyncFnOnce(&RwLock<Installation>) -> Result<()>) -> Result<()> {
    RUNTIME.block_on(async {
        let shared = SHARED.get_or_try_init(async || Installation::new().await.map(RwLock::new)).await?;
        let outcome = test(shared).await;
        if outcome.is_err() {
            println!("{}", shared.read().await.logs().await);
        }
        outcome
    })
}

async fn within_limit(test: impl Future<Output = Result<()>>) -> Result<()> {
    timeout(LIMIT, test).await.context("the test takes too long").flatten()
}

impl Installation {
    async fn new() -> Result<Self> {
        let (dir, lock) = testbed::run_dir()?;
        let node = RealNode::start(&dir, Path::new(PROGRAM), Lifetime::Owned).await?;
        let RealNode { testbed, libvirtd, uri } = node;
        stand_in::import(testbed.cluster()).await?;
        let shell = Shell::new(dir.join("user"), testbed.cluster(), uri).await?;
        let mut installation = Self { testbed, libvirtd, caa: None, way: None, shell, dir, _lock: lock };
        match installation.install(Way::Kustomize).await {
            Ok(()) => Ok(installation),
            Err(error) => Err(error.context(installation.logs().await)),
        }
    }

    /// The operator's Pods.
    pub fn operators(&self) -> OperatorPods {
        OperatorPods::new(self.testbed.client())
    }

    /// Who holds the operators' lease.
    pub async fn holder(&self) -> Result<Option<String>> {
        let leases: Api<Lease> = Api::namespaced(self.testbed.client(), NAMESPACE);
        let lease = leases.get(LEASE).await?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()))
    }

    /// Changes the settings, as `kubectl edit configmap` does, and waits until all operators have them.
    pub async fn set(&self, data: Value) -> Result<()> {
        let before = self.reloads().await?;
        let api: Api<ConfigMap> = Api::namespaced(self.testbed.client(), NAMESPACE);
        let patch = Patch::Merge(json!({ "data": data }));
        api.patch(CONFIG_MAP, &PatchParams::default(), &patch).await?;
        wait::eventually("the operators have other settings", DEADLINE, async || {
            let now = self.reloads().await?;
            let more = |(pod, count): (&String, &f64)| now.get(pod).is_some_and(|now| now > count);
            ensure!(before.iter().all(more), "{now:?} after {before:?}");
            Ok(())
        })
        .await
    }

    /// How often each of the operators reloaded its settings.
    async fn reloads(&self) -> Result<BTreeMap<String, f64>> {
        let metrics = self.operators().metrics().await?.into_iter();
        let reloads =
            |it: &Metrics| it.sum("peerpod_operator_settings_reloads_total", &[("result", "accepted")]);
        Ok(metrics.map(|(pod, metrics)| (pod, reloads(&metrics))).collect())
    }

    /// Makes or replaces a Secret beside the operator.
    pub async fn put_secret(&self, name: &str, data: Value) -> Result<()> {
        let api: Api<Secret> = Api::namespaced(self.testbed.client(), NAMESPACE);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data,
        });
        let params = PatchParams::apply("test").force();
        api.patch(name, &params, &Patch::Apply(secret)).await?;
        Ok(())
    }

    /// The libvirt host.
    pub fn host(&self) -> &Host {
        self.libvirtd.host()
    }

    /// A new Pod in this namespace, and its machine.
    pub async fn pod_with_vm(&self, namespace: &str, name: &str) -> Result<Vm> {
        let pod = Pods::new(self.testbed.client(), namespace).run(name).await?;
        self.start_vm(&pod, self.host()).await
    }

    /// Makes the machine of a Pod at this host.
    pub async fn start_vm(&self, pod: &Pod, host: &Host) -> Result<Vm> {
        self.caa.as_ref().context("nothing is installed")?.start_vm(pod, host).await
    }

    /// Waits until the machine of a deleted Pod and its PeerPod are gone.
    pub async fn reaped(&self, namespace: &str, vm: &Vm) -> Result<()> {
        let peerpods: Api<PeerPod> = Api::namespaced(self.testbed.client(), namespace);
        wait::gone(&peerpods, &vm.name(), DEADLINE).await?;
        let name = &vm.machine.domain.name;
        ensure!(!self.host().virsh().domains().await?.contains(name), "the domain {name} is there");
        Ok(())
    }

    /// The logs and states of the operator's Pods, for error messages.
    async fn logs(&self) -> String {
        let namespace = format!("--namespace={NAMESPACE}");
        let arguments = ["get", "pods,events", "--output=wide", &namespace];
        let seen = self.testbed.cluster().kubectl(&arguments).await;
        seen.unwrap_or_else(|error| format!("{error:#}")) + &self.operators().log_tail().await
    }
}
