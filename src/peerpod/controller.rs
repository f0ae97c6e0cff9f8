//! The watches of the PeerPod controller, and the controller that they feed *(client required)*.

use std::{convert::Infallible, future::ready, sync::Arc};

use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use kube::{
    Api, Client,
    runtime::{
        Controller, WatchStreamExt,
        controller::{self, Action},
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use operator_kit::{
    Leadership, Permission,
    client::limited,
    controller::shutdown_before_list,
    projection::{IDENTITY_ALONE, MOST, Part, Projection, reading},
    status::Publisher,
    watch::{paged, retry_crd_watch},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span};

use super::{
    decide::Decision,
    findings::PeerPodFindings,
    index::{Change, Index, Key},
    object::key,
    observe::Observer,
    options::Options,
    parking::Parking,
    pod,
    pod_watch::PodWatch,
    reasons::Reason,
    report::{MOST_REPORTS, Reporter},
    report_tracker::ReportTracker,
    requeue::Requeues,
    requeue_policy::RequeuePolicy,
    trackers::Trackers,
    trim::trim,
};
use crate::{
    api::v1alpha1::{CRDS, FIELD_MANAGER, PeerPod, RELEASE_ANNOTATION, RELEASE_VERB},
    cluster::Cluster,
    metrics::Metrics,
    provider::{CloudSettings, Clouds, CloudsContext, Openers},
};

/// The controller's name, in `--controllers` and in metrics.
pub const NAME: &str = "peerpod";

/// What the controller may do in the cluster, and what for.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new(
        "confidentialcontainers.org",
        &["peerpods"],
        &["list", "watch", "patch", "delete", RELEASE_VERB],
    ),
    Permission::new("confidentialcontainers.org", &["peerpods/status"], &["patch"]),
    Permission::new("", &["pods"], &["get", "list", "watch"]),
    Permission::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// The number of reconciles beside those that have a slot at a cloud. Each ends soon, as it asks the API server alone. The number
/// is low so that thousands of PeerPods at start need little memory.
const BESIDE: usize = READS + RELEASES + MOST_REPORTS;

/// The most requests of reconciles in flight at the API server: those that read, and those that release or delete PeerPods. Each
/// has a connection, which takes memory. Each kind has a number of its own, so that one kind that hangs does not stop the other.
const READS: usize = 16;
const RELEASES: usize = 8;

/// The fields of a PeerPod that the controller reads.
pub(crate) static PEERPOD: Projection = Projection {
    metadata: &[
        ("annotations", Part::Only(&[(RELEASE_ANNOTATION, Part::All)])),
        ("finalizers", Part::All),
        ("ownerReferences", Part::All),
    ],
    rest: &[("spec", Part::All), ("status", Part::All)],
    most: MOST,
};

/// What one reconcile needs.
pub(super) struct Context {
    pub(super) observer: Observer,
    /// Releases and deletes PeerPods.
    pub(super) releases: Client,
    pub(super) reporter: Reporter,
    pub(super) trackers: Trackers,
    pub(super) requeues: Requeues,
    pub(super) index: Arc<Index>,
    leadership: Leadership,
    pub(super) metrics: Metrics,
}

/// The controller of PeerPods, which [`run`](Self::run) starts.
pub struct PeerPods {
    client: Client,
    context: Arc<Context>,
    writer: Writer<PeerPod>,
    concurrency: usize,
    /// Keeps the places of VMs. Without it the controller would decide nothing.
    keeping: BoxFuture<'static, Infallible>,
}

/// What the controller shares with the sweep, which runs beside it.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) clouds: Clouds,
    pub(crate) leadership: Leadership,
    pub(crate) metrics: Metrics,
    /// All PeerPods, once they are listed.
    pub(crate) peerpods: Store<PeerPod>,
    /// What the sweep found out about PeerPods.
    pub(crate) findings: PeerPodFindings,
    requeues: Requeues,
}

