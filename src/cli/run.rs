//! `run`: connects settings, clouds and controllers, and runs them until it is stopped.

mod args;
mod provider_arg;
mod sweep_flags;

use std::{pin::pin, process::ExitCode};

use futures::future::{join, select};
use kube::Client;
use operator_kit::{
    Leadership, ListenAt, Permission, client, http,
    lease::{self, Election},
    lifecycle, process, shutdown, telemetry,
    text::non_empty,
};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub(super) use args::STATUS_PORT;
pub use args::{ControllerName, RunArgs};

use super::serving::block_on;
use crate::{
    metrics::{DEFAULT_SETTINGS, Metrics},
    names::{LEASE, PEERPOD_CTRL_LEASE},
    peerpod::{self, PeerPods},
    peerpodconfig,
    provider::{CATALOGUE, Cloud, CloudSettings, Openers, ServedCloud},
    settings::{self, tls::TlsOptions},
    sweep::{Published, Sweeper},
};

/// The permissions for the election. A Lease of another name needs a role of its own.
pub const LEASE_PERMISSIONS: [Permission; 2] = lease::permissions(&[LEASE, PEERPOD_CTRL_LEASE]);

/// The path at which `status` reads the last results of the sweep.
pub(super) const SWEEP_PATH: &str = "/sweep";

pub(super) fn run(args: RunArgs) -> ExitCode {
    telemetry::init(env!("CARGO_CRATE_NAME"), args.serving.log_format);
    block_on(serve(args), |problem| error!("{problem}"))
}

async fn serve(args: RunArgs) -> Result<(), Box<dyn std::error::Error>> {
    let shutdown = shutdown::on_signals()?;
    let mut registry = Registry::default();
    process::register(&mut registry);
    let metrics = Metrics::new(&mut registry);
    let readiness = http::Readiness::default();
    let (tls, published) = (TlsOptions::default(), Published::default());
    let page = Some(sweep_page(args.status_addr, published.clone()));
    let servers = args.serving.serve(&tls, None, page, readiness.clone(), registry, &shutdown).await?;
    let Some(servers) = servers else { return Ok(()) };

    let sources = watch_settings(&args, &metrics, &readiness, &published, &shutdown).await?;
    let Some(client) = shutdown.run_until_cancelled(client::infer()).await.transpose()? else {
        return Ok(());
    };
    info!(version = env!("CARGO_PKG_VERSION"), namespace = args.operator.namespace, "started");

    let election = election(&args, &client, &metrics);
    let leadership = election.as_ref().map_or_else(Leadership::unlimited, Election::leadership);
    let (peerpods_seen, configurations) = (readiness.needs("peerpods"), readiness.needs("peerpodconfigs"));
    let warm = CancellationToken::new();
    let seen = {
        let warm = warm.clone();
        move || {
            peerpods_seen.met();
            warm.cancel();
        }
    };
    let work = Controllers { args: &args, client, leadership, metrics, shutdown: shutdown.clone() };
    let controllers = async {
        let mounted = args.mounted(&sources);
        let peerpods = work.peerpods(sources, published, seen);
        let configurations = work.configurations(mounted, move || configurations.met());
        join(peerpods, configurations).await;
    };
    // VMs are deleted even if PeerPodConfigs cannot be listed: their controller waits by itself for what it needs.
    lifecycle::run(Box::pin(controllers), election, warm.cancelled(), &shutdown).await;
    // The servers end after it, also if the controllers ended by themselves.
    shutdown.cancel();
    servers.stopped().await;
    Ok(())
}

/// The election in which this process takes part; `None`: it leads all the time.
fn election(args: &RunArgs, client: &Client, metrics: &Metrics) -> Option<Election> {
    let election = args.leader_elect.then(|| {
        let metrics = metrics.clone();
        let leads = move |leads| metrics.leader(leads);
        let namespace = args.lease_namespace.as_ref().unwrap_or(&args.operator.namespace);
        Election::new(client.clone(), namespace, &args.lease_name, &process::name())
            .with_namespace_flag("--lease-namespace")
            .with_metrics(leads)
    });
    metrics.leader(election.is_none());
    election
}

