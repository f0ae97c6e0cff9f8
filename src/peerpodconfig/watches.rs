//! Which changes of the watched objects request a reconcile, and which of their fields are stored.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use futures::{Stream, TryStreamExt, stream::BoxStream};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Secret, Service},
    node::v1::RuntimeClass,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PartialObjectMeta},
    runtime::{
        Controller, PredicateConfig, WatchStreamExt,
        reflector::{ObjectRef, store::Writer},
        watcher::{self, Event, watcher},
    },
};
use operator_kit::{
    changes::{changes, spaced},
    projection::{MOST, Part, Projection, reading},
    watch::{paged, retry_crd_watch, retry_watch},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    configs::{Configs, is_in_conflict},
    resources::{CONFIG_LABEL, runs_adaptor},
};
use crate::api::v1alpha1::{CRDS, PeerPodConfig};

/// The fields of a configuration that the operator reads: all, as what is left out would count as unset, such as the limit. Only
/// administrators write configurations, and no API server accepts a larger one. Of an annotation of more than 32 KiB it reads an empty text.
pub(super) static CONFIG: Projection = Projection {
    metadata: &[("finalizers", Part::All)],
    rest: &[("spec", Part::All), ("status", Part::All)],
    most: 4 << 20,
};

/// The fields of a configuration's objects that the operator reads.
pub(super) static LABELLED: Projection = Projection {
    metadata: &[("labels", Part::Only(&[(CONFIG_LABEL, Part::All)])), ("ownerReferences", Part::All)],
    rest: &[],
    most: MOST,
};

/// The least time between reconciles of all configurations because of nodes. While thousands of nodes are upgraded, some node changes all
/// the time.
const NODES_PAUSE: Duration = Duration::from_secs(1);

/// The streams of the watch of all configurations.
pub(super) struct Configurations<C, H, R> {
    /// The configurations whose request changed.
    pub(super) changed: C,
    /// An item for each of these changes to a configuration that the controller honours. The change may affect the nodes of all
    /// others.
    pub(super) honoured_changed: H,
    /// An item when a configuration was removed, or may have been.
    pub(super) removed: R,
}

/// Stores all configurations. `changed` must be polled, or the other streams yield nothing.
pub(super) fn configurations(
    client: &Client,
    writer: Writer<PeerPodConfig>,
    configs: &Configs,
) -> Configurations<
    impl Stream<Item = Result<PeerPodConfig, watcher::Error>> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
> {
    let (honoured_tx, honoured_rx) = watch::channel(());
    let (removed_tx, removed_rx) = watch::channel(());
    let configs = configs.clone();
    let watch = watcher(Api::<PeerPodConfig>::all(reading(client, &CONFIG)), paged());
    let changed = retry_crd_watch::<PeerPodConfig, _>(&[CRDS], watch)
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, Event::Delete(_) | Event::InitDone) {
                removed_tx.send_replace(());
            }
        })
        .touched_objects()
        .predicate_filter(|config: &PeerPodConfig| Some(request_hash(config)), PredicateConfig::default())
        .inspect_ok(move |config| {
            // One elsewhere has no nodes, and a tenant may change it as often as they like.
            if configs.honours(config) {
                honoured_tx.send_replace(());
            }
        });
    Configurations { changed, honoured_changed: changes(honoured_rx), removed: changes(removed_rx) }
}

/// A hash of what a configuration requests. Its status does not count.
fn request_hash(config: &PeerPodConfig) -> u64 {
    let ObjectMeta { uid, generation, finalizers, deletion_timestamp, .. } = &config.metadata;
    let mut hasher = DefaultHasher::new();
    (uid, generation, finalizers, deletion_timestamp.is_some()).hash(&mut hasher);
    hasher.finish()
}

/// The changes that the rooms watch.
pub(super) struct Changes {
    pub(super) nodes: BoxStream<'static, ()>,
    /// DaemonSets of the operator's own namespace.
    pub(super) daemon_sets: BoxStream<'static, Result<DaemonSet, watcher::Error>>,
    pub(super) daemon_sets_elsewhere: BoxStream<'static, ()>,
    /// Of the objects that all webhooks share.
    pub(super) webhook_resources: BoxStream<'static, ()>,
    /// The configurations whose admission policy or its binding changed.
    pub(super) policies: BoxStream<'static, ObjectRef<PeerPodConfig>>,
}