impl Shared {
    /// Reconciles these.
    pub(crate) fn requeue(&self, peerpods: impl IntoIterator<Item = ObjectRef<PeerPod>>) {
        self.requeues.add(peerpods.into_iter().map(Into::into));
    }
}

impl PeerPods {
    /// The controller of PeerPods whose VMs are in the clouds of these settings. `openers` open their providers, with access to the
    /// cluster of `client`.
    pub fn new(
        client: Client,
        clouds: impl IntoIterator<Item = CloudSettings>,
        openers: Openers,
        leadership: Leadership,
        metrics: Metrics,
        options: &Options,
    ) -> Self {
        metrics.expect(
            Decision::LABELS.map(|(label, _)| label),
            Reason::ALL.iter().map(|reason| reason.as_str()),
        );
        let (clouds, keeping) = Clouds::serve(
            clouds,
            &CloudsContext {
                client: client.clone(),
                namespace: options.namespace.clone(),
                openers: openers.in_cluster(client.clone(), &options.namespace),
                leadership: leadership.clone(),
                metrics: metrics.clone(),
                concurrency: options.slots(),
            },
        );
        let (store, writer) = reflector::store();
        let concurrency = BESIDE + Parking::most(options.slots(), clouds.len());
        let context = Context::new(&client, clouds, leadership, metrics, options, store);
        Self { client, context: Arc::new(context), writer, concurrency, keeping }
    }

    /// What runs beside it needs this.
    pub(crate) fn shared(&self) -> Shared {
        let Context { observer, leadership, metrics, requeues, .. } = &*self.context;
        Shared {
            client: self.client.clone(),
            clouds: observer.clouds.clone(),
            leadership: leadership.clone(),
            metrics: metrics.clone(),
            peerpods: observer.store.clone(),
            findings: observer.findings.clone(),
            requeues: requeues.clone(),
        }
    }

    /// Runs the controller until `shutdown`, then waits for the running reconciles. Calls `synced` once, when the watch has listed
    /// every PeerPod.
    ///
    /// The controller watches PeerPods all the time and reconciles them while this process leads. When leadership ends, it drops
    /// the running reconciles. When leadership begins again, it reconciles every PeerPod that needs it.
    ///
    /// The leader also keeps the record of the places of VMs, which needs
    /// [permissions of its own](crate::provider::places::PERMISSIONS).
    pub async fn run(self, synced: impl FnOnce() + Send + 'static, shutdown: CancellationToken) {
        let Self { client, context, writer, concurrency, keeping } = self;
        let store = context.observer.store.clone();
        let circumstances = stream::select(context.observer.clouds.changes(), context.leadership.changes());
        let watching = context.clone();
        let api: Api<PeerPod> = Api::all(reading(&client, &PEERPOD));
        let watch = watcher::watcher(api, paged());
        let peerpods = retry_crd_watch::<PeerPod, _>(&[CRDS], watch)
            .modify(trim)
            .reflect(writer)
            .try_filter_map(move |event| {
                let Change { matters, others } = watching.index.apply(&event);
                watching.requeues.add(others);
                watching.seen(&event);
                ready(Ok(match event {
                    watcher::Event::Apply(peerpod) if matters => Some(peerpod),
                    _ => None,
                }))
            });

        let peerpods_seen = store.clone();
        let all_seen = async move {
            if peerpods_seen.wait_until_ready().await.is_ok() {
                info!(peerpods = peerpods_seen.len(), "the operator has listed every PeerPod");
                synced();
            }
            std::future::pending::<Infallible>().await
        };
        let end = shutdown_before_list(store.clone(), shutdown.clone());
        let index = context.index.clone();
        let resync =
            circumstances.flat_map(move |()| stream::iter(index.to_resync()).map(|key| (*key).clone()));
        let controller = Controller::for_stream(peerpods, store)
            .with_config(
                controller::Config::default().concurrency(u16::try_from(concurrency).unwrap_or(u16::MAX)),
            )
            .reconcile_on(context.requeues.clone().stream())
            .reconcile_on(resync)
            .graceful_shutdown_on(shutdown.cancelled_owned())
            .run(reconcile, |_, never, _| match *never {}, context.clone())
            .take_until(end)
            .for_each(|reconciled| {
                if let Err(controller::Error::ObjectNotFound(gone)) = reconciled {
                    context.requeues.skipped(&gone.into_kind_unchecked(()));
                }
                ready(())
            });
        let pod_watch = context.trackers.pod_watch.run(client);
        futures::pin_mut!(all_seen, controller, pod_watch);
        futures::select_biased! {
            () = controller.fuse() => {}
            never = all_seen.fuse() => match never {},
            never = pod_watch.fuse() => match never {},
            never = keeping.fuse() => match never {},
        }
    }
}

