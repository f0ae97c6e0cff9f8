//! The part of a DaemonSet that the operator reads *(no client)*.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::v1::{Affinity, Container, EnvVar, HostPathVolumeSource, PodSpec, PodTemplateSpec, Volume},
};
use kube::{Resource, api::ObjectMeta};
use operator_kit::{
    metadata,
    projection::{Members, Part, Projection},
};
use serde::{Deserialize, de::IgnoredAny};

use super::super::{
    super::resources::{
        ADAPTOR_CONTAINER, BUILT_FROM_ANNOTATION, CONFIG_LABEL, is_adaptor_image, runs_adaptor,
    },
    settings,
};

/// What is read of each field: enough for an affinity of a hundred names of nodes. Tenants may create many DaemonSets.
const MOST: usize = 8 << 10;

/// The fields of a DaemonSet that the operator reads.
pub(in super::super) static DAEMON_SET: Projection = Projection {
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
        ("spec", Part::Only(&[("template", Part::Only(&[("spec", Part::Apart(POD))]))])),
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
    ("containers", Part::Only(&[("name", Part::All), ("image", Part::All), ("env", Part::Only(VARIABLE))])),
];

const VARIABLE: Members = &[("name", Part::All), ("value", Part::All), ("valueFrom", Part::Only(&[]))];

/// The part of a DaemonSet that the operator reads. The rest may be of any size, in the template's metadata too.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = DaemonSet)]
pub(in super::super) struct DaemonSetView {
    #[serde(with = "metadata::Stored")]
    metadata: ObjectMeta,
    spec: SpecView,
    #[serde(default)]
    pub(super) status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusView {
    current_number_scheduled: i32,
    pub(super) desired_number_scheduled: i32,
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
    env: Option<Vec<EnvVar>>,
}

impl From<DaemonSetView> for DaemonSet {
    /// Its nodes and its Pods matter only if it runs cloud-api-adaptor, in whichever container.
    fn from(DaemonSetView { metadata, spec, status }: DaemonSetView) -> Self {
        let PodView { node_selector, affinity, mut containers, host_network, volumes } = spec.template.spec;
        // The image of a mirror may have any name.
        let has_image = |it: &ContainerView| it.image.as_deref().is_some_and(is_adaptor_image);
        let adaptor = containers.iter().position(has_image);
        let adaptor = adaptor.or_else(|| containers.iter().position(|it| it.name == ADAPTOR_CONTAINER));
        let container =
            |ContainerView { name, image, env }| Container { name, image, env, ..Container::default() };
        let containers = adaptor.map(|at| container(containers.swap_remove(at))).into_iter().collect();
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
    use operator_kit::testing::read_and_projected;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_projection_keeps_owner_image_and_placement_of_a_daemon_set() {
        let far = "9999-12-31T00:00:00Z";
        let fields = json!([{ "manager": "m", "time": far }]);
        let env = json!([
            { "name": "A", "value": "a" },
            { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
        ]);
        let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "k", "operator": "Exists" }] }],
        } } });
        let kept = |name: &str, image: &str, labels: Value| {
            let [_, projected] = read_and_projected::<DaemonSetView>(
                &DAEMON_SET,
                &json!({
                    "metadata": {
                        "name": "a", "labels": labels, "managedFields": fields,
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
                                "containers": [{ "name": "y", "image": "z" }, { "name": name, "image": image, "env": env }],
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
                "containers": [{
                    "name": "x", "image": "r/cloud-api-adaptor:v1",
                    "env": [{ "name": "A", "value": "a" }, { "name": "B", "valueFrom": {} }],
                }],
            } } },
            "status": {
                "currentNumberScheduled": 2, "numberMisscheduled": 1,
                "desiredNumberScheduled": 0, "numberReady": 0,
            },
        });
        let foreign = || json!({ "app": "x", "fat": "x" });
        assert_eq!(kept("x", "r/cloud-api-adaptor:v1", foreign()), expected);
        let own = kept(ADAPTOR_CONTAINER, "mirror/caa:v1", json!({ (CONFIG_LABEL): "config" }));
        let [kept_env, known_env] =
            [&own, &expected].map(|it| &it["spec"]["template"]["spec"]["containers"][0]["env"]);
        assert_eq!(kept_env, known_env, "of the operator's own, whatever its image is called");
        expected.as_object_mut().unwrap().retain(|field, _| !["spec", "status"].contains(&field.as_str()));
        assert_eq!(kept("x", "another", foreign()), expected, "one that runs something else");
    }
}
