//! How Pods become peer pods: what a [`PeerPodConfig`](super::PeerPodConfig) says of it.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OBJECT_NAME, Resources};

/// The default runtime class of peer pods.
pub const RUNTIME_CLASS: &str = "kata-remote";

/// The default extended resource, of which one unit is one VM.
pub const EXTENDED_RESOURCE: &str = "kata.peerpods.io/vm";

/// How Pods become peer pods.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// What turns Pods into peer pods. `Webhook`: a mutating webhook that the operator deploys. `Policy`: a mutating
    /// admission policy inside the API server (Kubernetes 1.36 and later). `None`: another program does.
    #[serde(default)]
    pub mode: AdmissionMode,

    /// The runtime class of peer pods.
    #[serde(default = "default_runtime_class")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(OBJECT_NAME)
        .message("runtimeClassName must be the name of a RuntimeClass, such as kata-remote"))]
    pub runtime_class_name: String,

    /// The extended resource of which one unit is one VM. Nodes advertise it, and each peer pod requests one. It cannot change.
    #[serde(default = "default_extended_resource")]
    #[schemars(length(min = 3, max = 308))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$') && self.indexOf('/') <= 244 && !self.contains('kubernetes.io/') && !self.startsWith('requests.')")
        .message("extendedResource must be a name with a domain of its own, such as kata.peerpods.io/vm"))]
    #[x_kube(validation = Rule::new("self == oldSelf")
        .message("extendedResource cannot change, because running peer pods keep the former one: delete the peer pods and the PeerPodConfig, then create it again"))]
    pub extended_resource: String,

    /// Number of webhook Pods, from 1 to 10. They have a disruption budget that leaves all but one running: where a single node can run
    /// them, set 1, or the node cannot be drained.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,

    /// Namespaces whose Pods are never changed, in addition to `kube-system` and the operator's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded_namespaces: Vec<String>,

    /// How to compute a VM's size from the resources of a Pod's containers. `Kubernetes`: as Kubernetes does; init
    /// containers run one after another, before the containers. `Sum`: the plain sum over all containers, as
    /// cloud-api-adaptor's own webhook does.
    #[serde(default)]
    pub sizing: Sizing,

    /// Resources of the webhook's container, such as a limit that a quota of the operator's namespace asks for. The default
    /// requests 10m CPU and 16Mi of memory, and limits the memory to 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Additional labels of the webhook's Deployment and Pods, such as those that a policy of the cluster requires.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,

    /// Additional annotations of the webhook's Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_annotations: BTreeMap<String, String>,

    /// Further annotations of the MutatingWebhookConfiguration. `admissions.enforcer/disabled: "true"` keeps AKS from changing it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub webhook_annotations: BTreeMap<String, String>,

    /// Further labels of the MutatingWebhookConfiguration.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub webhook_labels: BTreeMap<String, String>,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            mode: AdmissionMode::default(),
            runtime_class_name: default_runtime_class(),
            extended_resource: default_extended_resource(),
            replicas: default_replicas(),
            excluded_namespaces: Vec::new(),
            sizing: Sizing::default(),
            resources: None,
            pod_labels: BTreeMap::new(),
            pod_annotations: BTreeMap::new(),
            webhook_annotations: BTreeMap::new(),
            webhook_labels: BTreeMap::new(),
        }
    }
}

/// What turns Pods into peer pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdmissionMode {
    /// A mutating webhook that the operator deploys.
    // Objects that were stored when a mode `Auto` existed must not keep all others from being read.
    #[default]
    #[serde(alias = "Auto")]
    Webhook,
    /// A mutating admission policy, inside the API server (Kubernetes 1.36 and later).
    Policy,
    /// Nothing: another program does.
    None,
}

/// How the size of a VM follows from a Pod's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Sizing {
    /// As Kubernetes does: init containers run one after another, before the containers.
    #[default]
    Kubernetes,
    /// The plain sum over all containers, as cloud-api-adaptor's own webhook does.
    Sum,
}

fn default_runtime_class() -> String {
    RUNTIME_CLASS.to_owned()
}

fn default_extended_resource() -> String {
    EXTENDED_RESOURCE.to_owned()
}

fn default_replicas() -> i32 {
    2
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;
    use crate::api::v1alpha1::PeerPodConfig;

    #[test]
    fn a_stored_mode_auto_is_read_as_webhook_and_the_schema_refuses_a_new_one() {
        let stored: PeerPodConfig = serde_json::from_value(json!({
            "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPodConfig",
            "metadata": { "name": "config" }, "spec": { "admission": { "mode": "Auto", "sizing": "Sum" } },
        }))
        .unwrap();
        assert_eq!(stored.spec.admission.mode, AdmissionMode::Webhook);
        assert_eq!(stored.spec.admission.sizing, Sizing::Sum);
        let crd = serde_json::to_value(PeerPodConfig::crd()).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mode = &spec["properties"]["admission"]["properties"]["mode"];
        assert_eq!(mode["enum"], json!(["Webhook", "Policy", "None"]), "the API server names these");
    }
}
