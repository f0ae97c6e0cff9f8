//! The watches of the PeerPodConfig controller, and the controller that they feed *(client required)*.

use std::{
    convert::Infallible,
    future::{pending, ready},
    sync::Arc,
    time::Instant,
};

use futures::{FutureExt, Stream, StreamExt, stream};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{self, Store},
        watcher,
    },
};
use operator_kit::{Leadership, Permission, controller::Attempts, projection::reading, status::Publisher};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span};

use super::{
    adaptor::{self, Adaptor, Mounted},
    admission::{self, Admission},
    apply::Objects,
    capacity::{Capacity, NodeRequest, Nodes},
    configs::{Configs, is_in_conflict},
    drift::Drifts,
    finalizer::Finalizer,
    garbage_collect::GarbageCollector,
    reconcile::Reconciler,
    report::Reporter,
    resources::{self, CONFIG_LABEL, DEFAULT_ADAPTOR_IMAGE},
    rooms::Rooms,
    watches,
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    metrics::Metrics,
    names,
};

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

/// Where the operator is, and what it deploys.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operator's own namespace.
    pub namespace: String,
    /// The name of the operator's own Pod, whose image the webhook runs; `None`: it runs in none.
    pub pod: Option<String>,
    /// The image that the webhook runs; `None`: that of the operator's own Pod, and [`DEFAULT_IMAGE`] without one.
    ///
    /// [`DEFAULT_IMAGE`]: crate::names::DEFAULT_IMAGE
    pub image: Option<String>,
    /// cloud-api-adaptor's image where a configuration names none.
    pub adaptor_image: String,
    /// The Secret with the key for ssh that cloud-api-adaptor mounts.
    pub ssh_key_secret: String,
    /// The Secret with certificates for the connection to pod VMs that cloud-api-adaptor mounts.
    pub tls_secret: String,
    /// The Secret with the host keys that byom trusts, which cloud-api-adaptor mounts.
    pub byom_host_keys_secret: String,
    /// Whether the webhook serves its metrics with TLS and to those alone who may read them, as the operator does its own.
    pub secure_metrics: bool,
    /// The settings with which this operator deletes VMs; `None`: this operator deletes no VMs.
    pub mounted: Option<Mounted>,
}

impl Options {
    /// In this namespace, with the default image and the default names of all Secrets.
    pub fn new(namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            pod: None,
            image: None,
            adaptor_image: DEFAULT_ADAPTOR_IMAGE.to_owned(),
            ssh_key_secret: names::SSH_KEY_SECRET.to_owned(),
            tls_secret: names::TLS_SECRET.to_owned(),
            byom_host_keys_secret: names::BYOM_HOST_KEYS_SECRET.to_owned(),
            secure_metrics: false,
            mounted: None,
        }
    }

    fn adaptor(&self) -> adaptor::Options {
        adaptor::Options {
            namespace: self.namespace.clone(),
            image: self.adaptor_image.clone(),
            ssh_key_secret: self.ssh_key_secret.clone(),
            tls_secret: self.tls_secret.clone(),
            byom_host_keys_secret: self.byom_host_keys_secret.clone(),
            mounted: self.mounted.clone(),
        }
    }

    fn admission(&self) -> admission::Options {
        admission::Options {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            image: self.image.clone(),
            secure_metrics: self.secure_metrics,
        }
    }
}

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
    let own = options.namespace.clone();
    let labelled = reading(&client, &watches::LABELLED);
    let (store, writer) = reflector::store();
    let watches::Configurations { asking, others_ask, gone } = watches::configurations(&client, writer);
    let controller = Controller::for_stream(asking, store.clone())
        .with_config(controller::Config::default().concurrency(1));
    let configs = Configs::new(store.clone(), own.clone());

    let drifts = Arc::new(Drifts::default());
    let objects = Objects::new(client.clone(), drifts.clone());
    let (capacity, nodes_changed) = Capacity::watch(&client);
    let nodes = capacity.nodes().clone();
    let (adaptor, daemon_sets, daemon_sets_elsewhere) =
        Adaptor::watch(&client, objects.clone(), nodes.clone(), options.adaptor());
    let daemon_sets_listed = adaptor.wait_until_listed();
    let (admission, webhook_resources_changed) =
        Admission::watch(&client, objects.clone(), drifts.clone(), options.admission());
    let policy_changes = admission.policy_changes(&labelled);
    let rooms = Arc::new(Rooms { adaptor, admission, capacity, turn: Mutex::default() });

    let asked = stream::select(gone, leadership.changes());
    let collector = GarbageCollector {
        client: client.clone(),
        objects,
        rooms: rooms.clone(),
        leadership: leadership.clone(),
        namespace: own.clone(),
    };
    // The future is large, and it waits most of the time.
    let collecting = Box::pin(async move { collector.run(asked).await });
    let showing = Box::pin(show_usage(rooms.clone(), configs.clone(), leadership.clone(), metrics.clone()));
    // Whenever this process begins or ceases to lead.
    let led = {
        let rooms = rooms.clone();
        leadership.changes().inspect(move |()| rooms.taken_over())
    };
    let reconciler = Reconciler {
        rooms,
        configs: configs.clone(),
        finalizer: Finalizer::new(client.clone()),
        reporter: Reporter::new(Publisher::new(&client, &watches::CONFIG, FIELD_MANAGER, "Configuring")),
        drifts,
        client,
        namespace: own.clone(),
    };
    let context = Arc::new(Context { reconciler, attempts: Attempts::new(leadership), metrics });

    let controller = with_watches(controller, daemon_sets, labelled, &own, configs)
        .reconcile_on(policy_changes)
        .reconcile_all_on(webhook_resources_changed)
        .reconcile_all_on(daemon_sets_elsewhere)
        .reconcile_all_on(stream::select(nodes_changed, led))
        .reconcile_all_on(others_ask)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, |_, never, _| match *never {}, context.clone())
        .for_each(|outcome| {
            if let Err(controller::Error::ObjectNotFound(config)) = outcome {
                context.attempts.forget(*config);
            }
            ready(())
        });

    let all_seen = all_seen(store, nodes, daemon_sets_listed, synced);
    futures::pin_mut!(all_seen, controller);
    futures::select_biased! {
        () = controller.fuse() => {}
        never = collecting.fuse() => match never {},
        never = showing.fuse() => match never {},
        never = all_seen.fuse() => match never {},
    }
}

