//! The operator's program, run as in a cluster.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address,
    process::{Lifetime, Process, Signal},
    proxies::without_proxies,
};
use peerpod_operator::{install, sweep::Snapshot};

use crate::{
    Metrics, http,
    installation::Testbed,
    settings::{MountedFolder, Settings},
    wait::{self, DEADLINE},
};

/// The time limit until it is ready.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The time limit of an orderly end, as a kubelet grants it.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// How the operator is to run.
#[derive(Clone, Debug)]
pub struct OperatorOptions {
    /// The program.
    pub program: PathBuf,
    /// A folder for its log and its settings, which belongs to this operator alone.
    pub dir: PathBuf,
    /// Its settings.
    pub settings: Settings,
    /// Further arguments of `run`.
    pub arguments: Vec<String>,
    /// Further environment variables.
    pub environment: Vec<(&'static str, String)>,
    /// Whether it ends with the program that starts it.
    pub lifetime: Lifetime,
}

impl OperatorOptions {
    /// The default operator. It ends with this program.
    pub fn new(program: impl Into<PathBuf>, dir: impl Into<PathBuf>, settings: Settings) -> Self {
        Self {
            program: program.into(),
            dir: dir.into(),
            settings,
            arguments: Vec::new(),
            environment: Vec::new(),
            lifetime: Lifetime::Owned,
        }
    }

    /// Makes it serve this cloud, too, with settings in further folders of its own.
    pub fn add_cloud(&mut self, cloud: &str, settings: &Settings) -> Result<()> {
        let folder = |kind: &str, data| {
            let folder = MountedFolder::create(self.dir.join(format!("{cloud}-{kind}")), data)?;
            anyhow::Ok(folder.path().display().to_string())
        };
        let (settings, credentials) =
            (folder("settings", &settings.config_map)?, folder("credentials", &settings.secret)?);
        self.arguments.push(format!("--provider={cloud}={settings},{credentials}"));
        Ok(())
    }
}

/// A started operator. Dropping it ends it if its lifetime is [`Lifetime::Owned`].
#[derive(Debug)]
pub struct Operator {
    process: Process,
    command: Command,
    dir: PathBuf,
    lifetime: Lifetime,
    metrics: SocketAddr,
    health: SocketAddr,
    status: SocketAddr,
    settings: MountedFolder,
    credentials: MountedFolder,
}

impl Operator {
    /// Starts the operator under its own `ServiceAccount`, and waits until it is ready.
    pub async fn start(testbed: &Testbed, options: &OperatorOptions) -> Result<Self> {
        let operator = Self::spawn(testbed, options).await?;
        operator.ready().await?;
        Ok(operator)
    }

    /// Starts the operator without waiting for anything.
    pub async fn spawn(testbed: &Testbed, options: &OperatorOptions) -> Result<Self> {
        let OperatorOptions { program, dir, settings, arguments, environment, lifetime } = options;
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let credentials = MountedFolder::create(dir.join("credentials"), &settings.secret)?;
        let settings = MountedFolder::create(dir.join("settings"), &settings.config_map)?;
        let [metrics, health, status] = address::unused(8080)?;
        let mut command = Command::new(program);
        without_proxies(&mut command);
        // Only this controller: many operators share a cluster's nodes, and the other controller writes to nodes.
        // An argument overrides this.
        command.env("PEERPOD_OPERATOR_CONTROLLERS", "peerpod");
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.env("KUBECONFIG", testbed.kubeconfig_of(install::NAME).await?).arg("run");
        command.arg("--settings-dir").arg(settings.path());
        command.arg("--credentials-dir").arg(credentials.path());
        command.arg("--health-addr").arg(health.to_string());
        command.arg("--metrics-addr").arg(metrics.to_string());
        command.arg("--status-addr").arg(status.to_string());
        command.args(["--log-format", "json"]).args(arguments);
        let process = start(&command, dir, *lifetime)?;
        let dir = dir.clone();
        let lifetime = *lifetime;
        Ok(Self { process, command, dir, lifetime, metrics, health, status, settings, credentials })
    }

    /// Starts it again after it has ended, with the presently mounted settings. Does not wait until it is ready.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "the operator still runs");
        self.process = start(&self.command, &self.dir, self.lifetime)?;
        Ok(())
    }

    /// Waits until it is ready.
    pub async fn ready(&self) -> Result<()> {
        let probe = || async {
            let (status, text) = self.health("/readyz").await?;
            ensure!(status == 200, "/readyz answers {status}: {text}");
            Ok(())
        };
        self.process.wait_until("the operator is ready", READY_DEADLINE, probe).await
    }

    /// Status and text of `/healthz` or `/readyz`.
    pub async fn health(&self, path: &str) -> Result<(u16, String)> {
        http::get(self.health, path).await
    }

    /// The answer of `/sweep`.
    pub async fn sweep(&self) -> Result<Snapshot> {
        let (status, text) = http::get(self.status, "/sweep").await?;
        ensure!(status == 200, "/sweep answers {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("/sweep answers {text}"))
    }

    /// The answer of `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (status, text) = http::get(self.metrics_address(), "/metrics").await?;
        ensure!(status == 200, "/metrics answers {status}: {text}");
        Metrics::parse(text)
    }

    /// The address of its metrics.
    pub fn metrics_address(&self) -> SocketAddr {
        self.metrics
    }

    /// Replaces the mounted settings, as a kubelet does after a change of `ConfigMap` and `Secret`. (It replaces one after the other.)
    pub fn mount(&mut self, settings: &Settings) -> Result<()> {
        self.settings.replace(&settings.config_map)?;
        self.credentials.replace(&settings.secret)
    }

    /// Waits until it has accepted and rejected so many settings, including those of its start.
    pub async fn reloaded(&self, accepted: u32, rejected: u32) -> Result<()> {
        wait::eventually("the settings were read again", DEADLINE, async || {
            let metrics = self.metrics().await?;
            for (result, count) in [("accepted", accepted), ("rejected", rejected)] {
                let seen = metrics.sum("peerpod_operator_settings_reloads_total", &[("result", result)]);
                ensure!(seen > f64::from(count) - 0.5, "{seen} were {result}");
            }
            Ok(())
        })
        .await
    }

    /// The process, to be paused, resumed or measured.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The id of the process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// The whole log so far, a JSON object on each line.
    pub fn log(&self) -> Result<String> {
        let log = self.process.log();
        let mut text = std::fs::read(log).with_context(|| format!("reading {}", log.display()))?;
        // The last line may be half written.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1));
        String::from_utf8(text).with_context(|| format!("reading {}", log.display()))
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Kills it: SIGKILL.
    pub async fn kill(&self) -> Result<()> {
        self.process.kill().await
    }

    /// Ends it in order: SIGTERM. Kills it if it takes longer than a kubelet would wait.
    pub async fn stop(&self) -> Result<ExitStatus> {
        self.process.stop(STOP_GRACE).await?.context("how the operator ended is not known")
    }

    /// Waits until a call to a cloud is in progress.
    pub async fn calls(&self) -> Result<()> {
        wait::eventually("a call to the cloud is under way", DEADLINE, async || {
            let metrics = self.metrics().await?;
            ensure!(metrics.sum("peerpod_operator_provider_calls_in_flight", &[]) > 0.5);
            Ok(())
        })
        .await
    }

    /// Pauses it, with its connections open.
    pub fn pause(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Resumes it.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }
}

fn start(command: &Command, dir: &Path, lifetime: Lifetime) -> Result<Process> {
    Process::start("operator", command, dir, lifetime)
}
