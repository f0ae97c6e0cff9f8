//! A cluster with an operator, shared by all tests of a binary.

use std::{
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    Cluster, ClusterOptions, Component, address,
    process::{Lifetime, Process},
    proxies::without_proxies,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ObjectMeta, PostParams},
};
use operator_kit::installation::Operator;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Mutex, OnceCell, RwLock},
    time::timeout,
};

use crate::{Audit, Metrics, Request, client, http, run_dir};

/// The time limit of a test, once the stage is set.
const LIMIT: Duration = Duration::from_secs(180);

/// The time limit until the operator is ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The stage of all tests of a binary. The first test sets it.
pub struct Shared {
    runtime: Runtime,
    stage: OnceCell<Stage>,
    plan: Plan,
}

/// The contents of a stage.
pub struct Plan {
    /// The operator.
    pub operator: Operator,
    /// The folder with its generated files.
    pub manifests: PathBuf,
    /// Its program.
    pub program: PathBuf,
}

/// A cluster with one fake node, an operator's installation, and its program, which runs under its own `ServiceAccount`.
pub struct Stage {
    cluster: RwLock<Cluster>,
    client: Client,
    operators_client: Client,
    audit: Audit,
    operator: Mutex<Process>,
    command: Command,
    metrics: SocketAddr,
    health: SocketAddr,
    dir: PathBuf,
    /// Keeps the folder from being removed.
    _lock: File,
}

impl Shared {
    /// The stage of this operator, whose generated files are in `manifests`.
    pub fn new(
        operator: Operator,
        manifests: impl Into<PathBuf>,
        program: impl Into<PathBuf>,
    ) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let plan = Plan { operator, manifests: manifests.into(), program: program.into() };
        Ok(Self { runtime, stage: OnceCell::new(), plan })
    }

    /// Runs a test on it.
    pub fn test(&self, test: impl AsyncFnOnce(&Stage) -> Result<()>) -> Result<()> {
        self.runtime.block_on(async {
            let stage = self.stage.get_or_try_init(|| Stage::set(&self.plan)).await?;
            let outcome = timeout(LIMIT, test(stage)).await.context("the test takes too long").flatten();
            match outcome {
                Ok(()) => Ok(()),
                Err(error) => Err(error.context(stage.operator.lock().await.log_tail())),
            }
        })
    }
}

impl Stage {
    /// Starts all of it. It ends with this program.
    pub async fn set(plan: &Plan) -> Result<Self> {
        let (dir, lock) = run_dir()?;
        let Operator { name, .. } = plan.operator;
        let namespace = plan.operator.namespace();
        let (audit, flags) = Audit::prepare(&dir, &namespace, &[])?;
        let options = ClusterOptions {
            fake_nodes: 1,
            api_server_flags: flags,
            ..ClusterOptions::new(dir.join("cluster"))
        };
        let cluster = Cluster::start(&options).await?;
        // As a user installs it. The Pods on the fake node do nothing, so only the program below acts.
        let manifests = plan.manifests.to_str().context("the folder has no UTF-8 name")?;
        cluster.kubectl(&["apply", "--server-side", "--kustomize", manifests]).await?;
        for definition in &plan.operator.definitions {
            let definition = definition["metadata"]["name"].as_str().context("a definition has a name")?;
            let definition = format!("crd/{definition}");
            cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", &definition]).await?;
        }
        let own = format!("--namespace={namespace}");
        let token = cluster.kubectl(&["create", "token", name, &own, "--duration=24h"]).await?;
        let kubeconfig = cluster.kubeconfig_for_token(name, token.trim())?;
        let [metrics, health] = address::unused(8080)?;
        let operators_client = client(&kubeconfig).await?;
        let mut command = Command::new(&plan.program);
        without_proxies(&mut command);
        command.env("KUBECONFIG", kubeconfig).env("POD_NAMESPACE", &namespace).arg("run");
        command.arg(format!("--health-addr={health}")).arg(format!("--metrics-addr={metrics}"));
        let operator = Mutex::new(start(&command, &dir)?);
        let client = client(&cluster.kubeconfig()).await?;
        let cluster = RwLock::new(cluster);
        let stage = Self {
            cluster,
            client,
            operators_client,
            audit,
            operator,
            command,
            metrics,
            health,
            dir,
            _lock: lock,
        };
        tokio::try_join!(stage.collect_new_kinds(), stage.ready())?;
        Ok(stage)
    }

    /// Runs kubectl as the administrator. Returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.read().await.kubectl(arguments).await
    }

    /// Makes the garbage collector know the present kinds. It looks for kinds at its start, and then only every 30 s.
    pub async fn collect_new_kinds(&self) -> Result<()> {
        self.cluster.write().await.restart(Component::ControllerManager).await
    }

    /// The administrator's client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client with the operator's rights. The API server checks and logs its requests as it does the operator's.
    pub fn operators_client(&self) -> Client {
        self.operators_client.clone()
    }

    /// Makes a new namespace.
    pub async fn namespace(&self) -> Result<String> {
        let metadata = ObjectMeta { generate_name: Some("test-".to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let api: Api<Namespace> = Api::all(self.client());
        let name = api.create(&PostParams::default(), &namespace).await?.name_any();
        let own = format!("--namespace={name}");
        // Pods need the ServiceAccount.
        let created = ["wait", "--for=create", "--timeout=60s", "serviceaccount/default", &own];
        self.kubectl(&created).await?;
        Ok(name)
    }

    /// The audit log of the operator's requests.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The operator's writes in a namespace, also refused ones.
    pub fn writes(&self, namespace: &str) -> Result<Vec<Request>> {
        let mut requests = self.audit.of_operator()?;
        requests.retain(|request| request.is_write() && request.namespace == namespace);
        Ok(requests)
    }

    /// The process of the operator.
    pub async fn operator_pid(&self) -> i32 {
        self.operator.lock().await.identity().pid
    }

    /// The operator's metrics.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (status, text) = http::get(self.metrics, "/metrics").await?;
        ensure!(status == 200, "/metrics answers {status}: {text}");
        Metrics::parse(text)
    }

    /// Kills the operator and starts it again. It leads again once the lease of the killed one has expired.
    pub async fn kill_operator(&self) -> Result<()> {
        let mut operator = self.operator.lock().await;
        operator.kill().await?;
        *operator = start(&self.command, &self.dir)?;
        drop(operator);
        self.ready().await
    }

    async fn ready(&self) -> Result<()> {
        let probe = || async {
            let (status, text) = http::get(self.health, "/readyz").await?;
            ensure!(status == 200, "/readyz answers {status}: {text}");
            Ok(())
        };
        self.operator.lock().await.wait_until("the operator is ready", READY_DEADLINE, probe).await
    }
}

fn start(command: &Command, dir: &Path) -> Result<Process> {
    Process::start("operator", command, dir, Lifetime::Owned)
}
