//! Common parts of the subcommands that run until they are stopped.

use std::{error::Error, fmt::Display, path::PathBuf, process::ExitCode, sync::Arc};

use clap::{ArgAction, Args};
use operator_kit::{
    ListenAt, client,
    http::{Endpoints, Page, Readiness, Secure, Servers},
    lifecycle, process,
    telemetry::LogFormat,
};
use prometheus_client::registry::Registry;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_util::sync::CancellationToken;

use crate::{
    settings::tls::TlsOptions,
    webhook::certificates::{Serving, files::Files},
};

/// Addresses of health and metrics, and the format of the log.
#[derive(Clone, Debug, Args)]
pub struct ServingArgs {
    /// Address of /healthz and /readyz, without TLS. :PORT means every address, IPv6 and IPv4
    #[arg(long, value_name = "[IP]:PORT", env = "PEERPOD_OPERATOR_HEALTH_ADDR", default_value = ":8081")]
    pub health_addr: ListenAt,

    /// Address of /metrics, without TLS unless --metrics-secure says so
    #[arg(long, value_name = "[IP]:PORT", env = "PEERPOD_OPERATOR_METRICS_ADDR", default_value = ":8080")]
    pub metrics_addr: ListenAt,

    /// Serve /metrics with TLS, and only to clients with a token whose account may get the path /metrics: the API server is
    /// asked about each token
    #[arg(
        long,
        value_name = "true|false",
        env = "PEERPOD_OPERATOR_METRICS_SECURE",
        action = ArgAction::Set,
        default_value_t = false
    )]
    pub metrics_secure: bool,

    /// Folder with the certificate of /metrics, as tls.crt and tls.key in PEM; read again when it changes. Without it, `run`
    /// creates a self-signed one, and `webhook` uses the one that it answers API servers with
    #[arg(long, value_name = "DIR", env = "PEERPOD_OPERATOR_METRICS_TLS_DIR")]
    pub metrics_tls_dir: Option<PathBuf>,

    /// Format of log lines
    #[arg(long, env = "PEERPOD_OPERATOR_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

impl ServingArgs {
    /// Serves health, metrics and the page. `None`: the stop came first. `own`: the certificate of the metrics if there is no folder with
    /// one; `None`: a self-signed one.
    pub(super) async fn serve(
        &self,
        tls: &TlsOptions,
        own: Option<Arc<Serving>>,
        page: Option<Page>,
        readiness: Readiness,
        registry: Registry,
        stop: &CancellationToken,
    ) -> Result<Option<Servers>, Box<dyn Error>> {
        // A kubeconfig's exec plugin may ask a person, and take any time.
        let secure = stop.run_until_cancelled(self.secure(tls, own, stop)).await.transpose()?;
        let Some(secure) = secure else { return Ok(None) };
        let health = self.health_addr.chosen_by("--health-addr");
        let metrics = self.metrics_addr.chosen_by("--metrics-addr");
        Ok(Some(Endpoints { health, metrics, secure, page, readiness, registry }.serve(stop)?))
    }

    /// How metrics are protected, if they must be.
    async fn secure(
        &self,
        tls: &TlsOptions,
        own: Option<Arc<Serving>>,
        stop: &CancellationToken,
    ) -> Result<Option<Secure>, Box<dyn Error>> {
        if !self.metrics_secure {
            return Ok(None);
        }
        let serving = match (&self.metrics_tls_dir, own) {
            (Some(folder), _) => {
                let files = Files { certificate: folder.join("tls.crt"), key: folder.join("tls.key") };
                let serving = Arc::new(Serving::default());
                files.show(&serving)?;
                tokio::spawn(files.follow(Arc::clone(&serving), stop.clone()));
                serving
            }
            (None, Some(own)) => own,
            (None, None) => Arc::new(self_signed()?),
        };
        Ok(Some(Secure::new(tls.server_config(serving)?, client::infer().await?)))
    }
}

/// A certificate that no authority signed, for as long as this process runs.
fn self_signed() -> Result<Serving, Box<dyn Error>> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([process::name()])?;
    let serving = Serving::default();
    serving.show(cert.pem().as_bytes(), signing_key.serialize_pem().as_bytes())?;
    Ok(serving)
}

/// Does the work. `report` gets its problem.
pub(super) fn block_on<E: Display>(
    work: impl Future<Output = Result<(), E>>,
    report: impl FnOnce(&str),
) -> ExitCode {
    let ended = match lifecycle::block_on(work) {
        Ok(ended) => ended.map_err(|problem| problem.to_string()),
        Err(problem) => Err(format!("cannot start: {problem}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            report(&problem);
            ExitCode::FAILURE
        }
    }
}
