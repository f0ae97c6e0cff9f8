//! `webhook`: serves the admission of peer pods until it is stopped.

use std::{convert::Infallible, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use clap::{ArgAction, Args, builder::NonEmptyStringValueParser};
use futures::{FutureExt, future::join3};
use jiff::SignedDuration;
use operator_kit::{ListenAt, client, http, lease::Election, process, shutdown, telemetry};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{
    duration,
    serving::{ServingArgs, block_on},
};
use crate::{
    api::v1alpha1::{EXTENDED_RESOURCE, RUNTIME_CLASS, Sizing},
    metrics,
    settings::tls::TlsOptions,
    webhook::{
        Options,
        certificates::{
            Serving, expiry,
            files::Files,
            managed_secret::Wanted,
            rotation::{self, Rotation},
            secret,
        },
        metrics::{CertificateMetrics, ReviewMetrics},
        review::OtherClasses,
        server::{self, Webhook},
    },
};

/// Arguments of `webhook`.
#[derive(Clone, Debug, Args)]
pub struct WebhookArgs {
    /// Address for admission reviews, with TLS. :PORT means every address, IPv6 and IPv4
    #[arg(long, value_name = "[IP]:PORT", env = "PEERPOD_OPERATOR_ADDR", default_value = ":9443")]
    pub addr: ListenAt,

    /// File with the server's certificate, in PEM. The webhook reads it again when it changes. Without this flag, the
    /// webhook uses the Secret
    #[arg(long, value_name = "FILE", env = "PEERPOD_OPERATOR_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// File with the certificate's private key
    #[arg(long, value_name = "FILE", env = "PEERPOD_OPERATOR_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Secret with the server's certificate. The webhook creates and renews the certificate in a Secret that the operator
    /// created; it uses any other Secret unchanged
    #[arg(
        long,
        value_name = "NAME",
        env = "PEERPOD_OPERATOR_TLS_SECRET",
        default_value = rotation::SECRET,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub tls_secret: String,

    /// Names and addresses in a certificate that the webhook creates [default: those of every Service in the namespace]
    #[arg(long, value_name = "NAMES", env = "PEERPOD_OPERATOR_TLS_NAMES", value_delimiter = ',')]
    pub tls_names: Vec<String>,

    /// How long a certificate that the webhook creates is valid. The webhook replaces it after two thirds of that time
    #[arg(
        long,
        value_name = "DURATION",
        env = "PEERPOD_OPERATOR_TLS_LIFETIME",
        default_value = "720h",
        value_parser = |text: &str| duration(text, SignedDuration::from_secs(3), SignedDuration::from_hours(24 * 3650))
    )]
    pub tls_lifetime: Duration,

    /// Labels of the webhook configurations that must trust a certificate that the webhook created before the webhook
    /// uses it
    #[arg(
        long,
        value_name = "SELECTOR",
        env = "PEERPOD_OPERATOR_CONFIGURATIONS",
        default_value_t = rotation::configurations(),
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub configurations: String,

    /// The webhook's namespace, with its Secret and its lease
    #[arg(
        long,
        value_name = "NS",
        env = "PEERPOD_OPERATOR_NAMESPACE",
        default_value = crate::NAMESPACE,
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub namespace: String,

    /// Lowest TLS version: `VersionTLS12` or `VersionTLS13` [default: `VersionTLS12`]
    #[arg(long, value_name = "NAME", env = "TLS_MIN_VERSION", default_value = "", hide_default_value = true)]
    pub tls_min_version: String,

    /// Ciphers of TLS 1.2 by Go's names, separated by commas [default: all safe ones]
    #[arg(
        long,
        value_name = "NAMES",
        env = "TLS_CIPHER_SUITES",
        default_value = "",
        hide_default_value = true
    )]
    pub tls_cipher_suites: String,

    /// The runtime class of peer pods. The webhook does not change other Pods
    #[arg(
        long,
        value_name = "NAME",
        env = "TARGET_RUNTIMECLASS",
        default_value = RUNTIME_CLASS,
        value_parser = |text: &str| or_default(text, RUNTIME_CLASS)
    )]
    pub runtime_class: String,

    /// The extended resource. Each peer pod requests one
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_VM_EXTENDED_RESOURCE",
        default_value = EXTENDED_RESOURCE,
        value_parser = |text: &str| or_default(text, EXTENDED_RESOURCE)
    )]
    pub extended_resource: String,

    /// How to compute a VM's size from the containers' resources
    #[arg(
        long,
        value_name = "RULE",
        env = "PEERPOD_OPERATOR_SIZING",
        value_enum,
        default_value = "kubernetes"
    )]
    pub sizing: Sizing,

    /// Refuse Pods of other runtime classes instead of leaving them unchanged. For a webhook configuration that selects --runtime-class
    /// alone: a Pod of another class means that the class has just changed and that this replica is being replaced
    #[arg(
        long,
        value_name = "true|false",
        env = "PEERPOD_OPERATOR_REFUSE_OTHER_CLASSES",
        action = ArgAction::Set,
        default_value_t = false
    )]
    pub refuse_other_classes: bool,

    /// Addresses of health and metrics, and the format of the log.
    #[command(flatten)]
    pub serving: ServingArgs,
}

