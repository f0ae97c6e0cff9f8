//! The watch of all DaemonSets: their owners and their nodes *(client required)*.

use std::collections::BTreeMap;

use futures::{Stream, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec},
    core::v1::{Affinity, Container, PodSpec, PodTemplateSpec},
};
use kube::{
    Api, Client, Resource,
    api::ObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use operator_kit::{
    metadata,
    projection::{MOST, Members, Part, Projection, reading},
    watch::{paged, retry_watch},
};
use serde::Deserialize;

use super::{
    super::resources::{BUILT_FROM_ANNOTATION, CONFIG_LABEL, is_adaptor_image, runs_adaptor},
    settings,
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

/// Stores the owner and the nodes of each DaemonSet. Yields those that changed.
pub(super) fn watch(
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
    use serde_json::json;

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
}
