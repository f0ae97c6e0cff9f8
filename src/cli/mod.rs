//! The command line. Every flag is an environment variable too: `--log-format` is `PEERPOD_OPERATOR_LOG_FORMAT`. The exception is
//! flags of `status` that kubectl has, too.

mod apply;
mod check;
mod drain;
mod retry;
mod run;
mod serving;
mod shell;
mod status;
mod sweep;
mod table;
mod terminal;
mod webhook;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, builder::NonEmptyStringValueParser};
use jiff::SignedDuration;
use operator_kit::shutdown;

pub use apply::{ApplyArgs, PERMISSION as APPLY_PERMISSION, ROLLOUT_PERMISSION};
pub use check::{CheckArgs, OutputFormat};
pub use clap_complete::Shell;
pub use drain::{DrainArgs, PERMISSIONS as DRAIN_PERMISSIONS};
pub use run::{ControllerName, LEASE_PERMISSIONS, RunArgs};
pub use serving::ServingArgs;
pub use shell::{CompletionsArgs, ManArgs, completions, man_pages};
pub use status::{InstallationArgs, StatusArgs, StatusFormat};
pub use sweep::{SweepArgs, SweepFormat};
pub use webhook::WebhookArgs;

use crate::settings::Folders;

/// Deletes the VMs of peer pods that no longer exist.
#[derive(Debug, Parser)]
#[command(name = "peerpod-operator", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the controllers.
    // The last of several values counts: an administrator adds flags to those of the installation.
    #[command(after_help = LOGGING_HELP, args_override_self = true)]
    Run(Box<RunArgs>),
    /// Serve the admission webhook that turns Pods into peer pods.
    #[command(after_help = LOGGING_HELP)]
    Webhook(Box<WebhookArgs>),
    /// Check what `run` would use: each setting, the connection to the cloud, and the rights there.
    ///
    /// It changes nothing. It reads from Kubernetes only where it must: byom has its pool there, ibmcloud may take its region from the
    /// nodes, and settings that say of which cluster the VMs are, such as TAGS, are compared with this cluster.
    #[command(after_help = check::EXIT_CODES)]
    Check(CheckArgs),
    /// Show PeerPods, VMs, capacity and the operator, the worst first.
    ///
    /// It only reads, with the rights of its caller, and needs no credentials of a cloud: what clouds have is what the operator saw
    /// last. A program of the name `kubectl-peerpods` does the same, so that it is `kubectl peerpods`.
    #[command(after_help = status::EXIT_CODES)]
    Status(StatusArgs),
    /// Search the cloud for VMs that no PeerPod tracks, and for what is left of VMs, and delete what is provably this cluster's.
    ///
    /// It lists the cloud twice, prints what both lists have, and deletes what `SWEEP_TAG`, `SWEEP_EXCLUSIVE` or the tag
    /// `caa-cluster-uid` prove to be this cluster's. It needs the operator's rights and settings: run it in the operator's Pod.
    #[command(after_help = sweep::EXIT_CODES)]
    Sweep(SweepArgs),
    /// Prepare the operator's removal: wait for deletions in progress, then delete every PeerPodConfig.
    ///
    /// If there are PeerPods of Pods that still exist, running or ended, it names them and deletes nothing: without the operator
    /// their VMs may never be deleted.
    #[command(after_help = drain::EXIT_CODES)]
    Drain(DrainArgs),
    /// Apply a PeerPodConfig from a file, also while its CRD is being installed.
    ///
    /// It sets the fields that the file names, whichever program wrote them before, and keeps all other fields. If the
    /// PeerPodConfig is being deleted, it waits and creates the PeerPodConfig again.
    #[command(after_help = apply::EXIT_CODES)]
    Apply(ApplyArgs),
    /// Print the script that completes this program's command line in a shell.
    Completions(CompletionsArgs),
    /// Write the manual's pages of this program and its commands.
    Man(ManArgs),
}

