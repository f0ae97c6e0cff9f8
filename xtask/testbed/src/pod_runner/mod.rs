//! Pods of the operator's own image, run on this machine.

mod address;
mod container;

use std::{
    collections::{BTreeSet, HashSet},
    net::Ipv4Addr,
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use anyhow::{Context as _, Result};
use cluster::process::{Lifetime, Process};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    config::Kubeconfig,
    runtime::{WatchStreamExt as _, watcher},
};
use peerpod_operator::NAMESPACE;
use serde_json::json;
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use self::address::PodAddress;
use crate::installation::Testbed;

/// Selects the Pods that run here. kwok leaves them alone.
pub(crate) const PODS: &str = "app.kubernetes.io/name=peerpod-operator";

/// The label whose value is the argument of [`PodRunner::crash`].
const INSTANCE: &str = "app.kubernetes.io/instance";

/// How often a container is probed. A kubelet probes as often as the Pod says, which would be too slow for tests.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a container stays ended before its restart, as after its first crashes on a kubelet.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// The time that a kubelet leaves a container whose preStop hook took all of its grace.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// Plays the kubelets of all nodes for Pods of the operator's own image, in the operator's namespace of a [testbed that leaves them to
/// it](crate::Options::runs_own_pods). It gives each Pod an address of its own on this machine, and runs the operator's program with
/// the container's arguments and environment and a token of its `ServiceAccount`. It reports the real result of the readiness probe. It
/// ends a deleted Pod as a kubelet does: preStop sleep, SIGTERM, and SIGKILL after the grace. Then it removes the Pod.
///
/// Needs root, for the addresses. Dropping it ends everything that it runs.
#[derive(Debug)]
pub struct PodRunner {
    crashed: watch::Sender<BTreeSet<String>>,
    dir: PathBuf,
    task: JoinHandle<()>,
}

impl PodRunner {
    /// Runs `program` for every Pod from now on, with further `environment` beside the container's own. `dir` is for its logs alone.
    pub fn start(
        testbed: &Testbed,
        program: impl Into<PathBuf>,
        dir: impl Into<PathBuf>,
        environment: &[(&'static str, &'static str)],
    ) -> Result<Self> {
        // Fails at once if no Pod could get an address.
        PodAddress::take()?;
        let (crashed, _) = watch::channel(BTreeSet::new());
        let dir = dir.into();
        let machine = Machine {
            client: testbed.client(),
            program: program.into(),
            dir: dir.clone(),
            environment: environment.to_vec(),
            admin: Kubeconfig::read_from(testbed.cluster().kubeconfig())?,
            crashed: crashed.subscribe(),
        };
        let task = tokio::spawn(machine.run_pods());
        Ok(Self { crashed, dir, task })
    }

    /// Kills the containers of this instance (`app.kubernetes.io/instance`), and keeps them from starting again until
    /// [`recover`](Self::recover).
    pub fn crash(&self, instance: &str) {
        self.crashed.send_modify(|crashed| {
            crashed.insert(instance.to_owned());
        });
    }

    /// Allows the containers of this instance to start again.
    pub fn recover(&self, instance: &str) {
        self.crashed.send_modify(|crashed| {
            crashed.remove(instance);
        });
    }

    /// The output of all containers so far, for error messages.
    pub fn logs(&self) -> String {
        let logs = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut logs: Vec<_> = logs.map(|entry| entry.path().join("container.log")).collect();
        logs.sort();
        let text = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_else(|problem| problem.to_string());
            format!("--- {} ---\n{text}", path.display())
        };
        logs.iter().map(text).collect()
    }
}

impl Drop for PodRunner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Everything that is needed to run a Pod.
#[derive(Clone)]
struct Machine {
    client: Client,
    program: PathBuf,
    dir: PathBuf,
    environment: Vec<(&'static str, &'static str)>,
    admin: Kubeconfig,
    crashed: watch::Receiver<BTreeSet<String>>,
}

impl Machine {
    /// Runs every Pod that is bound to a node, without end.
    async fn run_pods(self) {
        let (mut known, mut running) = (HashSet::new(), JoinSet::new());
        let pods = watcher(self.pods(), watcher::Config::default().labels(PODS)).default_backoff();
        let mut pods = pin!(pods.applied_objects());
        // A failed watch is started again.
        while let Some(pod) = pods.next().await {
            let Ok(pod) = pod else { continue };
            let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            if bound && pod.uid().is_some_and(|uid| known.insert(uid)) {
                running.spawn(self.clone().run(pod));
            }
            while running.try_join_next().is_some() {}
        }
    }

