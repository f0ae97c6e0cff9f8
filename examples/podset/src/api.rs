//! The custom resource: what a user writes, and what the operator answers.

// Each printer column repeats the attribute `type_`.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use operator_kit::crd::Crds;
use serde::{Deserialize, Serialize};

/// The definitions of this operator, and the command that installs them.
pub const CRDS: Crds =
    Crds { group: "app.example.com", install: "kubectl apply -f examples/podset/manifests/crd.yaml" };

/// What a user wants.
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "app.example.com", version = "v1alpha1", kind = "PodSet", namespaced,
    status = "PodSetStatus", category = "all", doc = "PodSet keeps a number of Pods, all alike.",
    // Longer names do not fit into a label.
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("the name of a PodSet may have at most 63 characters: it is a label of its Pods"),
    // It makes `kubectl scale` and a HorizontalPodAutoscaler work.
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.availableReplicas",
        label_selector_path = ".status.selector"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Available")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PodSetSpec {
    /// The number of Pods.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,
}

fn default_replicas() -> i32 {
    1
}

/// What the operator found and did.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSetStatus {
    /// The names of the Pods that are pending or running and not being deleted.
    #[serde(default)]
    pub pod_names: Vec<String>,

    /// The number of these Pods.
    #[serde(default)]
    pub available_replicas: i32,

    /// The labels of these Pods, as a selector. An autoscaler finds them by it.
    #[serde(default)]
    pub selector: String,

    /// `Available`: whether there are as many Pods as wanted.
    // A user may write a time that cannot be read. It must not keep all PodSets from being read.
    #[serde(default, deserialize_with = "operator_kit::metadata::readable_or_default")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