/// What both controllers need.
struct Controllers<'a> {
    args: &'a RunArgs,
    client: Client,
    leadership: Leadership,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl Controllers<'_> {
    /// Runs the controller of PeerPods with the sweep beside it until `shutdown`. Calls `seen` when every PeerPod has been seen, or
    /// at once if this process does not run this controller.
    async fn peerpods(
        &self,
        clouds: Vec<CloudSettings>,
        published: Published,
        seen: impl FnOnce() + Send + 'static,
    ) {
        let Self { args, client, leadership, metrics, shutdown } = self;
        if !args.controllers.contains(&ControllerName::PeerPod) {
            seen();
            return;
        }
        let options = peerpod::Options {
            namespace: args.operator.namespace.clone(),
            concurrency: args.concurrency,
            slow_after: args.slow_after,
        };
        let (client, leadership, metrics) = (client.clone(), leadership.clone(), metrics.clone());
        let controller = PeerPods::new(client, clouds, Openers::default(), leadership, metrics, &options);
        let sweep = Sweeper::beside(&controller, args.sweep.options(published)).run();
        // The sweep has no end of its own.
        select(pin!(controller.run(seen, shutdown.clone())), pin!(sweep)).await;
    }

    /// Runs the controller of PeerPodConfigs until `shutdown`. Calls `seen` when it has seen all that it watches, or at once if
    /// this process does not run this controller.
    async fn configurations(
        &self,
        mounted: Option<peerpodconfig::MountedSettings>,
        seen: impl FnOnce() + Send + 'static,
    ) {
        let Self { args, client, leadership, metrics, shutdown } = self;
        if !args.controllers.contains(&ControllerName::PeerPodConfig) {
            seen();
            return;
        }
        let options = peerpodconfig::Options {
            namespace: args.operator.namespace.clone(),
            pod: non_empty(args.pod_name.clone()),
            image: non_empty(args.image.clone()),
            adaptor_image: args.adaptor_image(),
            ssh_key_secret: args.ssh_key_secret.clone(),
            tls_secret: args.adaptor_tls_secret.clone(),
            byom_host_keys_secret: args.byom_host_keys_secret.clone(),
            secure_metrics: args.serving.metrics_secure,
            mounted,
        };
        let (client, leadership, metrics) = (client.clone(), leadership.clone(), metrics.clone());
        peerpodconfig::run(client, options, leadership, metrics, seen, shutdown.clone()).await;
    }
}

/// What the sweep last found, and what is wrong with the settings, for `status`.
fn sweep_page(at: ListenAt, published: Published) -> http::Page {
    // It consists of texts, numbers and times, which can always be serialized.
    let content = move || serde_json::to_string(&published.current()).unwrap_or_default();
    http::Page {
        at: at.chosen_by("--status-addr"),
        path: SWEEP_PATH,
        content_type: "application/json",
        content: Box::new(content),
    }
}

/// The settings of each cloud, followed as they change.
async fn watch_settings(
    args: &RunArgs,
    metrics: &Metrics,
    readiness: &http::Readiness,
    published: &Published,
    shutdown: &CancellationToken,
) -> Result<Vec<CloudSettings>, String> {
    let mut sources = Vec::new();
    let named = args.sources()?;
    let others: Vec<_> = named.iter().filter_map(|(cloud, _)| *cloud).collect();
    for (cloud, folders) in named {
        let name = cloud.map_or(DEFAULT_SETTINGS, Cloud::name);
        let reload_metrics = metrics.clone();
        let label = cloud.map_or("settings".to_owned(), |it| format!("settings of {it}"));
        let (shown, published) = (readiness.shows(label.clone()), published.clone());
        let deletes = args.controllers.contains(&ControllerName::PeerPod);
        let of = cloud.map_or_else(|| ServedCloud::any_but(others.clone()), ServedCloud::only);
        let checked = of.clone();
        let on_change = move |state: &settings::State| {
            reload_metrics.settings_reloaded(name, state.rejected.is_none());
            let conflict = checked.conflict(state);
            if let Some(conflict) = &conflict {
                error!("{conflict}");
            }
            let usable = state.usable() && conflict.is_none();
            reload_metrics.settings_usable(name, deletes.then_some(usable));
            let problem = state.problem().or(conflict);
            published.show_settings(&label, problem.as_deref().filter(|_| deletes));
            match problem {
                None => shown.met(),
                Some(problem) => shown.unmet(problem),
            }
        };
        let (settings, _) = settings::watch(folders, CATALOGUE, shutdown.clone(), on_change).await;
        sources.push(CloudSettings::new(of, settings));
    }
    Ok(sources)
}
