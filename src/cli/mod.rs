//! The command line. Every flag is an environment variable too: `--log-format` is `PEERPOD_OPERATOR_LOG_FORMAT`.

mod apply;
mod check;
mod client;
mod drain;
mod run;
mod serving;
mod webhook;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use jiff::SignedDuration;

pub use apply::{ApplyArgs, PERMISSIONS as APPLY_PERMISSIONS};
pub use drain::{DrainArgs, PERMISSIONS as DRAIN_PERMISSIONS};
pub use serving::ServingArgs;
pub use webhook::{SizingName, WebhookArgs};

use crate::{peerpodconfig, provider::Limits, runtime::lease, settings::Folders};

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
    Run(Box<RunArgs>),
    /// Serve the admission that turns Pods into peer pods, until told to stop.
    Webhook(Box<WebhookArgs>),
    /// Check what `run` would use: the settings key by key, the cloud, and what may be done there.
    ///
    /// Nothing is changed, and Kubernetes is not asked.
    #[command(after_help = check::EXIT_CODES)]
    Check(CheckArgs),
    /// Prepare the operator's removal: wait for deletions that are under way, and delete every PeerPodConfig.
    ///
    /// Where PeerPods of running Pods are left it says so, and deletes nothing: without the operator nobody might delete
    /// their machines.
    #[command(after_help = drain::EXIT_CODES)]
    Drain(DrainArgs),
    /// Bring a PeerPodConfig to the cluster as a file has it, also where its definition is being made.
    ///
    /// The fields that the file names become what it says, whoever wrote them; those that others wrote besides stay. One that
    /// is being deleted is made anew.
    #[command(after_help = apply::EXIT_CODES)]
    Apply(ApplyArgs),
}

/// Where settings are: the same for all subcommands that use them.
#[derive(Clone, Debug, Args)]
pub struct FolderArgs {
    /// Folder with the provider's settings: the mounted ConfigMap `peer-pods-cm`, a file for each key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_SETTINGS_DIR", default_value = SETTINGS_DIR)]
    pub settings_dir: PathBuf,

    /// Folder with the provider's credentials: the mounted Secret `peer-pods-secret`, a file for each key
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_CREDENTIALS_DIR", default_value = CREDENTIALS_DIR)]
    pub credentials_dir: PathBuf,
}

impl From<FolderArgs> for Folders {
    fn from(args: FolderArgs) -> Self {
        Self { settings: args.settings_dir, credentials: Some(args.credentials_dir) }
    }
}

/// What `check` is told.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The folders that are checked.
    #[command(flatten)]
    pub folders: FolderArgs,

    /// How the report looks
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        env = "PEERPOD_OPERATOR_OUTPUT",
        value_enum,
        default_value = "text"
    )]
    pub output: OutputFormat,
}

/// How a report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people, in colour on a terminal
    Text,
    /// One JSON document
    Json,
}

/// What `run` is told.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The folders that are read, and read again when they change.
    #[command(flatten)]
    pub folders: FolderArgs,

    /// The namespace that the operator runs in
    #[arg(long, value_name = "NS", env = "PEERPOD_OPERATOR_NAMESPACE", default_value = crate::NAMESPACE)]
    pub namespace: String,

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
    #[arg(
        long,
        value_name = "N",
        env = "PEERPOD_OPERATOR_LEASE_NAME",
        default_value = lease::DEFAULT_NAME,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub lease_name: String,

    /// Namespace of the lease [default: that of --namespace]
    #[arg(
        long,
        value_name = "NS",
        env = "PEERPOD_OPERATOR_LEASE_NAMESPACE",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub lease_namespace: Option<String>,

    /// The controllers to run
    #[arg(
        long,
        env = "PEERPOD_OPERATOR_CONTROLLERS",
        value_delimiter = ',',
        default_value = "peerpod,peerpodconfig"
    )]
    pub controllers: Vec<ControllerName>,

    /// Name of the Pod that it runs in
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,

    /// The image that the webhook of a PeerPodConfig runs [default: that of its own Pod]
    #[arg(long, value_name = "IMAGE", env = "PEERPOD_OPERATOR_IMAGE")]
    pub image: Option<String>,

    /// cloud-api-adaptor's image where a PeerPodConfig names none; empty for its public one
    #[arg(long, value_name = "IMAGE", env = "RELATED_IMAGE_CAA", default_value = "")]
    pub adaptor_image: String,

    /// Name of the ConfigMap that --settings-dir is mounted from: of a PeerPodConfig that names another a condition says so
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_SETTINGS_CONFIG_MAP",
        default_value = crate::install::CONFIG_MAP
    )]
    pub settings_config_map: String,

    /// Name of the Secret that --credentials-dir is mounted from, likewise
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_CREDENTIALS_SECRET",
        default_value = crate::install::SECRET
    )]
    pub credentials_secret: String,

    /// Name of the Secret with the key for ssh that cloud-api-adaptor mounts
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_SSH_KEY_SECRET",
        default_value = crate::install::SSH_KEY_SECRET
    )]
    pub ssh_key_secret: String,

    /// Name of the Secret with certificates for the connection to pod VMs that cloud-api-adaptor mounts
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_ADAPTOR_TLS_SECRET",
        default_value = crate::install::TLS_SECRET
    )]
    pub adaptor_tls_secret: String,

    /// How many calls to one cloud may be under way at once, from 1 to 160. Half as many more may have gone unanswered for
    /// a second and wait on without keeping others from being made
    #[arg(
        long,
        value_name = "N",
        env = "PEERPOD_OPERATOR_CONCURRENCY",
        default_value = "128",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(Limits::MOST_CALLS))
    )]
    pub concurrency: u16,

    /// How long a deletion may take until condition, event and log say where it stands, such as 5m, 90s or 1h 30m
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_SLOW_AFTER",
        default_value = "5m",
        value_parser = patience
    )]
    pub slow_after: Duration,

    /// Where it tells how it is, and how it logs.
    #[command(flatten)]
    pub serving: ServingArgs,
}

