//! The watch of all DaemonSets: the owners and the nodes of those that may conflict *(client required)*.

use std::{collections::BTreeMap, future::ready};

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::v1::{Affinity, Container, HostPathVolumeSource, PodSpec, PodTemplateSpec, Volume},
};
use kube::{
    Api, Client, Resource,
    api::ObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store, store::Writer},
        watcher::{self, Event, watcher},
    },
};
use operator_kit::{
    changes::changes,
    metadata,
    projection::{Members, Part, Projection, reading},
    watch::{paged, retry_watch},
};
use serde::{Deserialize, de::IgnoredAny};
use tokio::{sync::watch, time::sleep};

use super::{
    super::{
        findings::UNWATCHED_RESYNC,
        resources::{
            BUILT_FROM_ANNOTATION, CONFIG_LABEL, has_pods, is_adaptor_image, may_conflict, runs_adaptor,
        },
    },
    settings,
};

/// What is read of each field: enough for an affinity of a hundred names of nodes. Tenants may create many DaemonSets.
const MOST: usize = 8 << 10;

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
    rest: &[
        ("spec", Part::Only(&[("template", Part::Only(&[("spec", Part::Only(POD))]))])),
        ("status", Part::Only(STATUS)),
    ],
    most: MOST,
};

const STATUS: Members = &[
    ("currentNumberScheduled", Part::All),
    ("desiredNumberScheduled", Part::All),
    ("numberMisscheduled", Part::All),
];

