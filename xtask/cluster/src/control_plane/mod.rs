//! Starting, observing and disturbing a cluster.

mod detached;
mod fake_nodes;
mod options;
mod request;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::sleep;
use tokio_rustls::rustls::ClientConfig;

use self::detached::STATE_FILE;
pub(crate) use self::fake_nodes::is_ready;
pub use self::options::{ClusterOptions, NODE_LEASE};
use crate::address::Address;
use crate::clients::quick;
use crate::component::{Component, Plan};
use crate::node::{Leftovers, Node};
use crate::process::{Process, Signal, wait_for_all};
use crate::proxies::without_proxies;
use crate::tools::Tools;

/// The time limit of each part of a start. It is generous, because a machine may be slow while it builds.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(120);
/// How long a component may take to end in order. API server and etcd would wait much longer for clients that hold connections. Nothing
/// is lost if that wait is cut short.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// The pause after an answer of the API server that something is not ready. Each request costs processor time that a start needs.
pub(crate) const ASK_AGAIN: Duration = Duration::from_millis(50);

/// An answer. Returns a failure only after this pause.
pub(crate) async fn asked<T>(pause: Duration, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = answer.await;
    if answer.is_err() {
        sleep(pause).await;
    }
    answer
}

/// A running cluster. Dropping it ends it if its lifetime is [`Owned`](crate::process::Lifetime::Owned); the folder stays.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) plan: Plan,
    processes: BTreeMap<Component, Process>,
    /// TLS with the administrator's certificate, from the first request on.
    tls: OnceCell<Arc<ClientConfig>>,
    /// Dropped after the processes, as these must be gone before.
    pub(crate) leftovers: Leftovers,
}

impl Cluster {
    /// Starts a cluster and waits until it is usable: the API server is ready, Pods can be created in namespace `default`, and the fake
    /// nodes accept them. First builds the programs if needed, which takes minutes.
    pub async fn start(options: &ClusterOptions) -> Result<Self> {
        Self::start_prepared(options, async |_| Ok(())).await
    }

    /// Does the same, and runs `prepare` when the API server is ready and before there are controllers. The garbage collector looks for
    /// kinds when it starts, so it knows those that `prepare` defines.
    pub async fn start_prepared(
        options: &ClusterOptions,
        prepare: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<Self> {
        let dir = std::path::absolute(&options.dir)?;
        ensure!(
            !dir.join("etcd").exists(),
            "{} is another cluster's folder: choose another one",
            dir.display()
        );
        let plan = Plan {
            tools: Tools::ensure().await?,
            node: if options.real_node { Some(Node::plan(&dir).await?) } else { None },
            dir,
            lifetime: options.lifetime,
            address: Address::unused()?,
            emulated_version: options.emulated_version.clone(),
            api_server_flags: options.api_server_flags.clone(),
            node_lease: options.node_lease,
            unplayed_pods: options.unplayed_pods.clone(),
        };
        plan.create_files()?;
        let mut cluster = Self::of(plan, BTreeMap::new());
        match cluster.start_all(options.fake_nodes, prepare).await {
            Ok(()) => Ok(cluster),
            Err(error) => {
                // The first error is the one to report.
                let _ = cluster.stop().await;
                Err(error.context(format!("starting a cluster in {}", cluster.plan.dir.display())))
            }
        }
    }

    fn of(plan: Plan, processes: BTreeMap<Component, Process>) -> Self {
        Self { plan, processes, tls: OnceCell::new(), leftovers: Leftovers(None) }
    }

    async fn start_all(
        &mut self,
        fake_nodes: usize,
        prepare: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        self.start_namespaces().await?;
        self.start_component(Component::Etcd).await?;
        self.start_component(Component::ApiServer).await?;
        Box::pin(prepare(&*self)).await?;
        for component in [Component::ControllerManager, Component::Kwok, Component::Scheduler] {
            self.spawn(component)?;
        }
        tokio::try_join!(self.wait_for_service_account(), self.create_fake_nodes(fake_nodes))?;
        self.start_node().await
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.plan.kubeconfig("admin")
    }

    /// Writes the kubeconfig of a bearer token, for example a `ServiceAccount`'s; `name` names file and user.
    pub fn kubeconfig_for_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let reserved =
            self.plan.kubeconfig(name).exists() && self.plan.components().any(|it| it.name() == name);
        ensure!(name != "admin" && !reserved, "{name} is the name of one of the cluster's own kubeconfigs");
        self.plan.write_kubeconfig(name, &json!({ "token": token }))
    }

    /// The API server's address: `https://IP:PORT`.
    pub fn server_url(&self) -> String {
        self.plan.server_url()
    }

    /// The API server's IP address.
    pub fn server_ip(&self) -> Ipv4Addr {
        self.plan.server_ip()
    }

    /// etcd's address, without TLS.
    pub fn etcd(&self) -> SocketAddr {
        (self.plan.address.ip, self.plan.address.etcd).into()
    }

    /// The certificate of the authority that signed the API server's.
    pub fn ca(&self) -> PathBuf {
        self.plan.ca()
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.plan.dir
    }

