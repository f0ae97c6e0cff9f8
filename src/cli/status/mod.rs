//! `status`: one look at everything, the worst first.
//!
//! | file | what it does |
//! |---|---|
//! | `observe.rs`, `leader.rs` | read the cluster, and what the leading operator has seen of the clouds |
//! | `report.rs`, `peer_pods.rs`, `capacity.rs`, `problem.rs` | what that means (pure) |
//! | `text.rs`, `output.rs` | print it |

mod capacity;
mod leader;
mod observe;
mod output;
mod peer_pods;
mod problem;
mod report;
mod text;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, builder::NonEmptyStringValueParser};
use jiff::Timestamp;
use kube::Client;
use operator_kit::{client, text::non_empty};
use tokio::time::{Instant, sleep};

pub use self::output::StatusFormat;
use self::{observe::observe, report::Report};
use super::{serving::block_on, terminal};
use crate::names::LEASE;

/// For `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  the report is printed, whatever it says
  1  the PeerPods could not be read
  2  the arguments are invalid";

/// The time between two reports of `--watch`, at least.
const PAUSE: Duration = Duration::from_secs(5);

/// In a large cluster reports are less frequent, so that the API server has this many times as long for other clients.
const SHARE: u32 = 10;

/// The name by which kubectl finds its plugin for `kubectl peerpods`.
pub(super) const PLUGIN: &str = "kubectl-peerpods";

/// `kubectl peerpods`.
#[derive(Debug, Parser)]
#[command(
    name = PLUGIN,
    bin_name = "kubectl peerpods",
    version,
    about = "Show PeerPods, VMs, capacity and the operator, the worst first",
    after_help = EXIT_CODES
)]
pub(super) struct Plugin {
    #[command(flatten)]
    pub(super) status: StatusArgs,
}

/// Arguments of `status`. What kubectl has, too, is called as there and is no environment variable.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Namespace of the PeerPods [default: the namespace of the context]
    #[arg(short, long, value_name = "NS")]
    pub namespace: Option<String>,

    /// Show the PeerPods of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,

    /// Format of the report
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    pub output: StatusFormat,

    /// Show the report again every 5 seconds, or less often if it takes long to make
    #[arg(short, long)]
    pub watch: bool,

    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// The kubeconfig [default: that of KUBECONFIG, or else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Where the operator is.
    #[command(flatten)]
    pub installation: InstallationArgs,
}

/// Where the operator is.
#[derive(Clone, Debug, Args)]
pub struct InstallationArgs {
    /// The operator's namespace
    #[arg(
        id = "operator-namespace",
        long = "operator-namespace",
        value_name = "NS",
        env = "PEERPOD_OPERATOR_NAMESPACE",
        default_value = crate::NAMESPACE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub namespace: String,

    /// Name of the operator's lease
    #[arg(
        long,
        value_name = "N",
        env = "PEERPOD_OPERATOR_LEASE_NAME",
        default_value = LEASE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub lease_name: String,

    /// Namespace of the lease [default: the value of --operator-namespace]
    #[arg(
        long,
        value_name = "NS",
        env = "PEERPOD_OPERATOR_LEASE_NAMESPACE",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub lease_namespace: Option<String>,

    /// Port of run's --status-addr
    #[arg(
        id = "status-port",
        long = "status-port",
        value_name = "PORT",
        env = "PEERPOD_OPERATOR_STATUS_PORT",
        default_value_t = super::run::STATUS_PORT
    )]
    pub port: u16,
}

impl InstallationArgs {
    fn lease_namespace(&self) -> &str {
        self.lease_namespace.as_deref().unwrap_or(&self.namespace)
    }
}

pub(super) fn status(args: &StatusArgs) -> ExitCode {
    block_on(show(args), |problem| terminal::problem("status", problem))
}

async fn show(args: &StatusArgs) -> Result<(), String> {
    // As for kubectl, an empty one counts as none.
    let kubeconfig = args.kubeconfig.as_deref().filter(|path| !path.as_os_str().is_empty());
    let client = client::for_context(kubeconfig, non_empty(args.context.as_deref())).await;
    let client = client.map_err(|problem| problem.to_string())?;
    let named = non_empty(args.namespace.as_deref()).unwrap_or(client.default_namespace());
    let namespace = (!args.all_namespaces).then_some(named);
    loop {
        let begun = Instant::now();
        let (report, problem) = Box::pin(report(&client, args, namespace)).await;
        let print = if args.watch { output::redraw } else { output::print };
        if !terminal::reported(print(&report, args.output, namespace))? {
            return Ok(());
        }
        match problem {
            _ if args.watch => {}
            Some(problem) => return Err(format!("reading the PeerPods failed: {problem}")),
            None => return Ok(()),
        }
        drop(report);
        sleep(PAUSE.max(begun.elapsed() * SHARE)).await;
    }
}

/// The report, and why it lacks the PeerPods.
async fn report(client: &Client, args: &StatusArgs, namespace: Option<&str>) -> (Report, Option<String>) {
    let observed = Box::pin(observe(client, &args.installation, namespace)).await;
    let problem = observed.peer_pods.as_ref().err().cloned();
    (Report::new(observed, &args.installation.namespace, namespace, Timestamp::now()), problem)
}