/// What creates the lease of the replica that keeps the certificate.
const LEASE_CREATOR: &str =
    "the operator creates it for the webhook of a PeerPodConfig, otherwise your installation must create it";

/// An empty value means the default, as it does for cloud-api-adaptor.
#[allow(clippy::unnecessary_wraps, reason = "clap wants a result")]
fn or_default(text: &str, default: &str) -> Result<String, Infallible> {
    Ok(if text.is_empty() { default } else { text }.to_owned())
}

pub(super) fn webhook(args: WebhookArgs) -> ExitCode {
    telemetry::init(env!("CARGO_CRATE_NAME"), args.serving.log_format);
    match TlsOptions::parse(&args.tls_min_version, &args.tls_cipher_suites) {
        Ok(tls) => block_on(serve(args, tls), |problem| error!("{problem}")),
        Err(problem) => {
            error!("{problem}");
            ExitCode::from(2)
        }
    }
}

async fn serve(args: WebhookArgs, tls: TlsOptions) -> Result<(), Box<dyn std::error::Error>> {
    let shutdown = shutdown::on_signals()?;
    let mut registry = Registry::default();
    process::register(&mut registry);
    metrics::register_build(&mut registry);
    let reviews = ReviewMetrics::new(&mut registry);
    let certificates = CertificateMetrics::new(&mut registry);
    let readiness = http::Readiness::default();
    let there = readiness.needs("certificate");
    let serving = Arc::new(Serving::default());
    let own = Some(Arc::clone(&serving));
    let health = args.serving.serve(&tls, own, None, readiness.clone(), registry, &shutdown).await?;
    let Some(health) = health else { return Ok(()) };

    let (source, certificate) = if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let files = Files { certificate: certificate.clone(), key: key.clone() };
        files.show(&serving)?;
        there.met();
        let following = files.follow(Arc::clone(&serving), shutdown.clone());
        (certificate.display().to_string(), tokio::spawn(following))
    } else {
        let managed = managed(&args, Arc::clone(&serving), there, shutdown.clone());
        let Some(managed) = shutdown.run_until_cancelled(managed).await.transpose()? else { return Ok(()) };
        (format!("Secret {}/{}", args.namespace, args.tls_secret), tokio::spawn(managed))
    };
    let reporting = expiry::report(Arc::clone(&serving), source, certificates, shutdown.clone());
    let reporting = tokio::spawn(reporting);

    let options = Options {
        runtime_class: args.runtime_class,
        extended_resource: args.extended_resource,
        sizing: args.sizing,
    };
    info!(version = env!("CARGO_PKG_VERSION"), runtime_class = options.runtime_class, "started");
    let others = if args.refuse_other_classes { OtherClasses::Refuse } else { OtherClasses::Admit };
    let webhook = Webhook::new(options, others, reviews, readiness);
    let server = server::serve(args.addr, tls.server_config(serving)?, webhook, shutdown.clone())?;
    shutdown.cancelled().await;
    server.stopped().await;
    certificate.await?;
    reporting.await?;
    health.stopped().await;
    info!("stopped");
    Ok(())
}

/// Serves the Secret's certificate, and renews it while this replica leads.
async fn managed(
    args: &WebhookArgs,
    serving: Arc<Serving>,
    there: http::Condition,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, String> {
    let client = client::infer().await.map_err(|problem| problem.to_string())?;
    let (namespace, secret) = (args.namespace.clone(), args.tls_secret.clone());
    let names = if args.tls_names.is_empty() {
        ["svc", "svc.cluster.local"].map(|domain| format!("*.{namespace}.{domain}")).into()
    } else {
        args.tls_names.clone()
    };
    let wanted = Wanted { names, lifetime: args.tls_lifetime };
    let rotation = Rotation::new(client.clone(), &namespace, &secret, &args.configurations, wanted);
    let election = Election::new(client.clone(), &namespace, rotation::LEASE, &process::name())
        .with_lease_created_by(LEASE_CREATOR);
    let (ended, stop) = (CancellationToken::new(), shutdown.clone());
    let rotating = rotation.run(election.leadership(), shutdown.clone()).map({
        let ended = ended.clone();
        move |()| ended.cancel()
    });
    let following = secret::follow(client, namespace, secret, serving, there, stop);
    let leading = election.run(ended.clone(), ended);
    Ok(join3(Box::pin(following), Box::pin(rotating), Box::pin(leading)).map(drop))
}