/// Where settings are: the same for all subcommands that use them.
#[derive(Clone, Debug, Args)]
pub struct FolderArgs {
    /// Folder with the provider's settings: the mounted ConfigMap `peer-pods-cm`, one file per key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_SETTINGS_DIR", default_value = SETTINGS_DIR)]
    pub settings_dir: PathBuf,

    /// Folder with the provider's credentials: the mounted Secret `peer-pods-secret`, one file per key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_CREDENTIALS_DIR", default_value = CREDENTIALS_DIR)]
    pub credentials_dir: PathBuf,
}

/// Where the operator is: the same for all subcommands that act in its place.
#[derive(Clone, Debug, Args)]
pub struct NamespaceArgs {
    /// The operator's namespace
    #[arg(
        long,
        value_name = "NS",
        env = "PEERPOD_OPERATOR_NAMESPACE",
        default_value = crate::NAMESPACE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub namespace: String,
}

impl From<FolderArgs> for Folders {
    fn from(args: FolderArgs) -> Self {
        Self { settings: args.settings_dir, credentials: Some(args.credentials_dir) }
    }
}

/// Parses a duration. It must be at least one second, as the timestamps of deletions have whole seconds.
fn patience(text: &str) -> Result<Duration, String> {
    duration(text, SignedDuration::from_secs(1), SignedDuration::from_hours(24))
}

/// Reads a duration in these bounds.
fn duration(text: &str, least: SignedDuration, most: SignedDuration) -> Result<Duration, String> {
    let duration: SignedDuration =
        text.parse().map_err(|_| "not a duration: write it as in 5m, 90s or 1h 30m".to_owned())?;
    match Duration::try_from(duration) {
        Ok(valid) if (least..=most).contains(&duration) => Ok(valid),
        _ => Err(format!("it must be from {least:#} to {most:#}")),
    }
}

/// The end of `--help`.
const LOGGING_HELP: &str = "\
Logging:
  PEERPOD_OPERATOR_LOG, or else RUST_LOG, is the filter for log lines, as in info,peerpod_operator=debug [default: info]";

/// Where the generated Deployment mounts the settings.
pub const SETTINGS_DIR: &str = "/etc/peerpod-operator/settings";

/// Where the generated Deployment mounts the credentials.
pub const CREDENTIALS_DIR: &str = "/etc/peerpod-operator/credentials";

