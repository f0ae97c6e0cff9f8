//! An operator as a program: its command line, and [its surroundings](crate#an-operator) from the start to the end.
//!
//! ```no_run
//! # use operator_kit::{controller::Host, metrics::Registry, installation::Operator, program};
//! # fn operator() -> serde_json::Result<Operator> { unimplemented!() }
//! # fn metrics(_: &mut Registry) {}
//! # async fn controllers(_: Host, _: ()) {}
//! fn main() -> std::process::ExitCode {
//!     program::main(operator, metrics, controllers)
//! }
//! ```

use std::{
    error::Error,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use prometheus_client::registry::Registry;
use tracing::{error, info};

use crate::{
    Leadership, ListenAt, client,
    controller::Host,
    crd::Crds,
    http,
    installation::Operator,
    lease::Election,
    lifecycle, process, shutdown,
    telemetry::{self, LogFormat},
};

/// The command line of an operator.
#[derive(Parser)]
enum Cli {
    /// Runs the operator
    // The last of several values counts: a user adds flags to those of an installation or of a task.
    #[command(args_override_self = true)]
    Run(Options),
    /// Writes the files that install the operator
    Manifests(Manifests),
}

/// How an operator runs.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Address of /healthz and /readyz. :PORT means every address
    #[arg(long, value_name = "[IP]:PORT", default_value = ":8081")]
    pub health_addr: ListenAt,

    /// Address of /metrics. :PORT means every address
    #[arg(long, value_name = "[IP]:PORT", default_value = ":8080")]
    pub metrics_addr: ListenAt,

    /// Act only while holding the lease. If false, run only one replica
    #[arg(long, value_name = "true|false", action = ArgAction::Set, default_value_t = true)]
    pub leader_elect: bool,

    /// Namespace of the lease
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE", default_value = "default")]
    pub lease_namespace: String,

    /// Format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// Where files are written.
#[derive(Clone, Debug, Args)]
struct Manifests {
    /// Writes nothing; fails if a file is not what would be written
    #[arg(long)]
    check: bool,
    /// A folder for them alone. Files in it that this command wrote before and no longer writes are removed
    folder: PathBuf,
}

/// Does what the command line says: `run`, or `manifests` for the files that install the operator.
///
/// A panic ends the process. `metrics` registers the operator's metrics. `controllers` ends after the [`Host`]'s shutdown.
pub fn main<M, F: Future<Output = ()>>(
    operator: fn() -> serde_json::Result<Operator>,
    metrics: impl FnOnce(&mut Registry) -> M,
    controllers: impl FnOnce(Host, M) -> F,
) -> ExitCode {
    shutdown::exit_on_panic();
    let operator = match operator() {
        Ok(operator) => operator,
        Err(error) => {
            // There is no log yet: its targets are the operator's.
            let _ = writeln!(io::stderr(), "the operator cannot describe its installation: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = lifecycle::block_on(dispatch(&operator, metrics, controllers));
    match ended.map_err(Into::into).and_then(|ended| ended) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn dispatch<M, F: Future<Output = ()>>(
    operator: &Operator,
    metrics: impl FnOnce(&mut Registry) -> M,
    controllers: impl FnOnce(Host, M) -> F,
) -> Result<(), Box<dyn Error>> {
    let command = Cli::command().name(operator.name).about(operator.about).version(operator.version);
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match cli {
        Cli::Run(options) => {
            telemetry::init(operator.program, options.log_format);
            run(operator.name, operator.crds, &options, metrics, controllers).await
        }
        Cli::Manifests(Manifests { check, folder }) => {
            telemetry::init(operator.program, LogFormat::Text);
            let files = operator.files()?;
            operator.generated(&folder).check_or_write(check, &files)?;
            info!(folder = %folder.display(), files = files.len(), "up to date");
            Ok(())
        }
    }
}

/// Runs an operator until it is stopped: health and metrics, leader election by the Lease `name`, and its controllers. It is an
/// error if the controllers end before that. `crds` are those of the [`Host`]. A host with a command line of its own calls this
/// instead of [`main`], in [`lifecycle::block_on`], and before it [`shutdown::exit_on_panic`] and [`telemetry::init`]: otherwise there
/// is no log, whatever the options say.
///
/// The process takes the Lease once everything that its [`http::Readiness`] needs is met, of which there must be at least one:
/// [`Host::cached`] adds one for each kind.
pub async fn run<M, F: Future<Output = ()>>(
    name: &str,
    crds: &'static [Crds],
    options: &Options,
    metrics: impl FnOnce(&mut Registry) -> M,
    controllers: impl FnOnce(Host, M) -> F,
) -> Result<(), Box<dyn Error>> {
    let shutdown = shutdown::on_signals()?;
    let (mut registry, readiness) = (Registry::default(), http::Readiness::default());
    process::register(&mut registry);
    let metrics = metrics(&mut registry);
    let endpoints = http::Endpoints {
        health: options.health_addr.chosen_by("--health-addr"),
        metrics: options.metrics_addr.chosen_by("--metrics-addr"),
        secure: None,
        page: None,
        readiness: readiness.clone(),
        registry,
    };
    let servers = endpoints.serve(&shutdown)?;
    // A kubeconfig's exec plugin may ask a person, and take any time.
    let Some(client) = shutdown.run_until_cancelled(client::infer()).await.transpose()? else {
        return Ok(());
    };
    let election = options.leader_elect.then(|| {
        Election::new(client.clone(), &options.lease_namespace, name, &process::name())
            .with_namespace_flag("--lease-namespace")
    });
    let leadership = election.as_ref().map_or_else(Leadership::unlimited, Election::leadership);
    let host = Host { client, crds, leadership, readiness: readiness.clone(), shutdown: shutdown.clone() };
    // The future is large, and waits most of the time.
    let controllers = Box::pin(controllers(host, metrics));
    lifecycle::run(controllers, election, readiness.ready(), &shutdown).await;
    let was_asked = shutdown.is_cancelled();
    // Otherwise the servers would stay, and the process would look ready without work.
    shutdown.cancel();
    servers.stopped().await;
    if was_asked { Ok(()) } else { Err("the controllers ended before the shutdown".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_counts() {
        let flags = ["--leader-elect=false", "--log-format=json", "--leader-elect=true", "--log-format=text"];
        let Cli::Run(options) = Cli::try_parse_from(["operator", "run"].into_iter().chain(flags)).unwrap()
        else {
            panic!()
        };
        assert!(options.leader_elect);
        assert_eq!(options.log_format, LogFormat::Text);
    }
}
