//! The arguments of `run`.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::LazyLock,
    time::Duration,
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use jiff::SignedDuration;
use operator_kit::ListenAt;

use super::{provider_arg::ProviderArg, sweep_flags::SweepFlags};
use crate::{
    cli::{FolderArgs, NamespaceArgs, ServingArgs, patience},
    peerpod, peerpodconfig,
    provider::{Cloud, CloudSettings},
    settings::Folders,
};

/// The port of `--status-addr`.
pub(in crate::cli) const STATUS_PORT: u16 = 8082;

/// The default of `--slow-after`, as a user writes it.
static SLOW_AFTER: LazyLock<String> = LazyLock::new(|| {
    let default = SignedDuration::try_from(peerpod::Options::SLOW_AFTER).unwrap_or(SignedDuration::MAX);
    format!("{default:#}")
});

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The folders that are read, and read again when they change.
    #[command(flatten)]
    pub folders: FolderArgs,

    /// Settings of a further cloud: its name and two folders like those above. Can be given several times, or once with a `;`
    /// between each two
    #[arg(long = "provider", value_name = ProviderArg::FORM, env = "PEERPOD_OPERATOR_PROVIDER", value_delimiter = ';')]
    pub providers: Vec<ProviderArg>,

    /// The operator, by its namespace.
    #[command(flatten)]
    pub operator: NamespaceArgs,

    /// Act only while holding the lease. If false, run only one replica
    #[arg(
        long,
        value_name = "true|false",
        env = "PEERPOD_OPERATOR_LEADER_ELECT",
        action = clap::ArgAction::Set,
        default_value_t = true
    )]
    pub leader_elect: bool,

    /// Name of the lease. With the lease of another program that deletes pod VMs, only one of the two acts at a time
    #[arg(
        long,
        value_name = "N",
        env = "PEERPOD_OPERATOR_LEASE_NAME",
        default_value = crate::names::LEASE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub lease_name: String,

    /// Namespace of the lease [default: the value of --namespace]
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
        action = clap::ArgAction::Set,
        value_delimiter = ',',
        default_value = "peerpod,peerpodconfig"
    )]
    pub controllers: Vec<ControllerName>,

    /// Name of the operator's own Pod
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,

    /// Image of the webhook of a PeerPodConfig [default: the image of the operator's own Pod]
    #[arg(long, value_name = "IMAGE", env = "PEERPOD_OPERATOR_IMAGE")]
    pub image: Option<String>,

    /// Image of cloud-api-adaptor if a PeerPodConfig names none. If empty, the public image
    #[arg(long, value_name = "IMAGE", env = "RELATED_IMAGE_CAA", default_value = "")]
    pub adaptor_image: String,

    /// Name of the ConfigMap that is mounted at --settings-dir. A PeerPodConfig that names another one gets no cloud-api-adaptor,
    /// unless a --provider is for its cloud
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_SETTINGS_CONFIG_MAP",
        default_value = crate::names::CONFIG_MAP
    )]
    pub settings_config_map: String,

    /// Name of the Secret that is mounted at --credentials-dir. A PeerPodConfig that names another one gets no cloud-api-adaptor,
    /// unless a --provider is for its cloud
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_CREDENTIALS_SECRET",
        default_value = crate::names::SECRET
    )]
    pub credentials_secret: String,

    /// Name of the Secret with the ssh key that cloud-api-adaptor mounts
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_SSH_KEY_SECRET",
        default_value = crate::names::SSH_KEY_SECRET
    )]
    pub ssh_key_secret: String,

    /// Name of the Secret that cloud-api-adaptor mounts with certificates for the connection to pod VMs
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_ADAPTOR_TLS_SECRET",
        default_value = crate::names::TLS_SECRET
    )]
    pub adaptor_tls_secret: String,

    /// Name of the Secret with the host keys that byom trusts, which cloud-api-adaptor mounts at /etc/byom/ssh-host-keys
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_BYOM_HOST_KEYS_SECRET",
        default_value = crate::names::BYOM_HOST_KEYS_SECRET
    )]
    pub byom_host_keys_secret: String,

    /// Largest number of VMs that the operator works on at once at one cloud, from 1 to 160. Work that takes longer than 1 s gives its
    /// slot to another VM; up to half as many VMs may be in progress beside the limit, and fewer where the cloud takes few requests a
    /// second
    #[arg(
        long,
        value_name = "N",
        env = "PEERPOD_OPERATOR_CONCURRENCY",
        default_value_t = peerpod::Options::CONCURRENCY,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(peerpod::MOST_CONCURRENT))
    )]
    pub concurrency: u16,

    /// How long a deletion may take before a condition, an event and the log say what it waits for, from 1s to 24h, such as 1h 30m
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_SLOW_AFTER",
        default_value = SLOW_AFTER.as_str(),
        value_parser = patience
    )]
    pub slow_after: Duration,

    /// How clouds are searched for what no PeerPod tracks.
    #[command(flatten)]
    pub sweep: SweepFlags,

    /// Address of /sweep, without TLS, for the command status. By default, it is reached from the operator's own Pod alone, and so by
    /// those who may forward its ports
    #[arg(
        long,
        value_name = "[IP]:PORT",
        env = "PEERPOD_OPERATOR_STATUS_ADDR",
        default_value_t = ListenAt::Exactly(SocketAddr::from((Ipv4Addr::LOCALHOST, STATUS_PORT)))
    )]
    pub status_addr: ListenAt,

    /// Addresses of health and metrics, and the format of the log.
    #[command(flatten)]
    pub serving: ServingArgs,
}

