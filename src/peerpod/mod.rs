//! The PeerPod controller: when a Pod is gone and its VM is not, delete the VM, then release the finalizer.
//!
//! ```text
//! watch ─► store, index ─► observe ─► decide ─► apply ─► report
//!                          (reads)    (pure)    (one     (condition, event:
//!                                               effect)   only what changed)
//! ```
//!
//! [`decide`](decide::decide) holds every rule; `observe` and `apply` are thin. A normal deletion reads the owner Pod
//! once, asks the cloud, deletes, sees the machine absent and releases the finalizer by one JSON patch: the only write.
//! Nothing sleeps inside a reconcile: whatever has to be waited for is looked at again later, by a trigger where there
//! is one and by a timer in any case.

mod api_call;
mod apply;
pub mod decide;
mod index;
mod observe;
mod owners;
mod report;
pub mod verdict;

use std::{convert::Infallible, future::ready, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, TryStreamExt};
use jiff::Timestamp;
use kube::{
    Api, Client,
    runtime::{
        Controller, WatchStreamExt,
        controller::{self, Action},
        events::{EventType, Recorder},
        reflector::{self, ObjectRef},
        watcher,
    },
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug, info, info_span, warn};

use self::{
    api_call::ApiError,
    apply::Written,
    decide::{Decision, Facts, Release, Wait, decide},
    index::{Change, Index, Nudges},
    observe::Observer,
    owners::OwnerWatch,
    report::Reporter,
};
use crate::{
    api::v1alpha1::{FIELD_MANAGER, PeerPod, RELEASE_ANNOTATION},
    permissions::Permission,
    provider::{Clouds, Error, ErrorClass, OwnVm, Provider, cloud_label},
    runtime::{Backoff, Leadership, Metrics},
};

/// The controller's name, in `--controllers` and in metrics.
pub const NAME: &str = "peerpod";

/// What the controller may do in the cluster, and what for.
pub const PERMISSIONS: &[Permission] = &[
    Permission::new("confidentialcontainers.org", &["peerpods"], &["list", "watch", "patch", "delete"]),
    Permission::new("confidentialcontainers.org", &["peerpods/status"], &["patch"]),
    Permission::new("", &["pods"], &["get", "list", "watch"]),
    Permission::new("events.k8s.io", &["events"], &["create", "patch"]),
];

/// How often something that needs somebody's help is looked at without being told to.
const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// A cloud that asks for fewer calls and names no time gets this much.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// How often a Pod that keeps its machine is looked at without being told to.
const POD_RESYNC: Duration = Duration::from_secs(60);

/// How many PeerPods are worked on at once: several times the calls that one cloud gets, so that its limit is what holds
/// them up, and few enough that thousands found at start cost no memory to speak of.
const CONCURRENCY: u16 = 256;

/// How many PeerPods one page of the first list brings: enough for few round trips, little enough to stay small.
const PAGE: u32 = 100;

/// What one reconcile needs.
struct Context {
    observer: Observer,
    reporter: Reporter,
    owners: OwnerWatch,
    index: Arc<Index>,
    backoff: Backoff<ObjectRef<PeerPod>>,
    leadership: Leadership,
    metrics: Metrics,
}