async fn reconcile(peerpod: Arc<PeerPod>, context: Arc<Context>) -> Result<Action, Infallible> {
    let span = info_span!(
        "reconcile",
        namespace = peerpod.metadata.namespace,
        peerpod = peerpod.metadata.name,
        cloud = peerpod.cloud_provider(),
        instance = peerpod.instance_id(),
    );
    let (key, started) = (Key::from(key(&peerpod)), std::time::Instant::now());
    let _running = context.requeues.started(key.clone());
    context.index.reconcile_started(&key, &context.metrics);
    let work = context.reconcile(&peerpod).instrument(span);
    let done = context.leadership.while_leading(work).await;
    if !context.index.contains(&key) {
        // The PeerPod was removed during this reconcile, so no later event clears what the reconcile stored.
        context.trackers.forget(&key);
    }
    let Some((result, action)) = done else {
        // This process does not lead, so it waits for nothing. A new term reconciles the PeerPod again.
        context.trackers.stop(&key);
        return Ok(Action::await_change());
    };
    context.metrics.reconciled(NAME, result, started.elapsed());
    Ok(action)
}

impl Context {
    pub(super) fn new(
        client: &Client,
        clouds: Clouds,
        leadership: Leadership,
        metrics: Metrics,
        options: &Options,
        store: Store<PeerPod>,
    ) -> Self {
        let (index, requeues) = (Arc::new(Index::default()), Requeues::default());
        let trackers = Trackers {
            requeue_policy: RequeuePolicy::default(),
            pod_watch: PodWatch::new(requeues.clone()),
            report_tracker: ReportTracker::new(options.slow_after, metrics.clone()),
            grace_periods: Arc::default(),
            clean_ups: Arc::default(),
            parking: Parking::new(options.slots(), requeues.clone(), metrics.clone()),
        };
        Self {
            observer: Observer {
                client: reading(&limited(client, READS), &pod::POD),
                clouds,
                index: index.clone(),
                store,
                grace_periods: Arc::clone(&trackers.grace_periods),
                clean_ups: Arc::clone(&trackers.clean_ups),
                cluster: Cluster::new(client),
                findings: PeerPodFindings::default(),
                requeues: requeues.clone(),
            },
            releases: reading(&limited(client, RELEASES), &IDENTITY_ALONE),
            reporter: Reporter::new(Publisher::new(client, &PEERPOD, FIELD_MANAGER, "Reaping")),
            trackers,
            requeues,
            index,
            leadership,
            metrics,
        }
    }

    /// Forgets PeerPods that were removed, and counts the others.
    fn seen(&self, event: &watcher::Event<PeerPod>) {
        match event {
            watcher::Event::Delete(gone) => self.trackers.forget(&key(gone)),
            // No event shows a removal while the watch was down.
            watcher::Event::InitDone => self.trackers.retain(&self.index),
            watcher::Event::Init | watcher::Event::InitApply(_) => return,
            watcher::Event::Apply(_) => {}
        }
        self.index.publish(&self.metrics);
    }
}

#[cfg(test)]
mod tests;
