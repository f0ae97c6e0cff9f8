//! What the operator installs for a PeerPodConfig.

use peerpod_operator::api::v1alpha1::{
    AdmissionMode, EXTENDED_RESOURCE, PeerPodConfigSpec, RUNTIME_CLASS, Sizing,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Object, Texts, operator::ServiceAccount, sources::tls_version};
use peerpod_operator::install::samples::CONFIG;

/// cloud-api-adaptor's image.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AdaptorImage {
    /// Its name. Empty is the public one, `quay.io/confidential-containers/cloud-api-adaptor`.
    name: String,
    /// Its tag. Empty is `latest`. libvirt needs a development image, `latest` or a tag with `dev` in it: that of a release knows no libvirt.
    tag: String,
}

/// cloud-api-adaptor's DaemonSet.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Daemonset {
    /// How a new version takes the place of an old one: `maxUnavailable` and `maxSurge`. Empty replaces one node's Pod at a time.
    #[schemars(schema_with = "update_strategy")]
    update_strategy: Object,
    /// Further labels of its Pods, such as `azure.workload.identity/use: "true"`.
    pod_labels: Texts,
    /// Its ServiceAccount.
    service_account: ServiceAccount,
}

/// The admission webhook.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Webhook {
    /// Whether the PeerPodConfig has an admission at all.
    enabled: bool,
    /// How many webhooks there are.
    #[schemars(range(min = 1, max = 10))]
    replicas: i32,
    /// What it looks for.
    #[serde(rename = "webhook")]
    target: WebhookTarget,
    /// Without effect: names are fixed.
    name_prefix: String,
    /// Without effect: it runs in the namespace of the release.
    namespace_override: String,
    /// Without effect: it runs the operator's image.
    image: Object,
    /// Without effect: the operator says what it needs.
    resources: Object,
    /// As `tlsProfile.minVersion`, where that profile says nothing.
    #[schemars(schema_with = "tls_version")]
    tls_min_version: String,
    /// As `tlsProfile.cipherSuites`, where that profile says nothing.
    tls_cipher_suites: String,
    /// Without effect: it makes its own certificate, and uses the Secret `webhook-server-cert` if somebody else makes it.
    cert_manager: Object,
    /// Without effect: there is no proxy before the metrics.
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

/// What the webhook looks for.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookTarget {
    /// The runtime class of peer pods.
    #[schemars(length(min = 1))]
    target_runtime_class: String,
    /// The extended resource that stands for one VM.
    #[serde(rename = "podVMExtendedResource")]
    #[schemars(length(min = 3))]
    pod_vm_extended_resource: String,
    /// Without effect: it is `Fail`, and only peer pods ever reach the webhook.
    failure_policy: String,
    /// Further annotations of the MutatingWebhookConfiguration: `admissions.enforcer/disabled: "true"` keeps AKS from changing it.
    annotations: Texts,
    /// Further labels of the MutatingWebhookConfiguration.
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

/// What only Alibaba Cloud needs.
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
    /// `Webhook`, `Policy` (Kubernetes 1.36 and later), `Auto` or `None`.
    mode: AdmissionMode,
    /// How the size of a VM follows from the containers' resources: `Kubernetes` or `Sum`.
    sizing: Sizing,
    /// Namespaces whose Pods are left as they are.
    excluded_namespaces: Vec<String>,
}

/// What API servers take for the name of an object.
const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// A PeerPodConfig.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PeerPodConfig {
    /// Whether there is one. An installation, an upgrade and a rollback bring it to what the values say; it is deleted when the chart
    /// is uninstalled, and not before.
    create: bool,
    /// Its name, of up to 40 characters. Another name is another PeerPodConfig: the former one stays.
    #[schemars(length(max = 40), regex(pattern = SUBDOMAIN))]
    name: String,
    /// Further fields of its `spec`, which overrule what other values say.
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
        { "type": "string", "pattern": "^[0-9]{1,7}$" },
    ] })
}

fn update_strategy(_: &mut SchemaGenerator) -> Schema {
    let amount = json!({ "anyOf": [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "pattern": "^[0-9]+%?$" },
    ] });
    json_schema!({
        "type": "object",
        "properties": { "maxUnavailable": amount, "maxSurge": amount },
        "additionalProperties": false,
    })
}

/// The fields by their names; what they hold is judged where the PeerPodConfig is applied.
fn config_spec(generator: &mut SchemaGenerator) -> Schema {
    let schema = PeerPodConfigSpec::json_schema(generator);
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let names: Object = fields.map(|(name, _)| (name.clone(), true.into())).collect();
    json_schema!({ "type": "object", "properties": names, "additionalProperties": false })
}
