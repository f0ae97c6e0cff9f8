//! What the operator installs for a PeerPodConfig.

use peerpod_operator::api::v1alpha1::{
    AdmissionMode, EXTENDED_RESOURCE, PeerPodConfigSpec, RUNTIME_CLASS, Sizing,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Object, Texts,
    operator::{IMAGE_NAME, IMAGE_TAG, ServiceAccount},
    sources::tls_version,
};
use peerpod_operator::install::samples::CONFIG;

/// cloud-api-adaptor's image.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AdaptorImage {
    /// The name of the image. If empty, the public image `quay.io/confidential-containers/cloud-api-adaptor`.
    #[schemars(regex(pattern = IMAGE_NAME))]
    name: String,
    /// The tag, which a digest may follow: `v0.22.0@sha256:…`. If empty, `latest`, which changes over time: name a release to keep one
    /// version. libvirt needs a development image, `latest` or a tag with `dev` in it: released images do not support libvirt. docker needs
    /// one up to `v0.21.1-dev`. vsphere needs a release up to `v0.17.0`.
    #[schemars(regex(pattern = IMAGE_TAG))]
    tag: String,
}

/// cloud-api-adaptor's DaemonSet.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Daemonset {
    /// How a new version replaces an old one: `maxUnavailable` and `maxSurge`. If empty, the Pod of one node at a time is
    /// replaced. With a release of cloud-api-adaptor up to v0.22.0, do not surge: no peer pod could start on an updated node.
    #[schemars(schema_with = "update_strategy")]
    update_strategy: Object,
    /// Additional labels of the Pods, such as `azure.workload.identity/use: "true"`.
    pod_labels: Texts,
    /// The ServiceAccount of cloud-api-adaptor.
    service_account: ServiceAccount,
}

/// The admission webhook.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Webhook {
    /// Whether the PeerPodConfig has an admission at all.
    enabled: bool,
    /// Number of webhook Pods.
    #[schemars(range(min = 1, max = 10))]
    replicas: i32,
    /// Which Pods the webhook changes, and how.
    #[serde(rename = "webhook")]
    target: WebhookTarget,
    /// Without effect: names are fixed.
    name_prefix: String,
    /// Without effect: the webhook runs in the namespace of the release.
    namespace_override: String,
    /// Without effect: the webhook runs the operator's image.
    image: Object,
    /// Resources of the webhook's container, in place of all of the default: it requests 10m CPU and 16Mi of memory, and may use 64Mi.
    resources: Object,
    /// Like `tlsProfile.minVersion`, if that is not set.
    #[schemars(schema_with = "tls_version")]
    tls_min_version: String,
    /// Like `tlsProfile.cipherSuites`, if that is not set.
    tls_cipher_suites: String,
    /// Without effect: the webhook creates its own certificate, or uses the Secret `webhook-server-cert` if you create
    /// it.
    cert_manager: Object,
    /// Without effect: the metrics have no proxy.
    auth_proxy: Object,
}

impl Default for Webhook {
    fn default() -> Self {
        Self {
            enabled: true,
            replicas: 2,
            target: WebhookTarget::default(),
            name_prefix: String::new(),
            namespace_override: String::new(),
            image: Object::new(),
            resources: Object::new(),
            tls_min_version: String::new(),
            tls_cipher_suites: String::new(),
            cert_manager: Object::new(),
            auth_proxy: Object::new(),
        }
    }
}

/// Which Pods the webhook changes, and how.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookTarget {
    /// The runtime class of peer pods.
    #[schemars(length(min = 1))]
    target_runtime_class: String,
    /// The extended resource of which one unit is one VM.
    #[serde(rename = "podVMExtendedResource")]
    #[schemars(length(min = 3))]
    pod_vm_extended_resource: String,
    /// Without effect: it is `Fail`, and only peer pods reach the webhook.
    failure_policy: String,
    /// Additional annotations of the MutatingWebhookConfiguration. `admissions.enforcer/disabled: "true"` keeps AKS from
    /// changing it.
    annotations: Texts,
    /// Additional labels of the MutatingWebhookConfiguration.
    labels: Texts,
}

impl Default for WebhookTarget {
    fn default() -> Self {
        Self {
            target_runtime_class: RUNTIME_CLASS.to_owned(),
            pod_vm_extended_resource: EXTENDED_RESOURCE.to_owned(),
            failure_policy: "Fail".to_owned(),
            annotations: Texts::new(),
            labels: Texts::new(),
        }
    }
}

/// Settings for Alibaba Cloud.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Alibabacloud {
    /// A role for the ServiceAccount.
    rrsa: Rrsa,
}

/// A role for the ServiceAccount.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rrsa {
    /// Without effect: cloud-api-adaptor always finds the token at `/var/run/secrets/ack.alibabacloud.com/rrsa-tokens/token`.
    enable: bool,
}

/// How Pods become peer pods.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Admission {
    /// `Webhook`, `Policy` (Kubernetes 1.36 and later) or `None`.
    mode: AdmissionMode,
    /// How to compute a VM's size from the containers' resources: `Kubernetes` or `Sum`.
    sizing: Sizing,
    /// Namespaces whose Pods are never changed.
    excluded_namespaces: Vec<String>,
}

/// What API servers take for the name of an object.
const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// A PeerPodConfig.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PeerPodConfig {
    /// Whether the chart applies a PeerPodConfig. An installation, an upgrade and a rollback apply the values to it.
    /// `helm uninstall` deletes it.
    create: bool,
    /// The name, of up to 40 characters. If you change it, the old PeerPodConfig stays.
    #[schemars(length(max = 40), regex(pattern = SUBDOMAIN))]
    name: String,
    /// Additional fields of its `spec`. They override other values. An example: `{distribution: PerNode, nodeSelector:
    /// {pool: peer-pods}, adaptor: {tolerations: [{operator: Exists}], imagePullSecrets: [{name: mine}]}}`. `kubectl explain
    /// peerpodconfig.spec` has all fields.
    #[schemars(schema_with = "config_spec")]
    spec: Object,
}

impl Default for PeerPodConfig {
    fn default() -> Self {
        Self { create: false, name: CONFIG.to_owned(), spec: Object::new() }
    }
}

pub(super) fn limit(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": 1_000_000 },
        { "type": "string", "pattern": "^([0-9]{1,6}|1000000)$" },
    ] })
}

fn update_strategy(_: &mut SchemaGenerator) -> Schema {
    let amount = json!({ "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": i32::MAX },
        { "type": "string", "pattern": "^([0-9]{1,9}|[0-9]{1,2}%|100%)$" },
    ] });
    json_schema!({
        "type": "object",
        "properties": { "maxUnavailable": amount, "maxSurge": amount },
        "additionalProperties": false,
    })
}

/// The fields by their names; what they hold is judged where the PeerPodConfig is applied. A label without a value would be gone by then,
/// and a selector without labels selects every node.
fn config_spec(generator: &mut SchemaGenerator) -> Schema {
    let schema = PeerPodConfigSpec::json_schema(generator);
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let mut names: Object = fields.map(|(name, _)| (name.clone(), true.into())).collect();
    let labels = json!({ "type": ["object", "null"], "additionalProperties": { "type": "string" } });
    let selector = json!({ "type": ["object", "null"], "properties": { "matchLabels": labels } });
    names.extend([("nodeSelector".to_owned(), labels), ("labelSelector".to_owned(), selector)]);
    json_schema!({ "type": "object", "properties": names, "additionalProperties": false })
}
