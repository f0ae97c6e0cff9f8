use std::{
    cell::Cell,
    future,
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
    assert_eq!(
        ObjectRef::from_obj(&node).erase().into_kind_unchecked::<Node>(()),
        ObjectRef::from_obj(&node)
    );
    assert_eq!(ObjectRef::from_obj(&widget).erase().into_kind_unchecked(()), ObjectRef::from_obj(&widget));
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
    let widget =
        |name: &&str| json!({ "metadata": { "name": name, "namespace": "shop", "uid": name }, "spec": {} });
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
    let reconcile =
        |_: Arc<Widget>, _| -> future::Ready<Result<Action, &str>> { panic!("not everything is listed") };
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
