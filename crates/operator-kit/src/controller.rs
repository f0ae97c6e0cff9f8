//! A controller in its surroundings *(client required)*: what it reads is cached, it acts while this process leads, and it tries
//! again what failed.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # use kube::runtime::controller::Action;
//! # use operator_kit::{api_call::ApiError, controller::Host, watch};
//! # use operator_kit::projection::{MOST, Part, Projection};
//! static READ: Projection = Projection { metadata: &[], rest: &[("data", Part::All)], most: MOST };
//!
//! async fn run(host: Host) {
//!     let controller = host.controller(&READ, watch::paged(), |map: &ConfigMap| map.data.clone());
//!     let context = "what every reconcile uses";
//!     host.run(controller, context, |map: Arc<ConfigMap>, context| async move {
//!         Ok::<_, ApiError>(Action::await_change())
//!     })
//!     .await;
//! }
//! ```

use std::{
    convert::Infallible,
    fmt::{Debug, Display},
    future::{pending, ready},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    api::DynamicObject,
    runtime::{
        Controller, WatchStreamExt,
        controller::{self, Action},
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    Backoff, Leadership,
    crd::Crds,
    http::Readiness,
    metadata::Metadata,
    projection::{MOST, Part, Projection, reading_for_cache},
    watch,
};

/// What is read of the metadata of others' objects, beside the finalizers. Annotations and managed fields, which hold most of it, cost
/// no memory.
static METADATA: Projection =
    Projection { metadata: &[("labels", Part::All), ("ownerReferences", Part::All)], rest: &[], most: MOST };

/// How many objects one controller reconciles at once. More is seldom faster, as the API server is the limit. Each takes connections
/// and memory.
const CONCURRENCY: u16 = 8;

/// How long an object must be unchanged before it is reconciled. An operator's own writes return as several changes, one after the
/// other. A reconcile after all of them finds them in its caches. A reconcile between them would list objects and write a status
/// again. The time is short, because each change starts it anew: changes that follow each other faster put the reconcile off until
/// they pause.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// How the controllers of [`Host::controller`] are configured: up to eight objects are reconciled at once, each after it was unchanged
/// for 20 milliseconds. For other numbers: `host.controller(…).with_config(defaults().concurrency(1))`.
pub fn defaults() -> controller::Config {
    controller::Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE)
}

/// Objects that changed, as controllers expect them.
pub type Changes<K> = BoxStream<'static, Result<K, watcher::Error>>;

/// The process that a controller is a part of. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    /// The client of the API server.
    pub client: Client,
    /// How kinds are installed whose definitions may be missing: the operator's own, and those of other operators. The log says so when
    /// a watch of such a kind fails. Kubernetes' own kinds need none.
    pub crds: &'static [Crds],
    /// Whether the controller may act.
    pub leadership: Leadership,
    /// What must be listed before the process is ready.
    pub readiness: Readiness,
    /// When the controller ends.
    pub shutdown: CancellationToken,
}

