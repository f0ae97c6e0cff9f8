//! The controller of PeerPodConfigs, and what runs beside it *(client required)*.

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::Arc,
    time::Instant,
};

use futures::{FutureExt, StreamExt, stream};
use kube::{
    Client,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{self, Store},
    },
};
use operator_kit::{
    Leadership, Permission,
    changes::changes,
    controller::{Attempts, shutdown_before_list},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span};

use super::{
    capacity::NodeRequest,
    configs::Configs,
    garbage_collect::GarbageCollector,
    options::Options,
    reconcile::Reconciler,
    rooms::Rooms,
    watches::{self, Configurations},
};
use crate::{api::v1alpha1::PeerPodConfig, metrics::Metrics};

/// The controller's name, in `--controllers` and in metrics.
pub const NAME: &str = "peerpodconfig";

/// What the controller itself may do in the whole cluster. Each room has rights of its own.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("confidentialcontainers.org", &["peerpodconfigs"], &["list", "watch", "patch"]),
    Permission::new("confidentialcontainers.org", &["peerpodconfigs/status"], &["patch"]),
    Permission::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// What it may do in the operator's own namespace: read the settings.
pub const NAMESPACE_PERMISSIONS: &[Permission] =
    &[Permission::new("", &["configmaps", "secrets"], &["get", "list", "watch"])];

/// What the controller needs for each reconcile.
struct Context {
    reconciler: Reconciler,
    attempts: Attempts<PeerPodConfig>,
    metrics: Metrics,
}

/// Runs the controller until `shutdown`, then waits for the running reconcile. Calls `synced` once, when the watches have listed
/// every configuration and every node. It acts while this process leads.
pub async fn run(
    client: Client,
    options: Options,
    leadership: Leadership,
    metrics: Metrics,
    synced: impl FnOnce() + Send + 'static,
    shutdown: CancellationToken,
) {
    let (store, writer) = reflector::store();
    let configs = Configs::new(store.clone(), options.namespace.clone());
    let Configurations { changed, honoured_changed, removed } =
        watches::configurations(&client, writer, &configs);
    let (rooms, mut watched) = Rooms::watch(&client, &Arc::new(options));
    let rooms = Arc::new(rooms);
    // A write that took longer than this process waited for it may make what was just removed.
    let (made_late, late) = watch::channel(());
    let advertised_late = made_late.clone();
    let advertises_without = {
        let (rooms, configs) = (rooms.clone(), configs.clone());
        move || configs.honoured().is_empty() && rooms.capacity.nodes().any_marked()
    };
    watched.nodes = watched
        .nodes
        .inspect(move |()| {
            if advertises_without() {
                advertised_late.send_replace(());
            }
        })
        .boxed();
    let led = leadership.changes().inspect({
        let rooms = rooms.clone();
        move |()| rooms.leadership_changed()
    });
    let controller = Controller::for_stream(changed, store.clone())
        .with_config(controller::Config::default().concurrency(1))
        .reconcile_all_on(honoured_changed)
        .reconcile_all_on(led)
        .graceful_shutdown_on(shutdown.clone().cancelled_owned());
    let end = shutdown_before_list(store.clone(), shutdown);

    // These futures are large, and they wait most of the time.
    let collector = GarbageCollector::new(client.clone(), rooms.clone(), &configs, leadership.clone());
    let asked = stream::select(stream::select(removed, changes(late)), leadership.changes());
    let collecting = Box::pin(collector.run(asked));
    let showing = Box::pin(show_usage(rooms.clone(), configs.clone(), leadership.clone(), metrics.clone()));
    let all_seen = all_seen(store, rooms.clone(), synced);

    let controller = watches::add(controller, &client, watched, &configs);
    let reconciler = Reconciler::new(client, rooms, configs);
    let context = Arc::new(Context { reconciler, attempts: Attempts::new(leadership), metrics });
    let outcomes = controller.run(reconcile, |_, never, _| match *never {}, context.clone());
    let controller = outcomes.take_until(end).for_each(|outcome| {
        if let Err(controller::Error::ObjectNotFound(config)) = outcome {
            context.attempts.forget(*config);
            // An object of it changed after it was removed.
            made_late.send_replace(());
        }
        ready(())
    });
    futures::pin_mut!(all_seen, controller);
    futures::select_biased! {
        () = controller.fuse() => {}
        never = collecting.fuse() => match never {},
        never = showing.fuse() => match never {},
        never = all_seen.fuse() => match never {},
    }
}

