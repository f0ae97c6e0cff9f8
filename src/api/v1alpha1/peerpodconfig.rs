//! The `PeerPodConfig` custom resource.

// Each printer column repeats the attribute `type_`.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::DaemonSetUpdateStrategy,
        core::v1::{LocalObjectReference, Toleration},
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::{CustomResource, KubeSchema, core::Rule};
use operator_kit::metadata;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Admission, OBJECT_NAME, Resources};

/// The most VMs that a [`PeerPodConfigSpec::limit`] may be.
pub const MOST_VMS: u32 = 1_000_000;

/// Lets the nodes of a cluster run peer pods. The operator deploys cloud-api-adaptor on the nodes, deploys the admission
/// that turns Pods of a runtime class into peer pods, and advertises how many VMs each node may run.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize)]
#[kube(
    group = "confidentialcontainers.org",
    version = "v1alpha1",
    kind = "PeerPodConfig",
    plural = "peerpodconfigs",
    namespaced,
    status = "PeerPodConfigStatus",
    derive = "PartialEq",
    // As kube writes the object's own `Deserialize`, and takes `serde` in no other way.
    attr = "cfg_attr(all(), serde(from = \"StoredPeerPodConfig\"), schemars(!from))",
    doc = "PeerPodConfig makes the nodes of a cluster run peer pods: it deploys cloud-api-adaptor and the admission, and advertises how many VMs each node may run. Users who may create or change one decide what runs privileged on these nodes: grant that to administrators of the cluster alone.",
    // Not for an object that exists: a rule about the whole object would refuse each of its updates.
    validation = Rule::new("oldSelf.hasValue() || size(self.metadata.name) <= 40").optional_old_self(true).message(
        "the name of a PeerPodConfig may have at most 40 characters: other objects are named after it"
    ),
    // The rule of `admission.extendedResource` holds only while there is a spec.
    validation = Rule::new("!has(oldSelf.spec) || has(self.spec)").message(
        "spec cannot be removed, because admission.extendedResource cannot change; delete the PeerPodConfig instead"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(
        name = "VMs",
        type_ = "integer",
        json_path = ".status.advertised",
        description = "How many VMs the nodes advertise together"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PeerPodConfigSpec {
    /// Default size or type of VMs, as the cloud names it. It has an effect on aws, azure, gcp, ibmcloud and
    /// alibabacloud. On other clouds a condition says that it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub instance_type: Option<String>,

    /// How many peer-pod VMs may run: on all selected nodes together, spread as evenly as possible, or on each node; see
    /// `distribution`. A number from 0 to 1000000, or such a number as text. Without `limit`, no node advertises VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(
        "type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^[0-9]{1,7}$') && int(self) <= 1000000"
    ).message("limit must be a whole number from 0 to 1000000"))]
    pub limit: Option<IntOrString>,

    /// What `limit` counts: `Total`, VMs on all selected nodes together, or `PerNode`, VMs on each of them.
    #[serde(default)]
    pub distribution: Distribution,

    /// The Secret with cloud-api-adaptor's credentials, in the namespace of the PeerPodConfig.
    #[serde(default = "default_secret")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME).message("cloudSecretName must be the name of a Secret in the namespace of the PeerPodConfig"))]
    pub cloud_secret_name: String,

    /// The `ConfigMap` with cloud-api-adaptor's settings, in the namespace of the PeerPodConfig.
    #[serde(default = "default_config_map")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME).message("configMapName must be the name of a ConfigMap in the namespace of the PeerPodConfig"))]
    pub config_map_name: String,

    /// Selects nodes that have all of these labels. Without `nodeSelector` and `labelSelector`, nodes with
    /// `node.kubernetes.io/worker: ""` are selected. An empty one (`{}`) selects every node: remove the field for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // As the entries restrict each other, those of two appliers must not mix.
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// Selects nodes by their labels. With a `nodeSelector`, a node must match both. An empty one (`{}`) selects every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub label_selector: Option<LabelSelector>,

    /// How cloud-api-adaptor runs.
    #[serde(default)]
    pub adaptor: Adaptor,

    /// How Pods become peer pods.
    #[serde(default)]
    pub admission: Admission,
}