/// Runs the controller until `shutdown`, then ends after the reconciles under way. Calls `synced` once, when every
/// PeerPod there is has been seen.
///
/// PeerPods are watched all the time and reconciled while this process leads. With the end of its leadership whatever is
/// under way is dropped; with the next one every PeerPod is looked at anew.
pub async fn run(
    client: Client,
    clouds: Clouds,
    leadership: Leadership,
    metrics: Metrics,
    synced: impl FnOnce() + Send + 'static,
    shutdown: CancellationToken,
) {
    let index = Arc::new(Index::default());
    let nudges = Nudges::default();
    let (store, writer) = reflector::store();
    let settings_changed = clouds.changes();
    let leadership_changed = leadership.changes();
    let context = Arc::new(Context {
        observer: Observer { client: client.clone(), clouds, index: index.clone(), store: store.clone() },
        reporter: Reporter {
            client: client.clone(),
            recorder: Recorder::new(client.clone(), FIELD_MANAGER.into()),
        },
        owners: OwnerWatch::new(nudges.clone()),
        index: index.clone(),
        backoff: Backoff::default(),
        leadership,
        metrics,
    });

    let api: Api<PeerPod> = Api::all(client.clone());
    let (observer, tell) = (context.clone(), nudges.clone());
    let peerpods = watcher::watcher(api, watcher::Config::default().page_size(PAGE))
        .default_backoff()
        .modify(trim)
        .inspect_err(|error| warn!(%error, "watching PeerPods failed; trying again"))
        .reflect(writer)
        .try_filter_map(move |event| {
            let Change { matters, others } = index.apply(&event);
            tell.add(others);
            observer.seen(&event);
            ready(Ok(match event {
                watcher::Event::Apply(peerpod) | watcher::Event::InitApply(peerpod) if matters => {
                    Some(peerpod)
                }
                _ => None,
            }))
        });

    let peerpods_seen = store.clone();
    let all_seen = async move {
        if peerpods_seen.wait_until_ready().await.is_ok() {
            info!(peerpods = peerpods_seen.len(), "every PeerPod has been seen");
            synced();
        }
        std::future::pending::<Infallible>().await
    };
    let controller = Controller::for_stream(peerpods, store)
        .with_config(controller::Config::default().concurrency(CONCURRENCY))
        .reconcile_on(nudges.stream())
        .reconcile_all_on(settings_changed)
        .reconcile_all_on(leadership_changed)
        .graceful_shutdown_on(shutdown.cancelled_owned())
        .run(reconcile, |_, never, _| match *never {}, context.clone())
        .for_each(|_| ready(()));
    let owners = context.owners.run(client);
    futures::pin_mut!(all_seen, controller, owners);
    futures::select_biased! {
        () = controller.fuse() => {}
        never = all_seen.fuse() => match never {},
        never = owners.fuse() => match never {},
    }
}

/// Keeps what decisions read and drops the rest, which is most of an object's size.
fn trim(peerpod: &mut PeerPod) {
    let metadata = &mut peerpod.metadata;
    metadata.managed_fields = None;
    metadata.labels = None;
    metadata.generate_name = None;
    metadata.annotations = metadata
        .annotations
        .take()
        .and_then(|mut all| all.remove_entry(RELEASE_ANNOTATION))
        .map(|it| [it].into());
}

async fn reconcile(peerpod: Arc<PeerPod>, context: Arc<Context>) -> Result<Action, Infallible> {
    let span = info_span!(
        "reconcile",
        namespace = peerpod.metadata.namespace,
        peerpod = peerpod.metadata.name,
        cloud = peerpod.cloud_provider(),
        instance = peerpod.instance_id(),
    );
    let started = std::time::Instant::now();
    // Boxed, as every wrapper around a future this large would hold it twice.
    let work = Box::pin(context.reconcile(&peerpod).instrument(span.clone()));
    let Some(outcome) = context.leadership.while_leading(work).await else {
        // Nothing is waited for by one who would not act on it. What comes next, a new term brings.
        context.owners.settled(&peerpod);
        return Ok(Action::await_change());
    };
    let (result, action) = match outcome {
        Ok(action) => ("ok", action),
        Err(error) => {
            let again = context.backoff.failed(&index::key(&peerpod));
            span.in_scope(|| warn!(%error, ?again, "cannot go on; trying again"));
            ("error", Action::requeue(again))
        }
    };
    context.metrics.reconciled(NAME, result, started.elapsed());
    if !context.index.contains(&index::key(&peerpod)) {
        // It went meanwhile, and nobody else forgets what this pass remembered of it.
        context.forget(&peerpod);
    }
    Ok(action)
}

impl Context {
    async fn reconcile(&self, peerpod: &PeerPod) -> Result<Action, ApiError> {
        // One provider from the first look to the last: settings that change meanwhile must not let another cloud say
        // that the machine is gone.
        let provider = self.observer.clouds.provider(peerpod.cloud_provider());
        let mut facts = self.observer.observe(peerpod, &provider).await?;
        let mut decision = decide(facts.clone());
        if let Decision::Delete(own) = &decision {
            match delete(&provider, own).await {
                Ok(()) => {
                    facts.machine = observe::machine_of(peerpod, &provider).await;
                    facts.deletion_accepted = true;
                    decision = decide(facts.clone());
                }
                Err(unanswered) => decision = unanswered,
            }
        }
        self.conclude(peerpod, &facts, decision).await
    }

