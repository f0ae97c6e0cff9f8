//! `cargo xtask example`: the operators in `examples/`, on the cluster of the current kubeconfig or on one of their own.

use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use cluster::{Cluster, named::Up};
use operator_kit::installation::Operator;

use crate::{
    current::{self, developers},
    demo, repository,
};

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
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Podset, Self::Ptemplate];

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

    /// The folder of the files that install it.
    pub(crate) fn manifests(self) -> PathBuf {
        repository::root().join("examples").join(self.name()).join("manifests")
    }

    fn definition(self) -> PathBuf {
        self.manifests().join("crd.yaml")
    }
}

pub(crate) async fn run(task: Task) -> Result<()> {
    let cluster = match &task.cluster {
        // The story has a control plane of its own.
        Some(name) if !matches!(task.action, Action::Demo) => {
            match crate::cluster::start(name, false).await? {
                Up::Started(cluster) | Up::Already(cluster) => Some(cluster),
            }
        }
        _ => None,
    };
    // A user who has a cluster has a kubectl, too. To build one would take minutes.
    let program = cluster.as_ref().map_or(Path::new("kubectl"), Cluster::kubectl_program);
    let kubeconfig = cluster.as_ref().map(|cluster| ("KUBECONFIG", cluster.kubeconfig()));
    let kubectl = |arguments: &[&str]| {
        let mut kubectl = Command::new(program);
        kubectl.args(arguments).arg("--filename").arg(task.example.definition()).envs(kubeconfig.clone());
        current::kubectl_ended(&mut kubectl)
    };
    match task.action {
        Action::Install => {
            kubectl(&["apply", "--server-side", "--force-conflicts"])?;
            kubectl(&["wait", "--for=condition=Established", "--timeout=60s"])
        }
        Action::Demo => match task.example {
            Example::Podset => demo::podset::run().await,
            Example::Ptemplate => demo::ptemplate::run().await,
        },
        Action::Uninstall => kubectl(&["delete", "--ignore-not-found"]),
        Action::Run { arguments } => {
            let mut operator = developers(task.example.name())?;
            operator.args(arguments).envs(kubeconfig);
            // It replaces this process, and so gets its signals.
            Err(operator.exec()).context("running the operator")
        }
    }
}