    /// The folder with a log for each component.
    pub fn logs(&self) -> PathBuf {
        self.plan.logs()
    }

    /// The programs that it runs.
    pub fn tools(&self) -> &Tools {
        &self.plan.tools
    }

    /// The kubectl of this cluster's version.
    pub fn kubectl_program(&self) -> &Path {
        &self.plan.tools.kubectl
    }

    /// Runs kubectl as the administrator. Returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::new(&self.plan.tools.kubectl);
        quick(without_proxies(command.as_std_mut()));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.plan.dir.join("kubectl"));
        let output = command.args(args).kill_on_drop(true).output().await.context("running kubectl")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", args.join(" "), stderr.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The process of a component, to pause, resume or kill it; `None` after it was stopped.
    pub fn process(&self, component: Component) -> Option<&Process> {
        self.processes.get(&component)
    }

    /// The components that don't run, in the order in which they depend on each other.
    pub fn ended(&self) -> Vec<Component> {
        let runs = |component: &Component| self.process(*component).is_some_and(Process::is_running);
        self.plan.components().filter(|component| !runs(component)).collect()
    }

    /// Pauses a component of the control plane, with its connections open and unanswered, until [`resume`](Self::resume).
    pub fn pause(&self, component: Component) -> Result<()> {
        // For a node's programs, the process here only waits for the program.
        ensure!(Component::CONTROL_PLANE.contains(&component), "{component} can't be paused");
        self.running(component)?.signal(Signal::STOP)
    }

    /// Resumes a paused component.
    pub fn resume(&self, component: Component) -> Result<()> {
        self.running(component)?.signal(Signal::CONT)
    }

    /// Stops a component: in order, or by SIGKILL if that takes more than 2 s.
    pub async fn stop_component(&mut self, component: Component) -> Result<()> {
        if let Some(process) = self.processes.remove(&component) {
            // A program in a node's namespaces is a child of the `nsenter` process, and ends a moment after it.
            let children = if Component::NODE.contains(&component) { process.children() } else { Vec::new() };
            process.stop(STOP_GRACE).await?;
            wait_for_all(children).await?;
            self.save()?;
        }
        Ok(())
    }

    /// Starts a component that was stopped or has ended, at its old address and on its old data. Waits until etcd listens, the API
    /// server or the node is ready, or containerd answers. (The other components show only by their effects that they are ready.)
    pub async fn start_component(&mut self, component: Component) -> Result<()> {
        self.spawn(component)?;
        let process = self.running(component)?;
        match component {
            Component::Etcd => {
                let address = (self.plan.address.ip, self.plan.address.etcd);
                let probe = || async { Ok(TcpStream::connect(address).map(drop)?) };
                process.wait_until("etcd listens", START_DEADLINE, probe).await
            }
            Component::ApiServer => {
                let probe = || asked(ASK_AGAIN, self.get("/readyz"));
                process.wait_until("the API server is ready", START_DEADLINE, probe).await.map(drop)
            }
            Component::ControllerManager | Component::Scheduler | Component::Kwok => Ok(()),
            _ => self.wait_for_node(component).await,
        }
    }

    /// Stops a component and starts it again.
    pub async fn restart(&mut self, component: Component) -> Result<()> {
        self.stop_component(component).await?;
        self.start_component(component).await
    }

    /// Ends the cluster at once and waits until its processes are gone. The folder stays.
    pub async fn stop(&mut self) -> Result<()> {
        // The data is no longer needed, so nothing ends in order.
        futures::future::try_join_all(self.processes.values().map(Process::kill)).await?;
        self.processes.clear();
        if let Some(node) = self.plan.node.take() {
            self.leftovers = Leftovers(None);
            tokio::task::spawn_blocking(move || node.remove()).await??;
        }
        let state = self.plan.dir.join(STATE_FILE);
        if state.exists() {
            fs::remove_file(&state).with_context(|| format!("removing {}", state.display()))?;
        }
        Ok(())
    }

    pub(crate) fn running(&self, component: Component) -> Result<&Process> {
        let process = self.processes.get(&component).filter(|process| process.is_running());
        process.with_context(|| format!("{component} does not run"))
    }

    pub(crate) fn spawn(&mut self, component: Component) -> Result<()> {
        ensure!(self.running(component).is_err(), "{component} runs already");
        let mut command = self.plan.command(component, self.process(Component::Namespaces))?;
        without_proxies(&mut command);
        let process = Process::start(component.name(), &command, &self.plan.logs(), self.plan.lifetime)?;
        self.processes.insert(component, process);
        self.save()
    }

    /// Waits until the controller manager has created the ServiceAccount that every Pod needs.
    async fn wait_for_service_account(&self) -> Result<()> {
        let account = "/api/v1/namespaces/default/serviceaccounts/default";
        let probe = || asked(ASK_AGAIN, self.get(account));
        let what = "namespace default has its ServiceAccount";
        self.running(Component::ControllerManager)?.wait_until(what, START_DEADLINE, probe).await.map(drop)
    }
}