impl Cli {
    /// Parses the program's arguments, of which the first is its own name. Under the name of a kubectl plugin it is `status`.
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let name = arguments.first().and_then(|name| Path::new(name).file_stem());
        if name.is_some_and(|name| name == status::PLUGIN) {
            let plugin = status::Plugin::try_parse_from(arguments)?;
            return Ok(Self { command: Command::Status(plugin.status) });
        }
        Self::try_parse_from(arguments)
    }

    /// Runs the command and returns its exit code: 0, 1 if something failed, 2 if the arguments are invalid; `check` has codes of
    /// its own.
    pub fn execute(self) -> ExitCode {
        let ends_in_order = matches!(self.command, Command::Run(_) | Command::Webhook(_));
        if !ends_in_order && let Err(problem) = shutdown::exit_on_signals_in_container() {
            terminal::problem("signals", &problem.to_string());
        }
        match self.command {
            Command::Run(args) => run::run(*args),
            Command::Webhook(args) => webhook::webhook(*args),
            Command::Check(args) => check::check(args),
            Command::Status(args) => status::status(&args),
            Command::Sweep(args) => sweep::sweep(args),
            Command::Drain(args) => drain::drain(&args),
            Command::Apply(args) => apply::apply(&args),
            Command::Completions(args) => shell::print(args),
            Command::Man(args) => shell::write(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// What kubectl has, too.
    const KUBECTL: [&str; 6] = ["namespace", "all-namespaces", "output", "watch", "context", "kubeconfig"];

    #[test]
    fn a_program_of_the_plugins_name_is_status() {
        let read = |arguments: &[&str]| Cli::from_arguments(arguments.iter().map(OsString::from));
        for arguments in
            [["/usr/bin/kubectl-peerpods", "-A"].as_slice(), &["peerpod-operator", "status", "-A"]]
        {
            let Command::Status(args) = read(arguments).unwrap().command else { panic!("{arguments:?}") };
            assert!(args.all_namespaces);
        }
        assert!(read(&["kubectl-peerpods", "status"]).is_err() && read(&["peerpod-operator", "-A"]).is_err());
        let help = read(&["kubectl-peerpods", "--help"]).unwrap_err().to_string();
        assert!(help.contains("Usage: kubectl peerpods [OPTIONS]") && help.contains("Exit codes:"), "{help}");
    }

    #[test]
    fn every_flag_is_an_environment_variable_of_its_name() {
        for command in Cli::command().get_subcommands() {
            for flag in command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_env()))) {
                let (name, env) = flag;
                if command.get_name() == "status" && KUBECTL.contains(&name) {
                    assert_eq!(env, None, "{name}");
                } else if !["help", "version"].contains(&name) {
                    let name = name.replace('-', "_").to_uppercase();
                    let expected = match &*name {
                        // Upstream's names, and the usual name of the variable with a Pod's own name.
                        "TLS_MIN_VERSION" | "TLS_CIPHER_SUITES" | "POD_NAME" => name,
                        "RUNTIME_CLASS" => "TARGET_RUNTIMECLASS".to_owned(),
                        "EXTENDED_RESOURCE" => "POD_VM_EXTENDED_RESOURCE".to_owned(),
                        "ADAPTOR_IMAGE" => "RELATED_IMAGE_CAA".to_owned(),
                        // As for the other commands, which have only this one.
                        "OPERATOR_NAMESPACE" => "PEERPOD_OPERATOR_NAMESPACE".to_owned(),
                        _ => format!("PEERPOD_OPERATOR_{name}"),
                    };
                    assert_eq!(env.unwrap().to_str().unwrap(), expected);
                }
            }
        }
        Cli::command().debug_assert();
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_counts() {
        let installed = ["--leader-elect=true", "--log-format=json", "--controllers=peerpod,peerpodconfig"];
        let further = ["--leader-elect=false", "--log-format=text", "--controllers=peerpod"];
        let arguments = ["peerpod-operator", "run"].into_iter().chain(installed).chain(further);
        let Command::Run(args) = Cli::try_parse_from(arguments).unwrap().command else { panic!() };
        assert!(!args.leader_elect);
        assert_eq!(args.serving.log_format, operator_kit::telemetry::LogFormat::Text);
        assert_eq!(args.controllers, [ControllerName::PeerPod]);
    }

    #[test]
    fn the_help_names_what_chooses_the_log() {
        use operator_kit::telemetry::{DEFAULT_FILTER, filter_variables};
        let [own, common] = filter_variables(env!("CARGO_CRATE_NAME"));
        for named in [own, common, format!("[default: {DEFAULT_FILTER}]")] {
            assert!(LOGGING_HELP.contains(&named), "{named}");
        }
    }

    #[test]
    fn a_duration_is_read_and_an_invalid_one_is_explained() {
        for (text, seconds) in
            [("5m", 300), ("90s", 90), ("1h30m", 5400), ("1h 30m", 5400), ("2 minutes", 120)]
        {
            assert_eq!(patience(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, words) in [
            ("", "as in 5m"),
            ("5", "as in 5m"),
            ("soon", "as in 5m"),
            ("0s", "from 1s to 24h"),
            ("500ms", "from 1s to 24h"),
            ("-5m", "from 1s to 24h"),
            ("25h", "from 1s to 24h"),
            ("9999999999999h", "from 1s to 24h"),
        ] {
            let problem = patience(text).unwrap_err();
            assert!(problem.contains(words), "{text}: {problem}");
        }
        let problem = Cli::try_parse_from(["peerpod-operator", "run", "--slow-after=soon"]).unwrap_err();
        let problem = problem.to_string();
        assert!(problem.contains("'soon' for '--slow-after <DURATION>': not a duration"), "{problem}");
    }
}