/// Adds everything else that requests reconciles: the changes that the rooms watch, and those of the objects that a configuration
/// consists of or uses.
pub(super) fn add(
    controller: Controller<PeerPodConfig>,
    client: &Client,
    changes: Changes,
    configs: &Configs,
) -> Controller<PeerPodConfig> {
    let (client, own) = (reading(client, &LABELLED), configs.namespace());
    let (conflicting, registered) = (configs.clone(), configs.clone());
    // What has the label of a configuration.
    let labelled = || paged().labels(CONFIG_LABEL);
    let Changes { nodes, daemon_sets, daemon_sets_elsewhere, webhook_resources, policies } = changes;
    controller
        .reconcile_all_on(spaced(nodes, NODES_PAUSE))
        .watches_stream(daemon_sets, move |daemon_set: DaemonSet| {
            // A DaemonSet that no longer runs cloud-api-adaptor, or that belongs to another configuration, may have caused a conflict.
            conflicting.matching(|config| runs_adaptor(&daemon_set) || is_in_conflict(config))
        })
        .reconcile_all_on(daemon_sets_elsewhere)
        .reconcile_all_on(webhook_resources)
        .reconcile_on(policies)
        .owns_stream(changed::<Deployment>(Api::namespaced(client.clone(), own), labelled()))
        .owns_stream(changed::<Service>(Api::namespaced(client.clone(), own), labelled()))
        .owns_stream(changed::<PodDisruptionBudget>(Api::namespaced(client.clone(), own), labelled()))
        .watches_stream(
            changed::<MutatingWebhookConfiguration>(Api::all(client.clone()), labelled()),
            move |webhook| webhook.labels().get(CONFIG_LABEL).map(|name| registered.named(name)),
        )
        // A reconcile reads them when it uses them.
        .watches_stream(
            changed::<ConfigMap>(Api::namespaced(client.clone(), own), paged()),
            using::<ConfigMap>(configs, |config| &config.spec.config_map_name),
        )
        .watches_stream(
            changed::<Secret>(Api::namespaced(client.clone(), own), paged()),
            using::<Secret>(configs, |config| &config.spec.cloud_secret_name),
        )
        .watches_stream(
            changed::<RuntimeClass>(Api::all(client), paged()),
            using::<RuntimeClass>(configs, |config| &config.spec.admission.runtime_class_name),
        )
}

/// Maps an object to the configurations that use it. `name`: that of the object that a configuration uses.
fn using<K: Resource<DynamicType = ()>>(
    configs: &Configs,
    name: fn(&PeerPodConfig) -> &str,
) -> impl Fn(PartialObjectMeta<K>) -> Vec<ObjectRef<PeerPodConfig>> + Send + Sync + use<K> {
    let configs = configs.clone();
    move |object: PartialObjectMeta<K>| {
        let used = object.name_any();
        configs.matching(|config| name(config) == used)
    }
}

