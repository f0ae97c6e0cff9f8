//! The watches of the PeerPodConfig controller, and the controller that they feed *(client required)*.

use std::{convert::Infallible, future::ready, sync::Arc};

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
        reflector::{ObjectRef, Store},
    },
};
use operator_kit::{Backoff, Leadership, Permission, projection::reading, status::Publisher};
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span, warn};

use super::{
    Mounted, admission,
    capacity::Capacity,
    conditions, drift,
    observe::Observer,
    policies,
    report::Reporter,
    resources::{self, CONFIG_LABEL, program::Program},
    watches, webhook_resources,
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPodConfig},
    metrics::Metrics,
};

/// The controller's name, in `--controllers` and in metrics.
pub const NAME: &str = "peerpodconfig";

/// What the controller may do in the whole cluster, beside [`capacity::PERMISSIONS`](super::capacity::PERMISSIONS).
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("confidentialcontainers.org", &["peerpodconfigs"], &["list", "watch", "patch"]),
    Permission::new("confidentialcontainers.org", &["peerpodconfigs/status"], &["patch"]),
    Permission::new("apps", &["daemonsets"], &["list", "watch"]),
    Permission::new("node.k8s.io", &["runtimeclasses"], &["get", "list", "watch"]),
    Permission::new(
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfigurations"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    Permission::new(
        "admissionregistration.k8s.io",
        &["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    Permission::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// What it may do in the operator's own namespace.
pub const NAMESPACE_PERMISSIONS: &[Permission] = &[
    Permission::new("", &["configmaps", "secrets"], &["get", "list", "watch"]),
    Permission::new("", &["pods"], &["get"]),
    Permission::new("", &["services"], &["get", "list", "watch", "create", "patch", "delete"]),
    Permission::new("", &["serviceaccounts"], &["get", "patch"]).named(&[resources::SERVICE_ACCOUNT]),
    Permission::new(
        "apps",
        &["daemonsets", "deployments"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
    // Where the operator itself is to run, and so the webhook.
    Permission::new("apps", &["replicasets"], &["get"]),
    Permission::new(
        "policy",
        &["poddisruptionbudgets"],
        &["get", "list", "watch", "create", "patch", "delete"],
    ),
];

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

/// What one reconcile needs.
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) options: Options,
    pub(super) observer: Observer,
    pub(super) reporter: Reporter,
    pub(super) configs: Store<PeerPodConfig>,
    pub(super) daemon_sets: Store<DaemonSet>,
    pub(super) capacity: Capacity,
    /// Reconciles and the garbage collection take turns.
    pub(super) turn: Mutex<()>,
    pub(super) policies: policies::PolicySupport,
    pub(super) webhook_resources: webhook_resources::Watched,
    pub(super) drifts: drift::Drifts,
    pub(super) propagation: admission::Propagation,
    /// What the webhook runs, once it is known: it does not change while this process runs.
    pub(super) program: OnceCell<Program>,
    pub(super) backoff: Backoff<ObjectRef<PeerPodConfig>>,
    pub(super) leadership: Leadership,
    pub(super) metrics: Metrics,
}

impl Context {
    /// Yields whenever this process begins or ceases to lead: another process may have led meanwhile.
    fn led(self: &Arc<Self>) -> impl Stream<Item = ()> + Send + use<> {
        let context = self.clone();
        self.leadership.changes().inspect(move |()| {
            context.capacity.taken_over();
            context.policies.doubt();
        })
    }
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
    let (capacity, nodes_changed) = Capacity::watch(&client);
    let nodes = capacity.nodes().clone();
    let own = options.namespace.clone();
    let labelled = reading(&client, &watches::LABELLED);
    let (configs, writer) = kube::runtime::reflector::store();
    let watches::Configurations { asking, others_ask, gone } = watches::configurations(&client, writer);
    let controller = Controller::for_stream(asking, configs.clone())
        .with_config(controller::Config::default().concurrency(1));
    let (daemon_sets, writer) = kube::runtime::reflector::store();
    let daemon_sets_seen = daemon_sets.clone();
    let policies = policies::PolicySupport::default();
    let policy_changes = policies::changes(&labelled, &policies.subscribe(), &own);
    let (webhook_resources, webhook_resources_changed) = webhook_resources::Watched::watch(&client, &own);
    let context = Arc::new(Context {
        observer: Observer { client: client.clone(), namespace: own.clone() },
        reporter: Reporter::new(Publisher::new(&client, &watches::CONFIG, FIELD_MANAGER, "Configuring")),
        configs: configs.clone(),
        daemon_sets,
        capacity,
        turn: Mutex::default(),
        policies,
        webhook_resources,
        drifts: drift::Drifts::default(),
        propagation: admission::Propagation::default(),
        program: OnceCell::new(),
        backoff: Backoff::default(),
        leadership: leadership.clone(),
        metrics,
        client: client.clone(),
        options,
    });

    let collecting = {
        let (context, asked) = (context.clone(), stream::select(gone, leadership.changes()));
        // The future is large, and it waits most of the time.
        Box::pin(async move { context.collect_garbage_when_asked(asked).await })
    };
    let everything = Everything { configs: configs.clone(), namespace: own.clone() };
    let webhooks = {
        let namespace = own.clone();
        move |name: Option<&String>| name.map(|name| ObjectRef::new(name).within(&namespace))
    };
    let all_daemon_sets = {
        let everything = everything.clone();
        // A DaemonSet that no longer runs cloud-api-adaptor, or that belongs to another configuration, may have caused a conflict.
        (watches::daemon_sets(&client, writer), move |daemon_set: DaemonSet| {
            if resources::runs_adaptor(&daemon_set) { everything.all() } else { everything.in_conflict() }
        })
    };
    let (cm, secrets, classes) = (everything.clone(), everything.clone(), everything.clone());
    let controller = controller
        .watches_stream(all_daemon_sets.0, all_daemon_sets.1)
        .owns_stream(watches::labelled::<Deployment>(Api::namespaced(labelled.clone(), &own)))
        .owns_stream(watches::labelled::<Service>(Api::namespaced(labelled.clone(), &own)))
        .owns_stream(watches::labelled::<PodDisruptionBudget>(Api::namespaced(labelled.clone(), &own)))
        .watches_stream(
            watches::labelled::<MutatingWebhookConfiguration>(Api::all(labelled.clone())),
            move |webhook| webhooks(webhook.labels().get(CONFIG_LABEL)),
        )
        // A reconcile reads them when it uses them.
        .watches_stream(watches::all::<ConfigMap>(Api::namespaced(labelled.clone(), &own)), move |it| {
            cm.using(|spec| spec.config_map_name == it.name_any())
        })
        .watches_stream(watches::all::<Secret>(Api::namespaced(labelled.clone(), &own)), move |it| {
            secrets.using(|spec| spec.cloud_secret_name == it.name_any())
        })
        .watches_stream(watches::all::<RuntimeClass>(Api::all(labelled)), move |it| {
            classes.using(|spec| spec.admission.runtime_class_name == it.name_any())
        })
        .reconcile_on(policy_changes)
        .reconcile_all_on(webhook_resources_changed)
        .reconcile_all_on(stream::select(nodes_changed, context.led()))
        .reconcile_all_on(others_ask)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, |_, never, _| match *never {}, context)
        .for_each(|outcome| {
            if let Err(error) = outcome
                && !matches!(error, controller::Error::ObjectNotFound(_))
            {
                warn!(%error, "a watch failed; the operator tries again");
            }
            ready(())
        });

    let all_seen = async move {
        if configs.wait_until_ready().await.is_ok() {
            nodes.wait_until_known().await;
            if daemon_sets_seen.wait_until_ready().await.is_ok() {
                info!(
                    configurations = configs.len(),
                    "the operator has listed every PeerPodConfig, node and DaemonSet"
                );
                synced();
            }
        }
        std::future::pending::<Infallible>().await
    };
    futures::pin_mut!(all_seen, controller);
    futures::select_biased! {
        () = controller.fuse() => {}
        never = collecting.fuse() => match never {},
        never = all_seen.fuse() => match never {},
    }
}

/// All configurations that the controller honours.
#[derive(Clone)]
struct Everything {
    configs: Store<PeerPodConfig>,
    namespace: String,
}

impl Everything {
    fn all(&self) -> Vec<ObjectRef<PeerPodConfig>> {
        self.of(|_| true)
    }

    /// Those whose status has the condition `Conflict`.
    fn in_conflict(&self) -> Vec<ObjectRef<PeerPodConfig>> {
        self.of(|config| {
            let conditions = config.status.iter().flat_map(|status| &status.conditions);
            conditions
                .into_iter()
                .any(|condition| condition.type_ == conditions::ConditionType::Conflict.as_str())
        })
    }

    fn using(
        &self,
        matches: impl Fn(&crate::api::v1alpha1::PeerPodConfigSpec) -> bool,
    ) -> Vec<ObjectRef<PeerPodConfig>> {
        self.of(|config| matches(&config.spec))
    }

    fn of(&self, matches: impl Fn(&PeerPodConfig) -> bool) -> Vec<ObjectRef<PeerPodConfig>> {
        let here = self
            .configs
            .state()
            .into_iter()
            .filter(|config| config.namespace().as_deref() == Some(&*self.namespace) && matches(config));
        here.map(|config| ObjectRef::from_obj(&*config)).collect()
    }
}

async fn reconcile(config: Arc<PeerPodConfig>, context: Arc<Context>) -> Result<Action, Infallible> {
    let span =
        info_span!("reconcile", namespace = config.metadata.namespace, peerpodconfig = config.metadata.name);
    let started = std::time::Instant::now();
    let key = ObjectRef::from_obj(&*config);
    let work = Box::pin(context.reconcile(&config).instrument(span.clone()));
    let Some(outcome) = context.leadership.while_leading(work).await else {
        return Ok(Action::await_change());
    };
    let (result, action) = match outcome {
        Ok(action) => {
            context.backoff.succeeded(&key);
            ("ok", action)
        }
        Err(error) => {
            let again = context.backoff.failed(&key);
            span.in_scope(|| warn!(%error, ?again, "the reconcile failed; the operator tries again"));
            ("error", Action::requeue(again))
        }
    };
    context.metrics.reconciled(NAME, result, started.elapsed());
    Ok(action)
}