/// Adds the watches of the objects that a configuration consists of, and of those that it uses. `labelled` reads
/// metadata alone.
fn with_watches(
    controller: Controller<PeerPodConfig>,
    daemon_sets: impl Stream<Item = Result<DaemonSet, watcher::Error>> + Send + 'static,
    labelled: Client,
    own: &str,
    configs: Configs,
) -> Controller<PeerPodConfig> {
    let (webhooks, all, cm, secrets, classes) =
        (configs.clone(), configs.clone(), configs.clone(), configs.clone(), configs);
    controller
        .watches_stream(daemon_sets, move |daemon_set: DaemonSet| {
            // A DaemonSet that no longer runs cloud-api-adaptor, or that belongs to another configuration, may have caused a conflict.
            all.matching(|config| resources::runs_adaptor(&daemon_set) || is_in_conflict(config))
        })
        .owns_stream(watches::labelled::<Deployment>(Api::namespaced(labelled.clone(), own)))
        .owns_stream(watches::labelled::<Service>(Api::namespaced(labelled.clone(), own)))
        .owns_stream(watches::labelled::<PodDisruptionBudget>(Api::namespaced(labelled.clone(), own)))
        .watches_stream(
            watches::labelled::<MutatingWebhookConfiguration>(Api::all(labelled.clone())),
            move |webhook| webhook.labels().get(CONFIG_LABEL).map(|name| webhooks.named(name)),
        )
        // A reconcile reads them when it uses them.
        .watches_stream(watches::all::<ConfigMap>(Api::namespaced(labelled.clone(), own)), move |it| {
            cm.matching(|config| config.spec.config_map_name == it.name_any())
        })
        .watches_stream(watches::all::<Secret>(Api::namespaced(labelled.clone(), own)), move |it| {
            secrets.matching(|config| config.spec.cloud_secret_name == it.name_any())
        })
        .watches_stream(watches::all::<RuntimeClass>(Api::all(labelled)), move |it| {
            classes.matching(|config| config.spec.admission.runtime_class_name == it.name_any())
        })
}

/// Waits until every configuration, node and DaemonSet has been listed, and calls `synced` then. It has no end.
async fn all_seen(
    store: Store<PeerPodConfig>,
    nodes: Nodes,
    daemon_sets_listed: impl Future<Output = bool>,
    synced: impl FnOnce(),
) -> Infallible {
    if store.wait_until_ready().await.is_ok() {
        nodes.wait_until_known().await;
        if daemon_sets_listed.await {
            info!(
                configurations = store.len(),
                "the operator has listed every PeerPodConfig, node and DaemonSet"
            );
            synced();
        }
    }
    pending().await
}

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
