//! Which changes of the watched objects request a reconcile, and which of their fields are stored.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

use futures::{Stream, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec},
    core::v1::{Affinity, Container, PodSpec, PodTemplateSpec},
};
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
    metadata,
    projection::{MOST, Members, Part, Projection, reading},
    watch::{paged, retry_crd_watch, retry_watch},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::{
    resources::{BUILT_FROM_ANNOTATION, CONFIG_LABEL, is_adaptor_image, runs_adaptor},
    settings,
};
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

/// The fields of a DaemonSet that the operator reads.
static DAEMON_SET: Projection = Projection {
    metadata: &[
        ("labels", Part::Only(&[(CONFIG_LABEL, Part::All), ("app", Part::All)])),
        (
            "annotations",
            Part::Only(&[
                (BUILT_FROM_ANNOTATION, Part::All),
                (settings::SETTINGS, Part::All),
                (settings::SETTINGS_SINCE, Part::All),
            ]),
        ),
        ("ownerReferences", Part::All),
    ],
    rest: &[("spec", Part::Only(&[("template", Part::Only(&[("spec", Part::Only(POD))]))]))],
    most: MOST,
};

const POD: Members = &[
    ("nodeSelector", Part::All),
    (
        "affinity",
        Part::Only(&[(
            "nodeAffinity",
            Part::Only(&[("requiredDuringSchedulingIgnoredDuringExecution", Part::All)]),
        )]),
    ),
    ("containers", Part::Only(&[("name", Part::All), ("image", Part::All)])),
];

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

/// Those objects of a kind that changed and bear the label of a configuration, by metadata alone.
pub(super) fn labelled<K>(
    api: Api<PartialObjectMeta<K>>,
) -> impl Stream<Item = Result<PartialObjectMeta<K>, watcher::Error>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    changed(api, paged().labels(CONFIG_LABEL))
}

/// Those of all objects of a kind that changed, by metadata alone.
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

/// Stores of all DaemonSets whose they are and where they run. Yields those that changed.
pub(super) fn daemon_sets(
    client: &Client,
    writer: Writer<DaemonSet>,
) -> impl Stream<Item = Result<DaemonSet, watcher::Error>> + Send + use<> {
    let watch = watcher(Api::<DaemonSetView>::all(reading(client, &DAEMON_SET)), paged());
    retry_watch("DaemonSets", watch)
        .map_ok(|event| match event {
            Event::Apply(it) => Event::Apply(it.into()),
            Event::Delete(it) => Event::Delete(it.into()),
            Event::Init => Event::Init,
            Event::InitApply(it) => Event::InitApply(it.into()),
            Event::InitDone => Event::InitDone,
        })
        .reflect(writer)
        .touched_objects()
}

/// The part of a DaemonSet that the operator reads. The rest may be of any size, in the template's metadata too.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = DaemonSet)]
struct DaemonSetView {
    #[serde(with = "metadata::Stored")]
    metadata: ObjectMeta,
    spec: SpecView,
}

#[derive(Clone, Debug, Deserialize)]
struct SpecView {
    template: TemplateView,
}

#[derive(Clone, Debug, Deserialize)]
struct TemplateView {
    spec: PodView,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodView {
    node_selector: Option<BTreeMap<String, String>>,
    affinity: Option<Affinity>,
    containers: Vec<ContainerView>,
}

#[derive(Clone, Debug, Deserialize)]
struct ContainerView {
    name: String,
    image: Option<String>,
}

impl From<DaemonSetView> for DaemonSet {
    /// Its nodes matter only if it runs cloud-api-adaptor, in whichever container.
    fn from(DaemonSetView { metadata, spec }: DaemonSetView) -> Self {
        let PodView { node_selector, affinity, mut containers } = spec.template.spec;
        containers.retain(|it| it.image.as_deref().is_some_and(is_adaptor_image));
        let container = |ContainerView { name, image }| Container { name, image, ..Container::default() };
        let containers = containers.into_iter().next().map(container).into_iter().collect();
        let pod = PodSpec { node_selector, affinity, containers, ..PodSpec::default() };
        let template = PodTemplateSpec { metadata: None, spec: Some(pod) };
        let spec = DaemonSetSpec { template, ..DaemonSetSpec::default() };
        let daemon_set = Self { metadata, spec: spec.into(), status: None };
        if runs_adaptor(&daemon_set) {
            daemon_set
        } else {
            Self { metadata: daemon_set.metadata, ..Self::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_tells_whose_a_daemon_set_is_and_where_it_runs_is_read_whatever_else_it_says() {
        let far = "9999-12-31T00:00:00Z";
        let fields = json!([{ "manager": "m", "time": far }]);
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "k", "operator": "Exists" }] }],
        } } });
        let kept = |image: &str| {
            let [_, projected] = read_and_projected::<DaemonSetView>(
                &DAEMON_SET,
                &json!({
                    "metadata": {
                        "name": "a", "labels": { "app": "x", "fat": "x" }, "managedFields": fields,
                        "annotations": { (BUILT_FROM_ANNOTATION): "b", (settings::SETTINGS): "s", (settings::SETTINGS_SINCE): "t", "fat": "x" },
                        "ownerReferences": [{ "apiVersion": "v1", "kind": "x", "name": "o", "uid": "u" }],
                    },
                    "spec": {
                        "selector": {},
                        "template": {
                            "metadata": { "creationTimestamp": far, "managedFields": fields },
                            "spec": {
                                "nodeSelector": { "zone": "1" }, "affinity": affinity,
                                "containers": [{ "name": "y", "image": "z" }, { "name": "x", "image": image, "env": [] }],
                            },
                        },
                    },
                    "status": { "conditions": [{ "type": "t", "status": "True", "lastTransitionTime": far }] },
                }),
            );
            json!(DaemonSet::from(projected))
        };
        let mut expected = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {
                "name": "a", "labels": { "app": "x" },
                "annotations": { (BUILT_FROM_ANNOTATION): "b", (settings::SETTINGS): "s", (settings::SETTINGS_SINCE): "t" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "x", "name": "o", "uid": "u" }],
            },
            "spec": { "selector": {}, "template": { "spec": {
                "nodeSelector": { "zone": "1" }, "affinity": affinity,
                "containers": [{ "name": "x", "image": "r/cloud-api-adaptor:v1" }],
            } } },
        });
        assert_eq!(kept("r/cloud-api-adaptor:v1"), expected);
        expected.as_object_mut().unwrap().remove("spec");
        assert_eq!(kept("another"), expected, "one that runs something else");
    }

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