impl Default for PeerPodConfigSpec {
    fn default() -> Self {
        Self {
            instance_type: None,
            limit: None,
            distribution: Distribution::default(),
            cloud_secret_name: default_secret(),
            config_map_name: default_config_map(),
            node_selector: None,
            label_selector: None,
            adaptor: Adaptor::default(),
            admission: Admission::default(),
        }
    }
}

/// An object without `spec`, which older schemas allow, must not keep all others from being read: it reads as one with an
/// empty `spec`.
impl<'de> Deserialize<'de> for PeerPodConfigSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            remote = "PeerPodConfigSpec",
            rename_all = "camelCase",
            default = "PeerPodConfigSpec::default"
        )]
        struct Fields {
            instance_type: Option<String>,
            limit: Option<IntOrString>,
            distribution: Distribution,
            cloud_secret_name: String,
            config_map_name: String,
            node_selector: Option<BTreeMap<String, String>>,
            label_selector: Option<LabelSelector>,
            adaptor: Adaptor,
            admission: Admission,
        }
        #[derive(Deserialize)]
        struct Present(#[serde(with = "Fields")] PeerPodConfigSpec);

        // serde reads a missing field as `None`.
        let present = Option::<Present>::deserialize(deserializer)?;
        Ok(present.map_or_else(Self::default, |Present(spec)| spec))
    }
}

/// An object with malformed parts must not keep all others from being read: unreadable parts count as absent.
#[derive(Deserialize)]
struct StoredPeerPodConfig {
    #[serde(default, with = "metadata::Stored")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PeerPodConfigSpec,
    #[serde(default, deserialize_with = "metadata::if_readable")]
    status: Option<PeerPodConfigStatus>,
}

impl From<StoredPeerPodConfig> for PeerPodConfig {
    fn from(StoredPeerPodConfig { metadata, spec, status }: StoredPeerPodConfig) -> Self {
        Self { metadata, spec, status }
    }
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Distribution {
    /// VMs on all nodes together.
    #[default]
    Total,
    /// VMs on each node.
    PerNode,
}

/// How cloud-api-adaptor runs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Adaptor {
    /// The image. The default is set where the operator is installed (`RELATED_IMAGE_CAA`). Name the tag of a release to keep one
    /// version: `latest` changes over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub image: Option<String>,

    /// When a node pulls the image. `Always`: at every start. `IfNotPresent`: if the node does not have it. `Never`: not
    /// at all. The default is Kubernetes' own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// Secrets for pulling the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// Resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Whether the container of cloud-api-adaptor runs privileged. Nodes with SELinux enforcing, such as those of OpenShift, need
    /// it: otherwise the container may not write to the paths of the host that it mounts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,

    /// Taints of nodes that cloud-api-adaptor tolerates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// The PriorityClass of the Pods of cloud-api-adaptor, such as `system-node-critical`. Without one they are among the first that
    /// kubelet evicts, and the VMs of that node are cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// How a new version replaces an old one. The default replaces the Pod of one node at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = amount("maxSurge"), validation = amount("maxUnavailable"))]
    pub update_strategy: Option<DaemonSetUpdateStrategy>,

    /// Additional labels of the Pods, such as `azure.workload.identity/use`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,

    /// Additional annotations of the Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_annotations: BTreeMap<String, String>,

    /// Annotations of the ServiceAccount `cloud-api-adaptor`, such as a cloud's role for workload identity. All PeerPodConfigs share
    /// it: where two give an annotation different values, that of the older one counts. Pods that run keep their former identity:
    /// after a change, restart the DaemonSet when no peer pod runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_account_annotations: BTreeMap<String, String>,

    /// Whether the operator replaces the Pods when their `ConfigMap` or Secret changes. A restarted cloud-api-adaptor
    /// does not find the VMs that it runs. So, by default, the Pods keep running with the old settings, and a condition
    /// names them. A Secret that is deleted and created again counts as changed.
    #[serde(default)]
    pub restart_on_settings_change: bool,
}

/// When a node pulls an image.
// In the schema of an optional field a description of its type takes the place of the field's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// If the node does not have the image.
    IfNotPresent,
    /// Not at all.
    Never,
}

