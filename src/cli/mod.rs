//! The command line. Every flag is an environment variable too: `--log-format` is `PEERPOD_OPERATOR_LOG_FORMAT`.

mod client;
mod run;

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::runtime::{lease, telemetry::LogFormat};

/// Deletes the virtual machines of peer pods that are gone.
#[derive(Debug, Parser)]
#[command(name = "peerpod-operator", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers until told to stop.
    Run(RunArgs),
}

/// What `run` is told.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Folder with the provider's settings: the mounted ConfigMap `peer-pods-cm`, a file for each key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_SETTINGS_DIR", default_value = SETTINGS_DIR)]
    pub settings_dir: PathBuf,

    /// Folder with the provider's credentials: the mounted Secret `peer-pods-secret`, a file for each key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_CREDENTIALS_DIR", default_value = CREDENTIALS_DIR)]
    pub credentials_dir: PathBuf,

    /// The namespace that the operator runs in
    #[arg(long, value_name = "NS", env = "PEERPOD_OPERATOR_NAMESPACE", default_value = crate::NAMESPACE)]
    pub namespace: String,

    /// Where /healthz and /readyz are served
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "PEERPOD_OPERATOR_HEALTH_ADDR",
        default_value = "0.0.0.0:8081"
    )]
    pub health_addr: SocketAddr,

    /// Where /metrics is served
    #[arg(
        long,
        value_name = "IP:PORT",
        env = "PEERPOD_OPERATOR_METRICS_ADDR",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_addr: SocketAddr,

    /// Act only while holding the lease; without, one replica alone may run
    #[arg(
        long,
        value_name = "true|false",
        env = "PEERPOD_OPERATOR_LEADER_ELECT",
        action = clap::ArgAction::Set,
        default_value_t = true
    )]
    pub leader_elect: bool,

    /// Name of the lease. That of another reaper keeps the two from acting at once
    #[arg(long, value_name = "N", env = "PEERPOD_OPERATOR_LEASE_NAME", default_value = lease::DEFAULT_NAME)]
    pub lease_name: String,

    /// Namespace of the lease [default: that of --namespace]
    #[arg(long, value_name = "NS", env = "PEERPOD_OPERATOR_LEASE_NAMESPACE")]
    pub lease_namespace: Option<String>,

    /// The controllers to run
    #[arg(long, env = "PEERPOD_OPERATOR_CONTROLLERS", value_delimiter = ',', default_value = "peerpod")]
    pub controllers: Vec<ControllerName>,

    /// How many calls to one cloud may be under way at once
    #[arg(long, value_name = "N", env = "PEERPOD_OPERATOR_CONCURRENCY", default_value = "64")]
    pub concurrency: NonZeroU16,

    /// How log lines look
    #[arg(long, env = "PEERPOD_OPERATOR_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// Where the generated Deployment mounts the settings.
pub const SETTINGS_DIR: &str = "/etc/peerpod-operator/settings";

/// Where the generated Deployment mounts the credentials.
pub const CREDENTIALS_DIR: &str = "/etc/peerpod-operator/credentials";

/// The controllers that `--controllers` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ControllerName {
    /// Deletes machines whose Pods are gone
    #[value(name = crate::peerpod::NAME)]
    PeerPod,
    /// Installs cloud-api-adaptor; not in this version
    #[value(name = "peerpodconfig")]
    PeerPodConfig,
}

impl Cli {
    /// Does what was asked for and tells how it ended: 0, 1 where something failed, 2 where the arguments cannot work.
    pub fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_flag_is_an_environment_variable_of_its_name() {
        let run = Cli::command().find_subcommand("run").unwrap().clone();
        for flag in run.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_env()))) {
            let (name, env) = flag;
            if !["help", "version"].contains(&name) {
                let expected = format!("PEERPOD_OPERATOR_{}", name.replace('-', "_").to_uppercase());
                assert_eq!(env.unwrap().to_str().unwrap(), expected);
            }
        }
        Cli::command().debug_assert();
    }
}
