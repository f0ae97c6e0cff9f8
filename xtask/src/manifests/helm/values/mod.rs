//! What the chart's users can say. `values.yaml`, `values.schema.json` and the README's table are printed from here.
//!
//! Where the charts of cloud-api-adaptor have a value, it has the same name and meaning here, so that people bring their
//! values file. What of theirs has no meaning here is accepted, and says so: its documentation begins with
//! [`WITHOUT_EFFECT`].
//!
//! ```text
//! sources.rs      where settings and credentials come from
//! providers.rs    the settings and credentials of each provider
//! peer_pods.rs    what the operator installs for a PeerPodConfig
//! operator.rs     the operator
//! installation.rs what is installed beside it
//! ```

mod installation;
mod operator;
mod peer_pods;
mod providers;
mod sources;

use std::collections::BTreeMap;

use anyhow::Result;
use peerpod_operator::install::{Component, Options};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value};

use self::{
    installation::{Crds, Drain, Guard, Metrics, Switch},
    operator::{Operator, ResourceCtrl},
    peer_pods::{AdaptorImage, Admission, Alibabacloud, Daemonset, PeerPodConfig, Webhook, limit},
    providers::{provider, provider_configs, provider_secrets},
    sources::{Secrets, Settings, TlsProfile},
};

pub(super) use providers::provider_names;

/// How the documentation of a value begins that is accepted for the sake of those who bring it.
pub(super) const WITHOUT_EFFECT: &str = "Without effect";

/// Any map of YAML.
type Object = Map<String, Value>;
/// Any list of YAML.
type List = Vec<Value>;
/// Labels, annotations and the like.
type Texts = BTreeMap<String, String>;

/// Labels beside those by which Pods are selected and the installation's objects are known. Each of these is a property of its
/// own, which there may not be: of a name that `propertyNames` forbids, helm tells the place of some other value.
fn further_labels(_: &mut SchemaGenerator) -> Schema {
    let own: Object = Component::Operator.labels().into_keys().map(|key| (key, false.into())).collect();
    json_schema!({
        "type": "object",
        "properties": own,
        "additionalProperties": { "type": "string" },
    })
}

/// The values of the chart.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Values {
    /// Whether a parent chart with `condition: peerpod-operator.enabled` includes this chart. This chart itself ignores
    /// it. Run `drain` before you set it to `false`: helm then deletes the objects without the Job that drains.
    enabled: bool,
    /// The cloud. If set, the chart creates `peer-pods-cm` and `peer-pods-secret` from `providerConfigs` and
    /// `providerSecrets`. If empty, you create both, and helm deletes those that the release created before, unless they have the
    /// annotation `helm.sh/resource-policy=keep`. `providers/NAME.yaml` is a values file for each cloud, with every setting.
    #[schemars(schema_with = "provider")]
    provider: String,
    /// cloud-api-adaptor's settings, by provider: `providerConfigs.aws.PODVM_AMI_ID`. An empty value means the default.
    #[schemars(schema_with = "provider_configs")]
    provider_configs: Object,
    /// cloud-api-adaptor's credentials, by provider, if `secrets.mode` is `create`. `id_rsa` and `id_rsa_pub` (libvirt,
    /// byom) are the ssh key; libvirt also takes `id_ecdsa`, `id_ed25519` and `known_hosts`. `hostKeys` (byom) is a map of trusted host
    /// keys, by names `*.pub`. helm stores them with the release: a Secret of your own is safer.
    #[schemars(schema_with = "provider_secrets")]
    provider_secrets: Object,
    /// Where credentials come from.
    secrets: Secrets,
    /// Where settings come from.
    settings: Settings,
    /// Requirements for TLS connections of cloud-api-adaptor and the webhook.
    tls_profile: TlsProfile,
    /// cloud-api-adaptor's image.
    image: AdaptorImage,
    /// How many peer-pod VMs may run on all nodes together, or with `peerPodConfig.spec.distribution: PerNode` on each node:
    /// `spec.limit` of the PeerPodConfig. 0 means none. (In the charts of cloud-api-adaptor this value has no effect. There
    /// `PEERPODS_LIMIT_PER_NODE` counts, 10 on each node by default.)
    #[schemars(schema_with = "limit")]
    limit: String,
    /// cloud-api-adaptor's DaemonSet, which the operator creates for the PeerPodConfig.
    daemonset: Daemonset,
    /// The controller that deletes the VMs of Pods that no longer exist.
    resource_ctrl: ResourceCtrl,
    /// The admission webhook, which the operator creates for the PeerPodConfig.
    webhook: Webhook,
    /// Settings for Alibaba Cloud.
    alibabacloud: Alibabacloud,
    /// How Pods become peer pods, in addition to `webhook`.
    admission: Admission,
    /// A PeerPodConfig, for which the operator deploys cloud-api-adaptor and the admission, and advertises the nodes'
    /// capacity.
    peer_pod_config: PeerPodConfig,
    /// The operator.
    operator: Operator,
    /// The admission policy for writes to PeerPods.
    guard: Guard,
    /// The custom resource definitions.
    crds: Crds,
    /// Objects for Prometheus and Grafana.
    metrics: Metrics,
    /// Whether a `NetworkPolicy` closes the Pods' ports except those for metrics and reviews.
    network_policy: Switch,
    /// Whether a PodDisruptionBudget keeps one operator during evictions.
    pod_disruption_budget: Switch,
    /// What `helm uninstall` waits for: deletions in progress, and the deletion of every PeerPodConfig.
    drain: Drain,
    /// Labels of every object of the release and of the Pods of its Deployment and Jobs. Objects that the operator
    /// creates do not get them. The chart sets `app.kubernetes.io/name`, `app.kubernetes.io/component`,
    /// `app.kubernetes.io/part-of` and `app.kubernetes.io/version` itself.
    #[schemars(schema_with = "further_labels")]
    common_labels: Texts,
    /// Without effect: this chart does not install Kata Containers; install their chart kata-deploy as a release of its own.
    #[serde(rename = "kata-deploy")]
    kata_deploy: Object,
    /// Without effect here.
    global: Object,
}

impl Values {
    /// The defaults: those of the installation.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            enabled: true,
            limit: "10".to_owned(),
            operator: Operator::of(&Options::default())?,
            ..Self::default()
        })
    }
}
