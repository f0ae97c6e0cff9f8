//! The operator.

use anyhow::{Context as _, Result};
use peerpod_operator::{
    install::{self, Options},
    names,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, to_value};

use super::{List, Object, Texts, further_labels, sources::tls_version};

/// The controller that deletes the VMs of Pods that no longer exist.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ResourceCtrl {
    /// Whether the controller runs. If false, the operator still has the rights to patch and delete PeerPods.
    enabled: bool,
    /// Additional labels of the operator's Pods. The names that `commonLabels` forbids are forbidden here, too.
    #[schemars(schema_with = "further_labels")]
    pod_labels: Texts,
    /// The operator's ServiceAccount.
    service_account: ServiceAccount,
    /// Without effect: names are fixed.
    name_prefix: String,
    /// Without effect: the operator's image is `operator.image`.
    image: Object,
    /// Without effect: the metrics have no proxy.
    auth_proxy: Object,
    /// Like `tlsProfile.minVersion`, if neither that nor the webhook's values are set.
    #[schemars(schema_with = "tls_version")]
    tls_min_version: String,
    /// Like `tlsProfile.cipherSuites`, if neither that nor the webhook's values are set.
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
    /// Annotations, such as a cloud's role for workload identity.
    annotations: Texts,
}

/// The operator.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Operator {
    /// The operator's image.
    image: OperatorImage,
    /// Secrets for pulling the image: `[{name: …}]`.
    #[schemars(schema_with = "pull_secrets")]
    image_pull_secrets: List,
    /// Number of replicas. One of them leads, the others stand by.
    #[schemars(range(min = 0, max = 10))]
    replicas: i32,
    /// The controllers to run: `peerpod`, `peerpodconfig`. If empty, those that the other values need. With `peerpod` alone, the
    /// operator and the webhook get none of the rights that a PeerPodConfig needs: delete every PeerPodConfig before. With
    /// `peerpodconfig` alone, the operator still has the rights to patch and delete PeerPods. `extraArgs` does not change the rights.
    #[schemars(extend("uniqueItems" = true))]
    controllers: Vec<Controller>,
    /// The Lease of the leader. `33f6c5d6.confidentialcontainers.org` is the Lease of cloud-api-adaptor's own controller.
    /// If empty, the operator's own. No other name is possible: the operator has no rights to other Leases.
    #[schemars(schema_with = "lease_name")]
    lease_name: String,
    /// Resource requests and limits of the operator.
    resources: Object,
    /// The operator's ServiceAccount.
    service_account: ServiceAccount,
    /// Whether the operator evicts Pods whose VM is gone or off, as disruption budgets allow. Without the controller `peerpod` it evicts
    /// none, and has no right to do so.
    evict_lost_pods: bool,
    /// Additional arguments of `peerpod-operator run`. They override arguments that the chart sets.
    extra_args: Vec<String>,
    /// Additional environment variables. `[{name: PEERPOD_OPERATOR_LOG, value: "info,peerpod_operator=debug"}]` makes the
    /// operator log more.
    extra_env: List,
    /// Additional volumes.
    extra_volumes: List,
    /// Mounts of these volumes.
    extra_volume_mounts: List,
    /// Additional labels of the operator's Pods. The names that `commonLabels` forbids are forbidden here, too.
    #[schemars(schema_with = "further_labels")]
    pod_labels: Texts,
    /// Additional annotations of the operator's Pods.
    pod_annotations: Texts,
    /// Annotations of the operator's Deployment.
    annotations: Texts,
    /// Labels of the nodes for the operator, the webhook and helm's Jobs, in addition to `kubernetes.io/os: linux`.
    node_selector: Texts,
    /// Taints of nodes that the operator, the webhook and helm's Jobs tolerate.
    tolerations: List,
    /// Affinity of the operator's Pods. `nodeAffinity` also applies to the webhook and to helm's Jobs.
    affinity: Object,
    /// How the operator's Pods are spread over nodes.
    topology_spread_constraints: List,
    /// Priority class of the operator, the webhook and helm's Jobs.
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

/// The name of an image without a tag and a digest, which have values of their own. Its registry may have a port.
pub(super) const IMAGE_NAME: &str = "^([^/@]+/)?[^@:]*$";

/// The tag of an image, which a digest may follow.
pub(super) const IMAGE_TAG: &str = "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?)?$";

/// The operator's image.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OperatorImage {
    /// The name of the image.
    #[schemars(length(min = 1), regex(pattern = IMAGE_NAME))]
    repository: String,
    /// The tag. If empty, the chart's appVersion.
    #[schemars(regex(pattern = IMAGE_TAG))]
    tag: String,
    /// The digest, `sha256:` and 64 hexadecimal digits, instead of a tag.
    #[schemars(regex(pattern = r"^(sha256:[0-9a-f]{64})?$"))]
    digest: String,
    /// When a node pulls the image.
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
    json_schema!({ "type": "string", "enum": ["", names::LEASE, names::PEERPOD_CTRL_LEASE] })
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
