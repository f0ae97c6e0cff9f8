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

/// How many objects one controller reconciles at once. More would not be faster, as the API server is the limit. Each takes
/// connections and memory.
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
                if let Err(controller::Error::ObjectNotFound(object)) = outcome {
                    gone.forget(*object);
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

/// The key of an object that is gone: the same as when it failed.
fn key<K: Resource<DynamicType = ()>>(gone: ObjectRef<DynamicObject>) -> ObjectRef<K> {
    let mut key = ObjectRef::<K>::new(&gone.name);
    // Objects of the whole cluster have none, which is not the same as an empty one.
    key.namespace = gone.namespace;
    key
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
        self.backoff.succeeded(&key(gone));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use kube::ResourceExt as _;
    use serde_json::Value;
    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::{
        testing::{Answer, ApiServer, Call},
        widget::{CRDS, FINALIZER, WIDGET, Widget, WidgetSpec},
    };

    const WIDGETS: &str = "/apis/example.com/v1/widgets";

    fn host(server: &ApiServer) -> Host {
        Host {
            client: server.client(),
            crds: &[CRDS],
            leadership: Leadership::unlimited(),
            readiness: Readiness::default(),
            shutdown: CancellationToken::new(),
        }
    }

    #[test]
    fn an_object_that_is_gone_has_the_key_by_which_it_failed() {
        let node: Node = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        let mut widget = Widget::new("a", WidgetSpec::default());
        widget.metadata.namespace = Some("shop".into());
        assert_eq!(key::<Node>(ObjectRef::from_obj(&node).erase()), ObjectRef::from_obj(&node));
        assert_eq!(key::<Widget>(ObjectRef::from_obj(&widget).erase()), ObjectRef::from_obj(&widget));
    }

    #[tokio::test]
    async fn an_attempt_shows_its_outcome_unless_the_process_does_not_lead() {
        let widget = Widget::new("a", WidgetSpec::default());
        let attempt = async |leadership, outcome: Result<Action, &str>| {
            let shown = Cell::new(None);
            let attempts = Attempts::new(leadership);
            let action = attempts.make(&widget, ready(outcome), |it| shown.set(Some(it.is_ok()))).await;
            (action, shown.get())
        };
        let (resync, wait) = (Action::requeue(Duration::from_secs(600)), Action::await_change());
        assert_eq!(attempt(Leadership::none(), Ok(resync.clone())).await, (Ok(wait.clone()), None));
        assert_eq!(attempt(Leadership::unlimited(), Ok(resync.clone())).await, (Ok(resync), Some(true)));
        let (action, shown) = attempt(Leadership::unlimited(), Err("not yet")).await;
        assert!(shown == Some(false) && action != Ok(wait), "{action:?}");
    }

    #[tokio::test]
    async fn annotations_and_managed_fields_cost_no_memory() {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "v" });
        let read = json!({
            "name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "2", "generation": 3,
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"], "labels": { "c": "d" },
            "ownerReferences": [owner],
        });
        let mut metadata = read.clone();
        metadata["annotations"] = json!({ "large": "x".repeat(1000) });
        metadata["managedFields"] = json!([{ "manager": "m" }]);
        let list = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": { "resourceVersion": "2" },
            "items": [{ "metadata": metadata }],
        });
        let server = ApiServer::expecting([Call::get(WIDGETS).answer(Answer::object(&list))]);
        let (store, mut changes) = host(&server).cached_metadata::<Widget>(watch::paged());
        assert_eq!(json!(changes.next().await.unwrap().unwrap().meta()), read);
        assert_eq!(json!(store.state()[0].meta()), read);
    }

    /// The resource versions of an object that a cache of metadata yields. It is written with these generations one after the other.
    async fn yielded<K>(path: &str, generations: [Option<i64>; 3]) -> Vec<String>
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let written = generations.iter().zip(1..).map(|(generation, version)| {
            let version = version.to_string();
            json!({ "metadata": { "name": "a", "uid": "u", "resourceVersion": version, "generation": generation } })
        });
        let written: Vec<_> = written.collect();
        let list = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": { "resourceVersion": "1" },
            "items": [written[0]],
        });
        let event = |object: &Value| json!({ "type": "MODIFIED", "object": object }).to_string() + "\n";
        let events: String = written[1..].iter().map(event).collect();
        let server = ApiServer::expecting([
            Call::get(path).answer(Answer::object(&list)),
            Call::get(path).answer(Answer::text(200, events)),
            Call::get(path).answer(Answer::hang()),
        ]);
        let (_, changes) = host(&server).cached_metadata::<K>(watch::paged());
        let changes = changes.take_until(sleep(Duration::from_secs(60)));
        changes.map(|object| object.unwrap().resource_version().unwrap()).collect().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_another_generation_or_without_one_another_resource_version() {
        assert_eq!(yielded::<Widget>(WIDGETS, [Some(1), Some(1), Some(2)]).await, ["1", "3"]);
        assert_eq!(yielded::<ConfigMap>("/api/v1/configmaps", [None; 3]).await, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_time_that_cannot_be_read_keeps_no_object_from_being_listed() {
        let widget = |name: &str, time: &str| {
            let writers = json!([{ "manager": "m", "operation": "Update", "time": time }]);
            json!({ "metadata": { "name": name, "uid": name, "managedFields": writers }, "spec": {} })
        };
        let list = json!({
            "apiVersion": "example.com/v1", "kind": "WidgetList", "metadata": { "resourceVersion": "1" },
            "items": [widget("a", "9999-12-31T00:00:00Z"), widget("b", "2026-01-01T00:00:00Z")],
        });
        let server = ApiServer::expecting([Call::get(WIDGETS).answer(Answer::object(&list))]);
        let (_, changes) = host(&server).cached(&WIDGET, watch::paged(), |_: &Widget| ());
        let names: Vec<_> = changes.take(2).map(|widget| widget.unwrap().name_any()).collect().await;
        assert_eq!(names, ["a", "b"]);
    }

    #[tokio::test]
    async fn a_cache_has_the_finalizers_though_its_projection_does_not_name_them() {
        let widget = |name: &str, finalizers: &[&str]| json!({ "metadata": { "name": name, "uid": name, "finalizers": finalizers }, "spec": {} });
        let list = json!({
            "apiVersion": "example.com/v1", "kind": "WidgetList", "metadata": { "resourceVersion": "1" },
            "items": [widget("a", &[FINALIZER]), widget("b", &["x/y"; 1000])],
        });
        let server = ApiServer::expecting([Call::get(WIDGETS).answer(Answer::object(&list))]);
        let (_, changes) = host(&server).cached(&WIDGET, watch::paged(), |_: &Widget| ());
        let widgets: Vec<_> = changes.take(2).map(Result::unwrap).collect().await;
        assert_eq!(widgets[0].finalizers(), [FINALIZER]);
        let read = widgets[1].finalizers().len();
        assert!((100..300).contains(&read), "{read}");
    }

    /// A server that lists these widgets, which stay as they are.
    fn widgets(names: &[&str]) -> ApiServer {
        let widget = |name: &&str| json!({ "metadata": { "name": name, "namespace": "shop", "uid": name }, "spec": {} });
        let widgets: Vec<_> = names.iter().map(widget).collect();
        let list = json!({
            "apiVersion": "example.com/v1", "kind": "WidgetList", "metadata": { "resourceVersion": "1" }, "items": widgets,
        });
        ApiServer::expecting([
            Call::get(WIDGETS).answer(Answer::object(&list)),
            Call::get(WIDGETS).answer(Answer::hang()),
        ])
    }

    /// How many of ten widgets a controller reconciles at once, at most. `None`: its configuration stays as it was made.
    async fn most_at_once(config: Option<controller::Config>) -> usize {
        let server = widgets(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
        let host = host(&server);
        let mut controller = host.controller(&WIDGET, watch::paged(), |_: &Widget| ());
        if let Some(config) = config {
            controller = controller.with_config(config);
        }
        let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let counted = counts.clone();
        let reconcile = move |_: Arc<Widget>, _| {
            let counted = counted.clone();
            async move {
                let [running, most] = &*counted;
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Action::await_change())
            }
        };
        let work = host.run(controller, (), reconcile);
        let stop = async {
            sleep(Duration::from_secs(10)).await;
            host.shutdown.cancel();
        };
        timeout(Duration::from_secs(60), futures::future::join(work, stop)).await.unwrap();
        counts[1].load(Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_is_configured_as_its_caller_says() {
        assert_eq!(most_at_once(None).await, usize::from(CONCURRENCY));
        assert_eq!(most_at_once(Some(defaults().concurrency(2))).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_does_not_wait_for_what_is_not_listed() {
        let server = widgets(&["a"]);
        let host = host(&server);
        let controller = host.controller(&WIDGET, watch::paged(), |_: &Widget| ());
        let _never = host.readiness.needs("something else");
        let reconcile = |_: Arc<Widget>, _| {
            futures::future::lazy(|_| -> Result<Action, &str> { panic!("not everything is listed") })
        };
        let work = host.run(controller, (), reconcile);
        let stop = async {
            sleep(Duration::from_secs(5)).await;
            host.shutdown.cancel();
        };
        timeout(Duration::from_secs(60), futures::future::join(work, stop)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_does_not_wait_for_the_first_list() {
        let server = ApiServer::expecting([Call::get(WIDGETS).answer(Answer::hang())]);
        let host = host(&server);
        let controller = host.controller(&WIDGET, watch::paged(), |_: &Widget| ());
        let reconcile = |_: Arc<Widget>, _| ready(Ok::<_, Infallible>(Action::await_change()));
        let start = Instant::now();
        let work = host.run(controller, (), reconcile);
        let stop = async {
            sleep(Duration::from_secs(5)).await;
            host.shutdown.cancel();
        };
        timeout(Duration::from_secs(60), futures::future::join(work, stop)).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_reconciles_are_retried_and_the_shutdown_waits_for_running_ones() {
        let server = widgets(&["a"]);
        let host = host(&server);
        let controller = host.controller(&WIDGET, watch::paged(), |_: &Widget| ());
        let later = host.readiness.needs("something else");
        let (attempts, shutdown) = (Arc::new(AtomicUsize::new(0)), host.shutdown.clone());
        let counted = attempts.clone();
        let reconcile = move |_: Arc<Widget>, _| {
            let (attempts, shutdown) = (counted.clone(), shutdown.clone());
            async move {
                if attempts.fetch_add(1, Ordering::SeqCst) < 2 {
                    return Err("not yet");
                }
                shutdown.cancel();
                sleep(Duration::from_secs(1)).await;
                attempts.fetch_add(1, Ordering::SeqCst);
                Ok(Action::await_change())
            }
        };
        let start = Instant::now();
        let work = host.run(controller, (), reconcile);
        let listed = async {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(attempts.load(Ordering::SeqCst), 0, "not everything is listed");
            later.met();
        };
        timeout(Duration::from_secs(60), futures::future::join(work, listed)).await.unwrap();
        assert_eq!(attempts.load(Ordering::SeqCst), 4);
        assert!(start.elapsed() > Duration::from_secs(7), "it waited before it tried again");
    }
}
