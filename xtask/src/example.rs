//! `cargo xtask example`: the operators in `examples/`, on the cluster of the current kubeconfig or on one of their own.

use std::{os::unix::process::CommandExt as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use cluster::{named::Up, tools::Tools};
use operator_kit::installation::Operator;

use crate::{current::developers, demo, repository};

/// What to do with an example.
#[derive(Args)]
pub(crate) struct Task {
    /// The operator
    #[arg(value_enum)]
    example: Example,
    /// A cluster of `cargo xtask cluster`, which is started if need be, instead of that of the current kubeconfig
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Example {
    Podset,
    Ptemplate,
}

#[derive(Subcommand)]
enum Action {
    /// Installs the custom resource definition
    Install,
    /// Runs the operator on this machine, until Ctrl-C
    Run {
        /// Further arguments of the operator
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Plays the operator's story on a control plane of its own
    Demo,
    /// Removes the custom resource definition, and with it all objects of its kind
    Uninstall,
}

impl Example {
    /// The name of the package, and of the folder in `examples/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Podset => "podset",
            Self::Ptemplate => "ptemplate",
        }
    }

    /// The description of its installation.
    pub(crate) fn operator(self) -> Result<Operator> {
        Ok(match self {
            Self::Podset => podset::operator(),
            Self::Ptemplate => ptemplate::operator(),
        }?)
    }

    fn definition(self) -> PathBuf {
        repository::root().join("examples").join(self.name()).join("manifests/crd.yaml")
    }
}

pub(crate) async fn run(task: Task) -> Result<()> {
    let kubeconfig = match &task.cluster {
        Some(name) => match crate::cluster::start(name, false).await? {
            Up::Started(cluster) | Up::Already(cluster) => Some(cluster.kubeconfig()),
        },
        None => None,
    };
    let kubectl = async |arguments: &[&str]| {
        let mut kubectl = Command::new(&Tools::ensure().await?.kubectl);
        kubectl.args(arguments).arg("--filename").arg(task.example.definition());
        kubectl.envs(kubeconfig.iter().map(|path| ("KUBECONFIG", path)));
        let status = kubectl.status().context("running kubectl")?;
        ensure!(status.success(), "`kubectl {}` failed: see above", arguments.join(" "));
        Ok(())
    };
    match task.action {
        Action::Install => {
            kubectl(&["apply", "--server-side", "--force-conflicts"]).await?;
            kubectl(&["wait", "--for=condition=Established", "--timeout=60s"]).await
        }
        Action::Demo => match task.example {
            Example::Podset => demo::podset::run().await,
            Example::Ptemplate => demo::ptemplate::run().await,
        },
        Action::Uninstall => kubectl(&["delete", "--ignore-not-found"]).await,
        Action::Run { arguments } => {
            let mut operator = developers(task.example.name())?;
            operator.args(arguments).envs(kubeconfig.iter().map(|path| ("KUBECONFIG", path)));
            // It replaces this process, and so gets its signals.
            Err(operator.exec()).context("running the operator")
        }
    }
}