const POD: Members = &[
    ("volumes", Part::Only(&[("hostPath", Part::Only(&[]))])),
    ("hostNetwork", Part::All),
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

/// Stores the owner and the nodes of each DaemonSet that matters to configurations in `namespace`. Yields those in that namespace that
/// changed, and an item after changes of those elsewhere. The first stream must be polled, or the second one yields nothing.
pub(super) fn watch(
    client: &Client,
    writer: Writer<DaemonSet>,
    namespace: String,
) -> (
    impl Stream<Item = Result<DaemonSet, watcher::Error>> + Send + use<>,
    impl Stream<Item = ()> + Send + use<>,
) {
    let (word, words) = watch::channel(());
    let (stored, own) = (writer.as_reader(), namespace.clone());
    let events = watcher(Api::<DaemonSetView>::all(reading(client, &DAEMON_SET)), paged());
    let changed = retry_watch("DaemonSets", events)
        .try_filter_map(move |event| ready(Ok(reduced(event, &namespace, &stored))))
        .reflect(writer)
        .touched_objects()
        .try_filter(move |it: &DaemonSet| {
            let is_own = it.metadata.namespace.as_deref() == Some(&*own);
            if !is_own {
                word.send_replace(());
            }
            ready(is_own)
        });
    (changed, at_intervals(words))
}

/// An item after changes, at most one in each [`UNWATCHED_RESYNC`]. Tenants may change their DaemonSets at any rate.
fn at_intervals(words: watch::Receiver<()>) -> impl Stream<Item = ()> + Send + use<> {
    changes(words).then(|()| sleep(UNWATCHED_RESYNC))
}

/// The event for the store. A DaemonSet that does not matter is none, or is none any more. There is no event about one that never
/// mattered.
fn reduced(
    event: Event<DaemonSetView>,
    namespace: &str,
    stored: &Store<DaemonSet>,
) -> Option<Event<DaemonSet>> {
    let matters = |it: &DaemonSet| {
        it.metadata.namespace.as_deref() == Some(namespace) || may_conflict(it, Some(namespace))
    };
    let reduce = |it: DaemonSetView| {
        let mut it = DaemonSet::from(it);
        if it.metadata.namespace.as_deref() != Some(namespace) {
            // The operator reads its own annotations alone.
            it.metadata.annotations = None;
        }
        // A rollout has no Pod for a moment. What had Pods counts as long as it wants some.
        let had = stored.get(&ObjectRef::from_obj(&it)).filter(|had| had.metadata.uid == it.metadata.uid);
        if let Some(had) = had.filter(|had| has_pods(had) && !has_pods(&it) && wants_pods(&it)) {
            it.status.clone_from(&had.status);
        }
        it
    };
    let removed = |it: DaemonSet| {
        let is_stored = stored.get(&ObjectRef::from_obj(&it)).is_some();
        is_stored.then_some(Event::Delete(it))
    };
    match event {
        Event::Apply(it) => {
            let it = reduce(it);
            if matters(&it) { Some(Event::Apply(it)) } else { removed(it) }
        }
        Event::Delete(it) => removed(reduce(it)),
        Event::Init => Some(Event::Init),
        Event::InitApply(it) => Some(reduce(it)).filter(matters).map(Event::InitApply),
        Event::InitDone => Some(Event::InitDone),
    }
}

fn wants_pods(daemon_set: &DaemonSet) -> bool {
    daemon_set.status.as_ref().is_some_and(|status| status.desired_number_scheduled > 0)
}

/// The part of a DaemonSet that the operator reads. The rest may be of any size, in the template's metadata too.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = DaemonSet)]
struct DaemonSetView {
    #[serde(with = "metadata::Stored")]
    metadata: ObjectMeta,
    spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusView {
    current_number_scheduled: i32,
    desired_number_scheduled: i32,
    number_misscheduled: i32,
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
    #[serde(default)]
    host_network: Option<bool>,
    #[serde(default)]
    volumes: Vec<VolumeView>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeView {
    host_path: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
struct ContainerView {
    name: String,
    image: Option<String>,
}

impl From<DaemonSetView> for DaemonSet {
    /// Its nodes and its Pods matter only if it runs cloud-api-adaptor, in whichever container.
    fn from(DaemonSetView { metadata, spec, status }: DaemonSetView) -> Self {
        let PodView { node_selector, affinity, mut containers, host_network, volumes } = spec.template.spec;
        containers.retain(|it| it.image.as_deref().is_some_and(is_adaptor_image));
        let container = |ContainerView { name, image }| Container { name, image, ..Container::default() };
        let containers = containers.into_iter().next().map(container).into_iter().collect();
        // One says as much as many.
        let host_path = || Volume { host_path: Some(HostPathVolumeSource::default()), ..Volume::default() };
        let volumes = volumes.iter().any(|it| it.host_path.is_some()).then(|| vec![host_path()]);
        let pod =
            PodSpec { node_selector, affinity, containers, host_network, volumes, ..PodSpec::default() };
        let template = PodTemplateSpec { metadata: None, spec: Some(pod) };
        let spec = DaemonSetSpec { template, ..DaemonSetSpec::default() };
        let StatusView { current_number_scheduled, desired_number_scheduled, number_misscheduled } = status;
        let status = DaemonSetStatus {
            current_number_scheduled,
            desired_number_scheduled,
            number_misscheduled,
            ..DaemonSetStatus::default()
        };
        let daemon_set = Self { metadata, spec: spec.into(), status: Some(status) };
        if runs_adaptor(&daemon_set) {
            daemon_set
        } else {
            Self { metadata: daemon_set.metadata, ..Self::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use kube::runtime::reflector;
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_projection_keeps_owner_image_and_placement_of_a_daemon_set() {
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
                                "nodeSelector": { "zone": "1" }, "affinity": affinity, "hostNetwork": true,
                                "volumes": [
                                    { "name": "a", "emptyDir": {} }, { "name": "b", "hostPath": { "path": "/" } },
                                ],
                                "containers": [{ "name": "y", "image": "z" }, { "name": "x", "image": image, "env": [] }],
                            },
                        },
                    },
                    "status": {
                        "currentNumberScheduled": 2, "numberMisscheduled": 1, "numberReady": 2,
                        "conditions": [{ "type": "t", "status": "True", "lastTransitionTime": far }],
                    },
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
                "nodeSelector": { "zone": "1" }, "affinity": affinity, "hostNetwork": true,
                "volumes": [{ "name": "", "hostPath": { "path": "" } }],
                "containers": [{ "name": "x", "image": "r/cloud-api-adaptor:v1" }],
            } } },
            "status": {
                "currentNumberScheduled": 2, "numberMisscheduled": 1,
                "desiredNumberScheduled": 0, "numberReady": 0,
            },
        });
        assert_eq!(kept("r/cloud-api-adaptor:v1"), expected);
        expected.as_object_mut().unwrap().retain(|field, _| !["spec", "status"].contains(&field.as_str()));
        assert_eq!(kept("another"), expected, "one that runs something else");
    }

    fn view(namespace: &str, labels: &Value, pod: &Value, pods: i32) -> DaemonSetView {
        let annotations = json!({ (settings::SETTINGS): "s" });
        let [_, view] = read_and_projected(
            &DAEMON_SET,
            &json!({
                "metadata": { "name": "a", "namespace": namespace, "labels": labels, "annotations": annotations },
                "spec": { "template": { "spec": pod } },
                "status": { "currentNumberScheduled": pods, "numberMisscheduled": 0 },
            }),
        );
        view
    }

    #[test]
    fn only_what_may_conflict_is_stored_of_other_namespaces() {
        let (adaptor, other) = (json!({ "app": "cloud-api-adaptor" }), json!({}));
        let harmless = json!({ "containers": [], "volumes": [{ "name": "a", "emptyDir": {} }] });
        let on_host = json!({ "containers": [], "hostNetwork": true });
        for (namespace, labels, pod, pods, is_stored) in [
            ("own", &other, &harmless, 0, true),
            ("own", &adaptor, &harmless, 0, true),
            ("shop", &adaptor, &on_host, 1, true),
            ("shop", &adaptor, &on_host, 0, false),
            ("shop", &adaptor, &harmless, 1, false),
            ("shop", &other, &on_host, 1, false),
        ] {
            let view = view(namespace, labels, pod, pods);
            let case = format!("{namespace} {labels} {pod} {pods}");
            let (store, mut writer) = reflector::store();
            let event = |event| reduced(event, "own", &store);
            assert_eq!(event(Event::InitApply(view.clone())).is_some(), is_stored, "{case}");
            assert_eq!(event(Event::Apply(view.clone())).is_some(), is_stored, "{case}");
            assert!(event(Event::Delete(view.clone())).is_none(), "{case}: it never mattered");
            writer.apply_watcher_event(&Event::Apply(DaemonSet::from(view.clone())));
            let Some(changed) = event(Event::Apply(view.clone())) else { panic!("{case}") };
            let (Event::Apply(stored) | Event::Delete(stored)) = &changed else { panic!("{case}") };
            assert_eq!(stored.metadata.annotations.is_some(), namespace == "own", "{case}");
            assert_eq!(matches!(changed, Event::Apply(_)), is_stored, "{case}");
            assert!(matches!(event(Event::Delete(view)), Some(Event::Delete(_))), "{case}");
        }
    }

    #[test]
    fn a_daemon_set_counts_while_a_rollout_leaves_it_without_pods() {
        let (labels, pod) =
            (json!({ "app": "cloud-api-adaptor" }), json!({ "containers": [], "hostNetwork": true }));
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Apply(DaemonSet::from(view("shop", &labels, &pod, 1))));
        let without = |desired_number_scheduled| {
            let mut view = view("shop", &labels, &pod, 0);
            view.status.desired_number_scheduled = desired_number_scheduled;
            reduced(Event::Apply(view), "own", &store)
        };
        assert!(matches!(without(1), Some(Event::Apply(it)) if has_pods(&it)));
        assert!(matches!(without(0), Some(Event::Delete(_))), "it wants none");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_in_other_namespaces_are_reported_at_intervals() {
        let (word, words) = watch::channel(());
        let mut reported = pin!(at_intervals(words));
        let start = Instant::now();
        for round in 1..=3 {
            for _ in 0..100 {
                word.send_replace(());
            }
            assert_eq!(reported.next().await, Some(()));
            assert!(start.elapsed() >= UNWATCHED_RESYNC * round, "{:?}", start.elapsed());
        }
        assert!(reported.next().now_or_never().is_none(), "nothing changed since");
    }

    #[test]
    fn an_affinity_of_many_empty_terms_takes_little_memory() {
        let terms = vec![json!({}); 100_000];
        let pod = json!({
            "containers": [], "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": terms,
            } } },
        });
        let view = view("shop", &json!({ "app": "cloud-api-adaptor" }), &pod, 1);
        let spec = DaemonSet::from(view).spec.unwrap();
        let affinity = spec.template.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
        let terms = affinity.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
        assert!(terms.len() < 128, "{} terms", terms.len());
    }
}