/// Waits until every configuration, node and DaemonSet has been listed, and calls `synced` then. It has no end.
async fn all_seen(store: Store<PeerPodConfig>, rooms: Arc<Rooms>, synced: impl FnOnce()) -> Infallible {
    if store.wait_until_ready().await.is_ok() {
        rooms.capacity.nodes().wait_until_known().await;
        if rooms.adaptor.wait_until_listed().await {
            info!(
                configurations = store.len(),
                "the operator has listed every PeerPodConfig, node and DaemonSet"
            );
            synced();
        }
    }
    pending().await
}

/// Shows in the metrics what nodes advertise and what peer pods use of it. It has no end.
async fn show_usage(
    rooms: Arc<Rooms>,
    configs: Configs,
    leadership: Leadership,
    metrics: Metrics,
) -> Infallible {
    let requests = || configs.honoured().iter().map(|config| NodeRequest::of(config)).collect();
    rooms.capacity.show_usage(requests, &leadership, &metrics).await
}

async fn reconcile(config: Arc<PeerPodConfig>, context: Arc<Context>) -> Result<Action, Infallible> {
    let span =
        info_span!("reconcile", namespace = config.metadata.namespace, peerpodconfig = config.metadata.name);
    let started = Instant::now();
    let work = Box::pin(context.reconciler.reconcile(&config));
    let ended = |outcome: &Result<_, _>| {
        let result = if outcome.is_ok() { "ok" } else { "error" };
        context.metrics.reconciled(NAME, result, started.elapsed());
    };
    context.attempts.make(&config, work, ended).instrument(span).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join;
    use kube::client::Body;
    use operator_kit::lease::Election;
    use prometheus_client::registry::Registry;
    use serde_json::json;
    use tokio::{
        sync::Notify,
        time::{sleep, timeout},
    };
    use tower::{BoxError, service_fn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_does_not_wait_for_the_first_list() {
        let hangs = service_fn(async |_: hyper::Request<Body>| {
            pending::<Result<hyper::Response<Body>, BoxError>>().await
        });
        let (client, options) = (Client::new(hangs, "default"), Options::new("operator"));
        let (metrics, shutdown) = (Metrics::new(&mut Registry::default()), CancellationToken::new());
        let run = run(client, options, Leadership::unlimited(), metrics, || (), shutdown.clone());
        let stop = async {
            sleep(Duration::from_secs(1)).await;
            shutdown.cancel();
        };
        timeout(Duration::from_secs(2), join(Box::pin(run), stop)).await.unwrap();
    }

    /// A client of an API server that has one configuration, without the finalizer. `written` says that the finalizer is set, which
    /// gets no answer. No watch brings a change.
    fn with_one_configuration(written: &Arc<Notify>) -> Client {
        let written = written.clone();
        let respond = move |request: hyper::Request<Body>| {
            let written = written.clone();
            async move {
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let is_of_configurations = uri.path().contains("/peerpodconfigs");
                if method == hyper::Method::PATCH && is_of_configurations {
                    written.notify_one();
                    return pending().await;
                }
                if uri.query().is_some_and(|query| query.contains("watch=true")) {
                    return pending().await;
                }
                if method != hyper::Method::GET {
                    // The election.
                    let sent = request.into_body().collect_bytes().await?;
                    return Ok::<_, BoxError>(hyper::Response::new(Body::from(sent.to_vec())));
                }
                let config = json!({ "metadata": { "name": "config", "namespace": "operator", "uid": "u" }, "spec": {} });
                let list = json!({
                    "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" },
                    "items": is_of_configurations.then_some(config).into_iter().collect::<Vec<_>>(),
                });
                Ok(hyper::Response::new(Body::from(list.to_string().into_bytes())))
            }
        };
        Client::new(service_fn(respond), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_begins_to_lead_reconciles_what_it_has_long_known() {
        let (written, synced) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let client = with_one_configuration(&written);
        let election = Election::new(client.clone(), "operator", "lease", "process");
        let leadership = election.leadership();
        let (metrics, shutdown) = (Metrics::new(&mut Registry::default()), CancellationToken::new());
        let all_seen = synced.clone();
        let run = run(
            client,
            Options::new("operator"),
            leadership.clone(),
            metrics,
            move || all_seen.notify_one(),
            shutdown.clone(),
        );
        let lead = async {
            synced.notified().await;
            sleep(Duration::from_secs(600)).await;
            election.run(CancellationToken::new(), CancellationToken::new()).await;
        };
        let reconciled = timeout(Duration::from_secs(700), written.notified());
        tokio::select! {
            () = Box::pin(run) => panic!("it ended"),
            () = lead => panic!("the election ended"),
            reconciled = reconciled => assert!(reconciled.is_ok() && leadership.leads()),
        }
    }
}