impl RunArgs {
    /// The folders with settings, each with the cloud that they must be for, if that was said. Fails if one is given twice.
    pub(crate) fn sources(&self) -> Result<Vec<(Option<&'static Cloud>, Folders)>, String> {
        let mut sources = vec![(None, self.folders.clone().into())];
        for ProviderArg { cloud, folders } in &self.providers {
            if sources.iter().any(|(other, _)| *other == Some(*cloud)) {
                return Err(format!("--provider {cloud} is given twice"));
            }
            sources.push((Some(*cloud), folders.clone()));
        }
        Ok(sources)
    }

    /// cloud-api-adaptor's image where a PeerPodConfig names none.
    pub(crate) fn adaptor_image(&self) -> String {
        let given = Some(&*self.adaptor_image).filter(|image| !image.is_empty());
        given.unwrap_or(peerpodconfig::resources::DEFAULT_ADAPTOR_IMAGE).to_owned()
    }

    /// The settings with which this operator deletes VMs, if it deletes any. `clouds`: those of each cloud.
    pub(crate) fn mounted(&self, clouds: &[CloudSettings]) -> Option<peerpodconfig::MountedSettings> {
        self.controllers.contains(&ControllerName::PeerPod).then(|| peerpodconfig::MountedSettings {
            config_map: self.settings_config_map.clone(),
            secret: self.credentials_secret.clone(),
            clouds: clouds.to_vec(),
        })
    }
}

/// The controllers that `--controllers` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ControllerName {
    /// Deletes the VMs of Pods that no longer exist
    #[value(name = crate::peerpod::NAME)]
    PeerPod,
    /// Deploys cloud-api-adaptor and the admission, and advertises VMs on nodes
    #[value(name = peerpodconfig::NAME)]
    PeerPodConfig,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::Cloud;
    use crate::{
        cli::{Cli, Command},
        peerpod::Options,
    };

    #[test]
    fn an_embedding_program_has_the_same_defaults() {
        let Command::Run(args) = Cli::try_parse_from(["peerpod-operator", "run"]).unwrap().command else {
            panic!("not run")
        };
        let options = Options::new(&args.operator.namespace);
        assert_eq!((options.concurrency, options.slow_after), (args.concurrency, args.slow_after));
    }

    #[test]
    fn without_the_peerpod_controller_no_settings_are_mounted() {
        let mounted = |arguments: &[&str]| {
            let arguments = ["peerpod-operator", "run", "--credentials-secret=mine"].iter().chain(arguments);
            let Command::Run(args) = Cli::try_parse_from(arguments).unwrap().command else {
                panic!("not run")
            };
            args.mounted(&[]).map(|mounted| (mounted.config_map, mounted.secret))
        };
        assert_eq!(mounted(&[]), Some(("peer-pods-cm".to_owned(), "mine".to_owned())));
        assert_eq!(mounted(&["--controllers=peerpodconfig"]), None);
    }

    #[test]
    fn each_cloud_has_settings_of_its_own_and_only_once() {
        let sources = |arguments: &[&str]| {
            let Command::Run(args) =
                Cli::try_parse_from(["peerpod-operator", "run"].iter().chain(arguments)).unwrap().command
            else {
                panic!("not run")
            };
            args.sources()
                .map(|all| all.into_iter().map(|(cloud, _)| cloud.map(Cloud::name)).collect::<Vec<_>>())
        };
        assert_eq!(sources(&[]), Ok(vec![None]));
        let expected = Ok(vec![None, Some("aws"), Some("gcp")]);
        assert_eq!(sources(&["--provider=aws=/a,/b", "--provider", "gcp=/c,/d"]), expected);
        assert_eq!(sources(&["--provider=aws=/a,/b;gcp=/c,/d"]), expected);
        let problem = sources(&["--provider=aws=/a,/b;aws=/c,/d"]).unwrap_err();
        assert_eq!(problem, "--provider aws is given twice");
    }
}
