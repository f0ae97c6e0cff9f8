//! The custom resource.

// Each printer column repeats the attribute `type_`.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::LocalObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use operator_kit::crd::Crds;
use serde::{Deserialize, Serialize};

/// This operator's definitions.
pub const CRDS: Crds =
    Crds { group: "pt.example.com", install: "kubectl apply -f examples/ptemplate/manifests/crd.yaml" };

const CONSUMER: &str = "quay.io/chrisp262/pt-device-plugin:consumer-latest";

/// A kernel module with its device plugin on some nodes, and the Pods that use its devices there.
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "pt.example.com", version = "v1alpha1", kind = "Ptemplate", namespaced,
    status = "PtemplateStatus", category = "all",
    doc = "Ptemplate loads the kernel module ptemplate_char_dev by KMM, and runs a consumer of its devices on each node.",
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("the name of a Ptemplate may have at most 63 characters: it is a label of its consumers"),
    printcolumn(name = "Module", type_ = "string", json_path = r#".status.conditions[?(@.type=="ModuleApplied")].reason"#),
    printcolumn(name = "Consumer", type_ = "string", json_path = r#".status.conditions[?(@.type=="ConsumerApplied")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
// Two fields have two spellings in use. Neither has a default in the schema: it would contradict the other spelling.
#[x_kube(
    validation = Rule::new("!has(self.consumer) || !has(self.consumerimage) || self.consumer == self.consumerimage")
        .message("consumer and consumerimage are one field in two spellings: give one of them"),
    validation = Rule::new("!has(self.imagePullSecret) || !has(self.imageRepoSecret) || self.imagePullSecret.name == self.imageRepoSecret.name")
        .message("imagePullSecret and imageRepoSecret are one field in two spellings: give one of them")
)]
#[serde(rename_all = "camelCase")]
pub struct PtemplateSpec {
    /// How many devices the module makes.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    pub maxdev: i32,

    /// What its devices say until something is written to them.
    #[schemars(length(max = 1024))]
    pub defaultmsg: Option<String>,

    /// Image of the device plugin.
    #[serde(default = "device_plugin")]
    #[schemars(length(max = 1024))]
    pub deviceplugin: String,

    /// Image of the consumer; `quay.io/chrisp262/pt-device-plugin:consumer-latest` without it.
    #[schemars(length(max = 1024))]
    pub consumer: Option<String>,

    /// Another spelling of `consumer`.
    #[schemars(length(max = 1024))]
    pub consumerimage: Option<String>,

    /// How many devices each consumer gets.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub required_devices: i32,

    /// The Secret by which all images are pulled.
    #[schemars(extend("properties" = { "name": { "type": "string", "maxLength": 253 } }))]
    pub image_pull_secret: Option<LocalObjectReference>,

    /// Another spelling of `imagePullSecret`.
    #[schemars(extend("properties" = { "name": { "type": "string", "maxLength": 253 } }))]
    pub image_repo_secret: Option<LocalObjectReference>,

    /// Labels of the nodes, at least one.
    // The API server refuses others in a DaemonSet, and lists them in another order each time.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16, "additionalProperties" = { "type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$" }))]
    #[x_kube(validation = Rule::new("self.all(key, key.indexOf('/') <= 253 && key.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$'))")
        .message("each key of the selector must be a label's, such as example.com/name"))]
    pub selector: BTreeMap<String, String>,
}

fn one() -> i32 {
    1
}

fn five() -> i32 {
    5
}

fn device_plugin() -> String {
    "quay.io/chrisp262/pt-device-plugin:latest".to_owned()
}

impl PtemplateSpec {
    /// Image of the consumer, whatever its spelling.
    pub fn consumer_image(&self) -> &str {
        self.consumer.as_deref().or(self.consumerimage.as_deref()).unwrap_or(CONSUMER)
    }

    /// The Secret for images, whatever its spelling.
    pub fn pull_secret(&self) -> Option<LocalObjectReference> {
        self.image_pull_secret.clone().or_else(|| self.image_repo_secret.clone())
    }
}

/// What became of it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct PtemplateStatus {
    /// The names of the consumer's Pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<String>,

    /// `ModuleApplied` and `ConsumerApplied`: whether the Module and the DaemonSet are as wanted. `DefinitionStale` is there if the
    /// installed CRD lacks fields.
    // A user may write a time that cannot be read. Without this, no Ptemplate could be read then.
    #[serde(default, deserialize_with = "operator_kit::metadata::readable_or_default")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