/// The state of a PeerPodConfig.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerPodConfigStatus {
    /// `Ready`, and its parts `AdaptorReady`, `AdmissionReady` and `CapacityAdvertised`. `Conflict`, `SettingsPending`,
    /// `SettingsRefused` and `SettingsDiverge` are present only while they are True.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// The `metadata.generation` that this describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Whether the PeerPodConfig has been ready at least once.
    #[serde(default)]
    pub setup_completed: bool,

    /// Number of selected nodes.
    #[serde(default)]
    pub nodes: i64,

    /// Number of VMs that these nodes advertise together.
    #[serde(default)]
    pub advertised: i64,
}

/// The API server takes a number of any size for this field of a rolling update. The operator reads numbers of 32 bits alone, and one
/// object with a larger one would keep all others from being read.
fn amount(field: &str) -> Rule {
    let amount = format!("self.rollingUpdate.{field}");
    let rule = format!(
        "!has(self.rollingUpdate) || !has({amount}) || type({amount}) != int || {amount} >= 0 && {amount} <= {}",
        i32::MAX
    );
    let message = format!("{field} must be a whole number from 0 to {}, or a percentage", i32::MAX);
    Rule::new(rule).message(message.as_str())
}

fn default_secret() -> String {
    "peer-pods-secret".to_owned()
}

fn default_config_map() -> String {
    "peer-pods-cm".to_owned()
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_as_upstream_wrote_it_is_read_with_the_defaults_for_the_rest() {
        let config: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPodConfig",
            "metadata": { "name": "config" },
            "spec": {
                "limit": "10",
                "nodeSelector": { "node.kubernetes.io/worker": "" },
                "configMapName": "peer-pods-cm",
                "cloudSecretName": "peer-pods-secret",
                "instanceType": "any",
            },
            "status": { "setupCompleted": true },
        }))
        .unwrap();
        assert_eq!(config.spec.limit, Some(IntOrString::String("10".into())));
        assert_eq!(config.spec.distribution, Distribution::Total);
        assert_eq!(config.spec.admission, Admission::default());
        assert!(config.status.unwrap().setup_completed);
    }

    #[test]
    fn an_object_without_spec_is_read_as_one_with_an_empty_one() {
        let bare: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1",
            "kind": "PeerPodConfig",
            "metadata": { "name": "bare" },
        }))
        .unwrap();
        assert_eq!(bare.metadata.name.as_deref(), Some("bare"));
        let empty: PeerPodConfigSpec = serde_json::from_value(json!({})).unwrap();
        assert_eq!(bare.spec, empty);
        assert_eq!((empty.config_map_name.as_str(), empty.limit), ("peer-pods-cm", None));
    }

    #[test]
    fn every_choice_is_explained_where_it_is_made() {
        fn explained(name: &str, schema: &serde_json::Value, explained_fields: &mut Vec<String>) {
            if let Some(choices) = schema["enum"].as_array() {
                let description = schema["description"].as_str().unwrap_or_default();
                for choice in choices.iter().filter_map(|choice| choice.as_str()) {
                    assert!(description.contains(&format!("`{choice}`")), "{name}: {choice}: {description}");
                }
                explained_fields.push(name.to_owned());
            }
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                explained(name, schema, explained_fields);
            }
        }
        let crd = serde_json::to_value(PeerPodConfig::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut fields = Vec::new();
        explained("", schema, &mut fields);
        assert_eq!(fields, ["imagePullPolicy", "mode", "sizing", "distribution"]);
        let policy = &schema["properties"]["spec"]["properties"]["adaptor"]["properties"]["imagePullPolicy"];
        assert!(policy["description"].as_str().unwrap().contains("The default"), "{policy}");
    }

    #[test]
    fn the_schema_has_rules_with_messages() {
        let crd = serde_json::to_string(&PeerPodConfig::crd()).unwrap();
        for expected in [
            "limit must be a whole number",
            "40 characters",
            "maxSurge must be a whole number",
            "maxUnavailable must be a whole number",
            "spec cannot be removed",
            r#""x-kubernetes-int-or-string":true"#,
        ] {
            assert!(crd.contains(expected), "{expected}: {crd}");
        }
    }
}
