//! `run`: puts settings, clouds and controllers together and keeps them going until told to stop.

use std::{process::ExitCode, time::Duration};

use prometheus_client::registry::Registry;
use tracing::{error, info};

use super::{ControllerName, RunArgs, client::client};
use crate::{
    peerpod,
    provider::{Clouds, Limits},
    runtime::{Metrics, http, process, shutdown, telemetry},
    settings,
};

/// How long work under way may take to end after the signal. Open scrapes get 10 s more, and Kubernetes kills after 30 s.
const GRACE: Duration = Duration::from_secs(15);

pub(super) fn run(args: RunArgs) -> ExitCode {
    telemetry::init(args.log_format);
    if let Err(problem) = check(&args) {
        error!("{problem}");
        return ExitCode::from(2);
    }
    // One thread: the work is waiting for others, and every thread more costs memory.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(problem) => {
            error!(%problem, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            error!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for and this version cannot do.
fn check(args: &RunArgs) -> Result<(), &'static str> {
    if args.leader_elect {
        return Err("leader election is not built yet: run one replica with --leader-elect false");
    }
    if args.controllers.contains(&ControllerName::PeerPodConfig) {
        return Err("the controller peerpodconfig is not built yet: run with --controllers peerpod");
    }
    Ok(())
}

async fn serve(args: RunArgs) -> Result<(), Box<dyn std::error::Error>> {
    let shutdown = shutdown::on_signals()?;
    let mut registry = Registry::default();
    process::register(&mut registry);
    let metrics = Metrics::new(&mut registry);
    let readiness = http::Readiness::default();
    let servers =
        http::serve(args.health_addr, args.metrics_addr, readiness.clone(), registry, shutdown.clone())
            .await?;

    let folders = settings::Folders { settings: args.settings_dir, credentials: Some(args.credentials_dir) };
    let (told, shown) = (metrics.clone(), readiness.shows("settings"));
    let on_change = move |state: &settings::State| {
        told.settings(state.rejected.is_none());
        match &state.rejected {
            None => shown.met(),
            Some(problem) => shown.unmet(problem.to_string()),
        }
    };
    let (settings, _) = settings::watch(folders, shutdown.clone(), on_change).await;
    let clouds = Clouds::new(settings, Limits::new(args.concurrency.get().into()), metrics.clone());
    let synced = readiness.needs("peerpods");
    let client = client().await?;
    info!(version = env!("CARGO_PKG_VERSION"), namespace = args.namespace, "started");

    let controller = peerpod::run(client, clouds, metrics, move || synced.met(), shutdown.clone());
    let abandoned = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        () = controller => info!("stopped"),
        () = abandoned => info!("stopped; what was under way goes on where it was at the next start"),
    }
    servers.stopped().await;
    Ok(())
}