impl RunArgs {
    /// cloud-api-adaptor's image where a PeerPodConfig names none.
    pub(crate) fn adaptor_image(&self) -> String {
        let told = Some(&*self.adaptor_image).filter(|image| !image.is_empty());
        told.unwrap_or(peerpodconfig::build::DEFAULT_ADAPTOR_IMAGE).to_owned()
    }

    /// The settings with which this operator deletes machines, if it does.
    pub(crate) fn mounted(&self) -> Option<peerpodconfig::Mounted> {
        self.controllers.contains(&ControllerName::PeerPod).then(|| peerpodconfig::Mounted {
            config_map: self.settings_config_map.clone(),
            secret: self.credentials_secret.clone(),
        })
    }
}

/// Reads how long something may take. Less than a second is no measure, as deletions have whole seconds.
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
    /// Deploys cloud-api-adaptor and the admission, and advertises VMs on nodes
    #[value(name = peerpodconfig::NAME)]
    PeerPodConfig,
}

impl Cli {
    /// Does what was asked for and tells how it ended: 0, 1 where something failed, 2 where the arguments cannot work;
    /// `check` and `drain` have codes of their own.
    pub fn execute(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::run(*args),
            Command::Webhook(args) => webhook::webhook(*args),
            Command::Check(args) => check::check(args),
            Command::Drain(args) => drain::drain(&args),
            Command::Apply(args) => apply::apply(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_flag_is_an_environment_variable_of_its_name() {
        for command in Cli::command().get_subcommands() {
            for flag in command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_env()))) {
                let (name, env) = flag;
                if !["help", "version"].contains(&name) {
                    let name = name.replace('-', "_").to_uppercase();
                    let expected = match &*name {
                        // Upstream's, and what a Pod's own name is called everywhere.
                        "TLS_MIN_VERSION" | "TLS_CIPHER_SUITES" | "POD_NAME" => name,
                        "RUNTIME_CLASS" => "TARGET_RUNTIMECLASS".to_owned(),
                        "EXTENDED_RESOURCE" => "POD_VM_EXTENDED_RESOURCE".to_owned(),
                        "ADAPTOR_IMAGE" => "RELATED_IMAGE_CAA".to_owned(),
                        _ => format!("PEERPOD_OPERATOR_{name}"),
                    };
                    assert_eq!(env.unwrap().to_str().unwrap(), expected);
                }
            }
        }
        Cli::command().debug_assert();
    }

    #[test]
    fn whoever_deletes_no_machines_has_no_settings_for_it() {
        let mounted = |arguments: &[&str]| {
            let arguments = ["peerpod-operator", "run", "--credentials-secret=mine"].iter().chain(arguments);
            let Command::Run(args) = Cli::try_parse_from(arguments).unwrap().command else {
                panic!("not run")
            };
            args.mounted().map(|it| (it.config_map, it.secret))
        };
        assert_eq!(mounted(&[]), Some(("peer-pods-cm".to_owned(), "mine".to_owned())));
        assert_eq!(mounted(&["--controllers=peerpodconfig"]), None);
    }

    #[test]
    fn a_duration_is_read_as_people_write_it_and_what_is_none_is_explained() {
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