    async fn conclude(
        &self,
        peerpod: &PeerPod,
        facts: &Facts,
        decision: Decision,
    ) -> Result<Action, ApiError> {
        let verdict = verdict::verdict(&decision, facts.deleted, facts.now);
        let key = index::key(peerpod);
        match &decision {
            Decision::Wait(Wait::PodRuns | Wait::PodEnds(_)) => self.owners.expect(peerpod),
            _ => self.owners.settled(peerpod),
        }
        let action = match decision {
            Decision::Nothing => {
                self.backoff.succeeded(&key);
                Action::await_change()
            }
            Decision::Supersede => {
                info!("a newer PeerPod of the same Pod replaced this one; deleting it");
                return Ok(self.after_write(&key, apply::supersede(&self.observer.client, peerpod).await?));
            }
            Decision::Release(release) => return self.release(peerpod, facts, release).await,
            Decision::Wait(wait) => Action::requeue(match wait {
                Wait::PodRuns => self.spread(POD_RESYNC),
                Wait::PodEnds(left) => left.min(POD_RESYNC),
                Wait::MachineGoes => self.backoff.failed(&key),
            }),
            // Delete never reaches this: it is either refused with an error or decided anew with its acceptance known.
            Decision::Keep(_) | Decision::Refuse(_) | Decision::Delete(_) => {
                Action::requeue(self.spread(SLOW_RESYNC))
            }
            Decision::Retry(error) => {
                debug!(class = error.class.as_str(), "{error}");
                Action::requeue(match error.class {
                    ErrorClass::Throttled { retry_after } => {
                        let pause = retry_after.max(LEAST_PAUSE);
                        pause + self.backoff.jitter(pause)
                    }
                    ErrorClass::Unauthorized | ErrorClass::Invalid | ErrorClass::NotSupported => {
                        self.spread(SLOW_RESYNC)
                    }
                    ErrorClass::Transient | ErrorClass::NotFound => self.backoff.failed(&key),
                })
            }
        };
        if let Some(verdict) = &verdict {
            self.metrics.held(verdict.reason.as_str());
        }
        // Whether people can be told does not decide when to go on; it is tried again with the next pass.
        if let Err(error) = self.reporter.report(peerpod, verdict.as_ref()).await {
            warn!(%error, "the status could not be written");
        }
        Ok(action)
    }

    /// A little longer than `pause`, so that thousands that wait for the same thing do not come back at once.
    fn spread(&self, pause: Duration) -> Duration {
        pause + self.backoff.jitter(pause / 4)
    }

    async fn release(&self, peerpod: &PeerPod, facts: &Facts, release: Release) -> Result<Action, ApiError> {
        let written = apply::release(&self.observer.client, peerpod).await?;
        if written == Written::Done {
            let latency =
                facts.deleted.map(|deleted| Timestamp::now().duration_since(deleted)).unwrap_or_default();
            let outcome = match release {
                Release::Absent => "absent",
                Release::Abandoned => "abandoned",
            };
            info!(outcome, "finalizer released");
            let cloud = cloud_label(peerpod.cloud_provider());
            self.metrics.released(cloud, outcome, Duration::try_from(latency).unwrap_or_default());
            if let Some(note) = verdict::abandoned(release) {
                self.reporter.event(peerpod, EventType::Normal, "Abandoned", note).await;
            }
        }
        Ok(self.after_write(&index::key(peerpod), written))
    }

    /// After a write the watch brings whatever comes next. An outdated object comes the same way; the timer is for a watch
    /// that hangs.
    fn after_write(&self, key: &ObjectRef<PeerPod>, written: Written) -> Action {
        match written {
            Written::Done | Written::Gone => {
                self.backoff.succeeded(key);
                Action::await_change()
            }
            Written::Outdated => Action::requeue(self.backoff.failed(key)),
        }
    }

    /// Forgets PeerPods that are gone, and counts those that are there.
    fn seen(&self, event: &watcher::Event<PeerPod>) {
        match event {
            watcher::Event::Delete(gone) => self.forget(gone),
            // What went while nobody watched shows in no event.
            watcher::Event::InitDone => {
                self.backoff.retain(|key| self.index.contains(key));
                self.owners.retain(|key| self.index.contains(key));
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => return,
            watcher::Event::Apply(_) => {}
        }
        for (cloud, count) in self.index.clouds() {
            self.metrics.peerpods(cloud, count);
        }
    }

    fn forget(&self, gone: &PeerPod) {
        self.backoff.succeeded(&index::key(gone));
        self.owners.settled(gone);
    }
}

/// The one effect on a cloud. A machine that is gone by now is deleted.
async fn delete(provider: &Result<Arc<dyn Provider>, Error>, own: &OwnVm) -> Result<(), Decision> {
    info!(machine = own.vm().name, "deleting the machine");
    let deleted = match provider {
        Ok(provider) => provider.delete(own).await,
        Err(unavailable) => Err(unavailable.clone()),
    };
    match deleted {
        Err(error) if error.class != ErrorClass::NotFound => Err(decide::unanswered(error)),
        _ => Ok(()),
    }
}