    /// Runs one Pod until it is gone. Reports a failure in the Pod's status, as a kubelet does.
    async fn run(self, pod: Pod) {
        let outcome = self.try_run(&pod).await;
        if let Err(problem) = outcome {
            let message = format!("{problem:#}");
            let status = json!({ "phase": "Failed", "reason": "CannotRun", "message": message });
            // There is no other place to report an error.
            let _ = self.set_status(&pod, status).await;
        }
    }

    async fn try_run(&self, pod: &Pod) -> Result<()> {
        let address = PodAddress::take()?;
        let mut process = None;
        let deleted = tokio::select! {
            deleted = self.deleted(pod) => deleted,
            outcome = self.keep_running(pod, address.ip(), &mut process) => return outcome,
        };
        // A Pod that is already gone has no time left.
        let Some(deleted) = deleted else { return Ok(()) };
        if let Some(process) = process {
            let grace = deleted.metadata.deletion_grace_period_seconds.unwrap_or_default();
            let grace = Duration::from_secs(u64::try_from(grace).unwrap_or_default());
            let pause = container::pause_before_stop(container::of(pod)?);
            sleep(pause.min(grace)).await;
            process.stop(grace.saturating_sub(pause).max(LEAST_GRACE)).await?;
        }
        drop(address);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.pods().delete(&pod.name_any(), &params).await {
            // The Pod is gone, or another one has its name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            outcome => outcome.map(drop).context("removing the Pod"),
        }
    }

    /// Waits until the Pod is being deleted. Returns the Pod in that state; `None` if it is already gone.
    async fn deleted(&self, pod: &Pod) -> Option<Pod> {
        let (api, name) = (self.pods(), pod.name_any());
        let mut states = pin!(watcher::watch_object(api, &name).default_backoff());
        while let Some(state) = states.next().await {
            let Ok(state) = state else { continue };
            let state = state.filter(|state| state.uid() == pod.uid());
            if state.as_ref().is_none_or(|state| state.metadata.deletion_timestamp.is_some()) {
                return state;
            }
        }
        None
    }

    /// Keeps the container running, and its status up to date.
    async fn keep_running(&self, pod: &Pod, address: Ipv4Addr, process: &mut Option<Process>) -> Result<()> {
        let container = container::of(pod)?;
        let instance = pod.labels().get(INSTANCE).map(String::as_str).unwrap_or_default();
        let dir = self.dir.join(pod.name_any());
        std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let started = Timestamp::now();
        let (mut restarts, mut said) = (0, None);
        loop {
            let crashed = self.crashed.borrow().contains(instance);
            match process.take_if(|running| crashed || !running.is_running()) {
                Some(ended) => {
                    ended.kill().await?;
                    restarts += 1;
                    self.say(pod, address, started, restarts, &mut said, false).await?;
                    sleep(RESTART_PAUSE).await;
                }
                None if process.is_none() && !crashed => {
                    let mut command =
                        container::command(&self.client, pod, address, &self.program, &dir, &self.admin)
                            .await?;
                    command.envs(self.environment.iter().copied());
                    *process = Some(Process::start("container", &command, &dir, Lifetime::Owned)?);
                }
                None => {}
            }
            let ready = process.is_some() && container::is_ready(container, address).await?;
            self.say(pod, address, started, restarts, &mut said, ready).await?;
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Reports whether the Pod's container is ready, if that has changed.
    async fn say(
        &self,
        pod: &Pod,
        address: Ipv4Addr,
        started: Timestamp,
        restarts: u32,
        said: &mut Option<(u32, bool)>,
        ready: bool,
    ) -> Result<()> {
        if *said == Some((restarts, ready)) {
            return Ok(());
        }
        let container = container::of(pod)?;
        let condition = |type_: &str, holds: bool| {
            let status = if holds { "True" } else { "False" };
            json!({ "type": type_, "status": status, "lastTransitionTime": Timestamp::now() })
        };
        let conditions = [("Initialized", true), ("ContainersReady", ready), ("Ready", ready)];
        let status = json!({
            "phase": "Running", "startTime": started,
            "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": conditions.map(|(type_, holds)| condition(type_, holds)),
            "containerStatuses": [{
                "name": container.name, "image": container.image, "imageID": "",
                "ready": ready, "started": true, "restartCount": restarts,
                "state": { "running": { "startedAt": started } },
            }],
        });
        self.set_status(pod, status).await?;
        *said = Some((restarts, ready));
        Ok(())
    }

    async fn set_status(&self, pod: &Pod, status: serde_json::Value) -> Result<()> {
        let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.uid() }, "status": status }));
        // A Pod that no longer exists has no status. Another watch notices the deletion.
        match self.pods().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            outcome => outcome.map(drop).context("setting the Pod's status"),
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}