/// The objects of a kind that changed, by metadata alone. `config`: which objects.
fn changed<K>(
    api: Api<PartialObjectMeta<K>>,
    config: watcher::Config,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    retry_watch(K::plural(&()), watcher(api, config)).touched_objects()
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{pending, ready},
        pin::pin,
        sync::Arc,
    };

    use futures::{FutureExt, StreamExt, stream};
    use kube::{
        client::Body,
        runtime::{controller::Action, reflector},
    };
    use operator_kit::testing::{Answer, ApiServer, Call, read_and_projected};
    use serde_json::{Value, json};
    use tokio::time::timeout;
    use tower::{BoxError, service_fn};

    use super::*;

    #[test]
    fn a_configuration_is_read_as_a_whole_and_of_other_objects_whose_they_are() {
        let metadata = json!({
            "name": "a", "namespace": "n", "uid": "u", "generation": 2, "finalizers": ["x/y"],
            "labels": { (CONFIG_LABEL): "c", "fat": "x" }, "annotations": { "fat": "x" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "x", "name": "o", "uid": "u" }],
        });
        let [mut read, projected] = read_and_projected::<PeerPodConfig>(
            &CONFIG,
            &json!({
                "metadata": metadata, "spec": { "limit": 3, "nodeSelector": { "a": "b" } }, "status": { "nodes": 3 },
            }),
        );
        let ObjectMeta { labels, annotations, owner_references, .. } = &mut read.metadata;
        (*labels, *annotations, *owner_references) = (None, None, None);
        assert_eq!(json!(projected), json!(read));
        let [_, projected] = read_and_projected::<PartialObjectMeta<DaemonSet>>(
            &LABELLED,
            &json!({ "metadata": metadata, "data": {} }),
        );
        let kept = projected.metadata;
        assert_eq!(json!([kept.name, kept.labels]), json!(["a", { (CONFIG_LABEL): "c" }]));
        assert_eq!(kept.owner_references.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_configuration_of_another_namespace_requests_no_reconcile_of_others() {
        let config = |namespace: &str| json!({ "metadata": { "name": "a", "namespace": namespace, "uid": namespace } });
        let list = json!({
            "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" },
            "items": [config("tenant"), config("own")],
        });
        let server =
            ApiServer::expecting([Call::get("/apis/confidentialcontainers.org/v1alpha1/peerpodconfigs")
                .answer(Answer::object(&list))]);
        let (store, writer) = reflector::store();
        let configs = Configs::new(store, "own".to_owned());
        let Configurations { changed, honoured_changed, .. } =
            configurations(&server.client(), writer, &configs);
        let (mut changed, mut honoured_changed) = (pin!(changed), pin!(honoured_changed));
        for (namespace, others) in [("tenant", None), ("own", Some(()))] {
            let config = changed.next().await.unwrap().unwrap();
            assert_eq!(config.namespace().as_deref(), Some(namespace));
            assert_eq!(honoured_changed.next().now_or_never().flatten(), others, "{namespace}");
        }
    }

    #[test]
    fn only_a_changed_request_requests_a_reconcile() {
        let hash = |metadata: &Value, status: &Value| {
            let config = serde_json::from_value(json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
                "metadata": metadata, "spec": {}, "status": status,
            }));
            request_hash(&config.unwrap())
        };
        let one = json!({ "name": "a", "uid": "u", "generation": 1, "finalizers": ["x"] });
        let status = json!({ "nodes": 3 });
        assert_eq!(hash(&one, &json!({})), hash(&one, &status));
        for (field, value) in [
            ("uid", json!("v")),
            ("generation", json!(2)),
            ("finalizers", json!([])),
            ("deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ] {
            let mut other = one.clone();
            other[field] = value;
            assert_ne!(hash(&one, &status), hash(&other, &status), "{field}");
        }
    }

    /// A client of an API server that has this object at this path, and nothing else.
    fn with_one_object(path: &'static str, object: &Value) -> Client {
        let list = |items: &[&Value]| json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items });
        let [there, empty] = [list(&[object]), list(&[])].map(|list| list.to_string());
        let respond = move |request: hyper::Request<Body>| {
            let uri = request.uri();
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let list = if uri.path() == path { there.clone() } else { empty.clone() };
            async move {
                if is_watch {
                    return pending().await;
                }
                Ok::<_, BoxError>(hyper::Response::new(Body::from(list.into_bytes())))
            }
        };
        Client::new(service_fn(respond), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_a_configuration_consists_of_or_uses_requests_its_reconcile() {
        let metadata = json!({ "name": "config", "namespace": "own", "uid": "u" });
        let config = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig", "metadata": metadata, "spec": {},
        }));
        let (store, mut writer) = reflector::store();
        for event in [Event::Init, Event::InitApply(config.unwrap()), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let configs = Configs::new(store.clone(), "own".to_owned());
        let named = |name: &str| json!({ "name": name, "namespace": "own" });
        let by_config = json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "name": "config", "uid": "u", "controller": true,
        });
        let owned = json!({ "name": "a", "namespace": "own", "ownerReferences": [by_config] });
        for (path, metadata, is_its_own) in [
            ("/apis/apps/v1/namespaces/own/deployments", owned.clone(), true),
            ("/api/v1/namespaces/own/services", owned.clone(), true),
            ("/apis/policy/v1/namespaces/own/poddisruptionbudgets", owned, true),
            (
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
                json!({ "name": "a", "labels": { (CONFIG_LABEL): "config" } }),
                true,
            ),
            ("/api/v1/namespaces/own/configmaps", named("peer-pods-cm"), true),
            ("/api/v1/namespaces/own/secrets", named("peer-pods-secret"), true),
            ("/api/v1/namespaces/own/secrets", named("another"), false),
            ("/apis/node.k8s.io/v1/runtimeclasses", json!({ "name": "kata-remote" }), true),
        ] {
            let changes = Changes {
                nodes: stream::pending().boxed(),
                daemon_sets: stream::pending().boxed(),
                daemon_sets_elsewhere: stream::pending().boxed(),
                webhook_resources: stream::pending().boxed(),
                policies: stream::pending().boxed(),
            };
            let controller = Controller::for_stream(stream::pending(), store.clone());
            let client = with_one_object(path, &json!({ "metadata": metadata }));
            let reconcile = |_, _: Arc<()>| ready(Ok::<_, Infallible>(Action::await_change()));
            let outcomes = add(controller, &client, changes, &configs).run(
                reconcile,
                |_, never, _| match *never {},
                Arc::new(()),
            );
            let reconciled = timeout(Duration::from_secs(10), pin!(outcomes).next()).await;
            let reconciled = reconciled.ok().map(|outcome| outcome.unwrap().unwrap().0.name);
            assert_eq!(reconciled.as_deref(), is_its_own.then_some("config"), "{path}");
        }
    }
}
