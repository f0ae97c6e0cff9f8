//! Which changes of the watched objects request a reconcile, and which of their fields are stored.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

use futures::{Stream, TryStreamExt};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, PartialObjectMeta},
    runtime::{
        PredicateConfig, WatchStreamExt,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use operator_kit::{
    changes::changes,
    projection::{MOST, Part, Projection, reading},
    watch::{paged, retry_crd_watch, retry_watch},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::resources::CONFIG_LABEL;
use crate::api::v1alpha1::{CRDS, PeerPodConfig};

/// The fields of a configuration that the operator reads.
pub(super) static CONFIG: Projection = Projection {
    metadata: &[("finalizers", Part::All)],
    rest: &[("spec", Part::All), ("status", Part::All)],
    most: 128 << 10,
};

/// The fields of a configuration's objects that the operator reads.
pub(super) static LABELLED: Projection = Projection {
    metadata: &[("labels", Part::Only(&[(CONFIG_LABEL, Part::All)])), ("ownerReferences", Part::All)],
    rest: &[],
    most: MOST,
};

/// The streams of the watch of all configurations.
pub(super) struct Configurations<A, O, G> {
    /// Configurations whose request changed.
    pub(super) asking: A,
    /// An item for each of these changes, as it may affect the nodes of all other configurations.
    pub(super) others_ask: O,
    /// An item when a configuration was removed, or may have been.
    pub(super) gone: G,
}

/// Stores all configurations. `asking` must be polled, or the other streams yield nothing.
pub(super) fn configurations(
    client: &Client,
    writer: Writer<PeerPodConfig>,
) -> Configurations<
    impl Stream<Item = Result<PeerPodConfig, watcher::Error>> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
> {
    let (word, words) = watch::channel(());
    let (departure, departures) = watch::channel(());
    let watch = watcher(Api::<PeerPodConfig>::all(reading(client, &CONFIG)), paged());
    let asking = retry_crd_watch::<PeerPodConfig, _>(CRDS, watch)
        .reflect(writer)
        .inspect_ok(move |event| {
            if matches!(event, Event::Delete(_) | Event::InitDone) {
                departure.send_replace(());
            }
        })
        .touched_objects()
        .predicate_filter(|config: &PeerPodConfig| Some(what_is_asked(config)), PredicateConfig::default())
        .inspect_ok(move |_| word.send_replace(()));
    Configurations { asking, others_ask: changes(words), gone: changes(departures) }
}

/// A hash of what a configuration requests. Its status does not count.
fn what_is_asked(config: &PeerPodConfig) -> u64 {
    let ObjectMeta { uid, generation, finalizers, deletion_timestamp, .. } = &config.metadata;
    let mut hasher = DefaultHasher::new();
    (uid, generation, finalizers, deletion_timestamp.is_some()).hash(&mut hasher);
    hasher.finish()
}

/// The objects of a kind that changed and have the label of a configuration, by metadata alone.
pub(super) fn labelled<K>(
    api: Api<PartialObjectMeta<K>>,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    changed(api, paged().labels(CONFIG_LABEL))
}

/// All objects of a kind that changed, by metadata alone.
pub(super) fn all<K>(
    api: Api<PartialObjectMeta<K>>,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    changed(api, paged())
}

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
    use k8s_openapi::api::apps::v1::DaemonSet;
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};

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

    #[test]
    fn only_what_is_asked_for_asks_for_a_pass() {
        let asked = |metadata: &Value, status: &Value| {
            let config = serde_json::from_value(json!({
                "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
                "metadata": metadata, "spec": {}, "status": status,
            }));
            what_is_asked(&config.unwrap())
        };
        let one = json!({ "name": "a", "uid": "u", "generation": 1, "finalizers": ["x"] });
        let status = json!({ "nodes": 3 });
        assert_eq!(asked(&one, &json!({})), asked(&one, &status));
        for (field, value) in [
            ("uid", json!("v")),
            ("generation", json!(2)),
            ("finalizers", json!([])),
            ("deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ] {
            let mut other = one.clone();
            other[field] = value;
            assert_ne!(asked(&one, &status), asked(&other, &status), "{field}");
        }
    }
}