impl Host {
    /// A cache of these objects, with no more of each than the projection names, and the finalizers: what others write to other fields
    /// keeps no list from being read. Yields those of which `part` changes, new and deleted ones among them, and all of them after each
    /// list. The process is not ready before they are listed. The cache is kept up to date while the changes are read.
    ///
    /// It covers all namespaces, so it needs a `ClusterRole` that lets the program `list` and `watch` these objects.
    pub fn cached<K, H: Hash + 'static>(
        &self,
        projection: &'static Projection,
        config: watcher::Config,
        part: impl Fn(&K) -> H + Send + 'static,
    ) -> (Store<K>, Changes<K>)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let listed = self.readiness.needs(K::plural(&()));
        let api = Api::<K>::all(reading_for_cache(&self.client, projection));
        let events = watch::retry_crd_watch::<K, _>(self.crds, watcher(api, config));
        let events = events.reflect(writer).inspect(move |event| {
            if matches!(event, Ok(watcher::Event::InitDone)) {
                listed.met();
            }
        });
        let changes = watch::changed_objects(store.clone(), events, part).boxed();
        (store, changes)
    }

    /// A cache of the metadata of these objects. Yields those whose spec, labels or owners change, and those whose deletion
    /// begins. (A change of the spec shows as another generation. Objects without a generation, such as ConfigMaps and Roles, are
    /// yielded after every write.) It suffices to notice changes that others make to an operator's objects. Annotations and managed
    /// fields are not read; of labels, owners and finalizers at most [`MOST`] each.
    pub fn cached_metadata<K>(&self, config: watcher::Config) -> (Store<Metadata<K>>, Changes<Metadata<K>>)
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        self.cached(&METADATA, config, |object: &Metadata<K>| {
            let metadata = object.meta();
            // Without a generation, nothing else of the metadata changes with the content.
            let version = metadata.resource_version.clone().filter(|_| metadata.generation.is_none());
            let owners = json!(metadata.owner_references).to_string();
            let deleted = metadata.deletion_timestamp.is_some();
            (metadata.generation, version, metadata.labels.clone(), owners, deleted)
        })
    }

    /// A controller of these objects, on a [cache](Self::cached) of them, which is its [`store`](Controller::store). It has the
    /// [`defaults`] until the caller replaces them by [`with_config`](Controller::with_config).
    pub fn controller<K, H: Hash + 'static>(
        &self,
        projection: &'static Projection,
        config: watcher::Config,
        part: impl Fn(&K) -> H + Send + 'static,
    ) -> Controller<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, changes) = self.cached(projection, config, part);
        Controller::for_stream(changes, store).with_config(defaults())
    }

    /// Runs a controller until the shutdown, then waits for its running reconciles. A controller that
    /// [`controller`](Self::controller) did not make has kube's own configuration: no limit of reconciles at once, and no delay.
    ///
    /// A call that hangs holds one of the slots for reconciles, of which [`defaults`] has eight. So give each call a deadline, as
    /// [`bounded`](crate::api_call::bounded) does.
    ///
    /// It reconciles while this process leads and after everything that [`Readiness`] needs is met. So nothing that it needs may come
    /// from a reconcile. An error of a reconcile is logged, and the object is reconciled again after a delay of its own. When this
    /// process begins to lead, it reconciles every object.
    pub async fn run<K, C, E, F>(
        &self,
        controller: Controller<K>,
        context: C,
        reconcile: impl Fn(Arc<K>, Arc<C>) -> F + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        C: Send + Sync + 'static,
        E: Display + Send,
        F: Future<Output = Result<Action, E>> + Send + 'static,
    {
        let attempts = Arc::new(Attempts::new(self.leadership.clone()));
        let (gone, context) = (attempts.clone(), Arc::new(context));
        // Whether everything was listed. What the process lacks later, as during an outage, does not delay reconciles.
        let (listed, readiness) = (Arc::new(OnceCell::new()), self.readiness.clone());
        let shutdown = self.shutdown.clone();
        let end = shutdown_before_list(controller.store(), shutdown.clone());
        let reconcile = Arc::new(reconcile);
        let reconcile = move |object: Arc<K>, attempts: Arc<Attempts<K>>| {
            let (reconcile, context, observed) = (reconcile.clone(), context.clone(), object.clone());
            let (listed, readiness, shutdown) = (listed.clone(), readiness.clone(), shutdown.clone());
            let work = async move {
                let until_listed = listed.get_or_init(|| readiness.ready());
                // Otherwise the end would wait for what may never be listed.
                if shutdown.run_until_cancelled(until_listed).await.is_none() {
                    return Ok(Action::await_change());
                }
                reconcile(observed, context).await
            };
            async move { attempts.make(&object, work, |_| ()).await }
        };
        controller
            .reconcile_all_on(self.leadership.changes())
            .graceful_shutdown_on(self.shutdown.clone().cancelled_owned())
            .run(reconcile, |_, never, _| match *never {}, attempts)
            .take_until(end)
            .for_each(|outcome| {
                match outcome {
                    Err(controller::Error::ObjectNotFound(object)) => gone.forget(*object),
                    // Of a watch that the caller added: those of `cached` log by themselves. All of the controller now pauses for a while.
                    Err(controller::Error::QueueError(error)) => {
                        warn!(
                            problem = watch::text(&error),
                            "a watch of the controller of {} failed",
                            K::plural(&())
                        );
                    }
                    Err(error) => warn!(%error, "the controller of {} failed", K::plural(&())),
                    Ok(_) => {}
                }
                ready(())
            })
            .await;
    }
}

/// Ends at the shutdown if the objects of this store were not listed by then, and otherwise never. For `take_until` on what kube's
/// [`Controller::run`] returns, as [`Host::run`] does by itself.
///
/// kube's controller does not begin before the first list of its objects, and does not end before it either, even at a shutdown.
/// Where that list never comes, the whole process would end late.
pub async fn shutdown_before_list<K>(store: Store<K>, shutdown: CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    // If the watch itself is gone, the controller ends.
    if shutdown.run_until_cancelled(store.wait_until_ready()).await.is_some() {
        pending::<()>().await;
    }
}

/// The attempts to reconcile the objects of one controller: while this process leads, and again after a failure. [`Host::run`]
/// makes them by itself. A controller that runs in another way calls [`make`](Self::make) in its reconcile.
pub struct Attempts<K: Resource<DynamicType = ()>> {
    leadership: Leadership,
    backoff: Backoff<ObjectRef<K>>,
}

impl<K: Resource<DynamicType = ()> + Clone> Attempts<K> {
    /// No attempt was made yet.
    pub fn new(leadership: Leadership) -> Self {
        Self { leadership, backoff: Backoff::default() }
    }

    /// Does the work of one reconcile, and passes its outcome to `ended`. An error is logged, and the object is reconciled again after
    /// a delay of its own.
    ///
    /// Without leadership it does nothing, and does not call `ended`. A controller reconciles everything when leadership begins.
    pub async fn make<E: Display>(
        &self,
        object: &K,
        work: impl Future<Output = Result<Action, E>>,
        ended: impl FnOnce(&Result<Action, E>),
    ) -> Result<Action, Infallible> {
        let Some(outcome) = self.leadership.while_leading(work).await else {
            return Ok(Action::await_change());
        };
        ended(&outcome);
        let key = ObjectRef::from_obj(object);
        Ok(match outcome {
            Ok(action) => {
                self.backoff.succeeded(&key);
                action
            }
            Err(error) => {
                let again = self.backoff.failed(&key);
                warn!(%error, ?again, "the reconcile failed; the operator tries again");
                Action::requeue(again)
            }
        })
    }

    /// An object is gone, so its failures no longer count.
    pub fn forget(&self, gone: ObjectRef<DynamicObject>) {
        self.backoff.succeeded(&gone.into_kind_unchecked(()));
    }
}

#[cfg(test)]
mod tests;
