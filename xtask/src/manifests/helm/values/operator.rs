//! The operator.

use anyhow::{Context as _, Result};
use peerpod_operator::{
    install::{self, Options},
    runtime::lease,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, to_value};

use super::{List, Object, Texts, further_labels, sources::tls_version};

/// The controller that deletes VMs whose Pods are gone.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ResourceCtrl {
    /// Whether it runs.
    enabled: bool,
    /// Further labels of the operator's Pods; none that `commonLabels` may not have.
    #[schemars(schema_with = "further_labels")]
    pod_labels: Texts,
    /// The operator's ServiceAccount.
    service_account: ServiceAccount,
    /// Without effect: names are fixed.
    name_prefix: String,
    /// Without effect: the operator's image is `operator.image`.
    image: Object,
    /// Without effect: there is no proxy before the metrics.
    auth_proxy: Object,
    /// As `tlsProfile.minVersion`, where neither that nor the webhook's values say anything.
    #[schemars(schema_with = "tls_version")]
    tls_min_version: String,
    /// As `tlsProfile.cipherSuites`, where neither that nor the webhook's values say anything.
    tls_cipher_suites: String,
}

impl Default for ResourceCtrl {
    fn default() -> Self {
        Self {
            enabled: true,
            pod_labels: Texts::new(),
            service_account: ServiceAccount::default(),
            name_prefix: String::new(),
            image: Object::new(),
            auth_proxy: Object::new(),
            tls_min_version: String::new(),
            tls_cipher_suites: String::new(),
        }
    }
}

/// A ServiceAccount.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ServiceAccount {
    /// Its annotations, such as a cloud's role for workload identity.
    annotations: Texts,
}

/// The operator.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Operator {
    /// Its image.
    image: OperatorImage,
    /// Secrets that the image is pulled with: `[{name: …}]`.
    #[schemars(schema_with = "pull_secrets")]
    image_pull_secrets: List,
    /// How many there are, of which one acts.
    #[schemars(range(min = 0, max = 10))]
    replicas: i32,
    /// The controllers to run: `peerpod`, `peerpodconfig`. Empty: those that the other values need.
    controllers: Vec<Controller>,
    /// The Lease of the operator that acts; `33f6c5d6.confidentialcontainers.org` is that of cloud-api-adaptor's own controller. Empty: its
    /// own. It has the right to no other.
    #[schemars(schema_with = "lease_name")]
    lease_name: String,
    /// What it asks of its node, and the most that it gets.
    resources: Object,
    /// Its ServiceAccount.
    service_account: ServiceAccount,
    /// Further arguments of `peerpod-operator run`. One that is there already counts in place of that one.
    extra_args: Vec<String>,
    /// Further environment variables: `[{name: PEERPOD_OPERATOR_LOG, value: "info,peerpod_operator=debug"}]` has it log more.
    extra_env: List,
    /// Further volumes.
    extra_volumes: List,
    /// Where they are mounted.
    extra_volume_mounts: List,
    /// Further labels of its Pods; none that `commonLabels` may not have.
    #[schemars(schema_with = "further_labels")]
    pod_labels: Texts,
    /// Further annotations of its Pods.
    pod_annotations: Texts,
    /// Annotations of its Deployment.
    annotations: Texts,
    /// Labels of nodes that it runs on, and the webhook.
    node_selector: Texts,
    /// Taints of nodes that it runs on all the same, and the webhook.
    tolerations: List,
    /// Which nodes it needs or prefers, and which other Pods there; `nodeAffinity` is that of the webhook and of helm's Jobs, too.
    affinity: Object,
    /// How it is spread over nodes.
    topology_spread_constraints: List,
    /// Its priority class, and that of the webhook and of helm's Jobs.
    priority_class_name: String,
}

impl Operator {
    /// As it is installed.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let (repository, _) = options.image.rsplit_once(':').context("the image has a tag")?;
        let pod = install::deployment(options).spec.and_then(|spec| spec.template.spec);
        let constraints = pod.and_then(|pod| pod.topology_spread_constraints);
        let spread = constraints.context("the operator is spread over nodes")?;
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        Ok(Self {
            image: OperatorImage { repository: repository.to_owned(), ..OperatorImage::default() },
            replicas: options.replicas,
            resources: object(to_value(&options.resources)?),
            topology_spread_constraints: spread.iter().map(to_value).collect::<Result<_, _>>()?,
            ..Self::default()
        })
    }
}

/// The operator's image.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OperatorImage {
    /// Its name.
    #[schemars(length(min = 1))]
    repository: String,
    /// Its tag. Empty is the chart's appVersion.
    tag: String,
    /// Its digest, `sha256:` and 64 hexadecimal digits, in the place of a tag.
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    digest: String,
    /// When a node pulls it.
    pull_policy: PullPolicy,
}

#[derive(Clone, Copy, Default, Serialize, JsonSchema)]
enum PullPolicy {
    #[expect(dead_code, reason = "it is in the schema")]
    Always,
    #[default]
    IfNotPresent,
    #[expect(dead_code, reason = "it is in the schema")]
    Never,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "they are in the schema")]
enum Controller {
    PeerPod,
    PeerPodConfig,
}

fn lease_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", lease::DEFAULT_NAME, lease::PEERPOD_CTRL] })
}

fn pull_secrets(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": { "name": { "type": "string" } },
            "required": ["name"],
            "additionalProperties": false,
        },
    })
}
