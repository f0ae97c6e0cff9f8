//! What the chart's users can say. `values.yaml`, `values.schema.json` and the README's table are printed from here.
//!
//! Where the charts of cloud-api-adaptor have a value, it has the same name and meaning here, so that people bring their
//! values file. What of theirs has no meaning here is accepted, and says so.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use peerpod_operator::{
    install::{self, Options},
    settings::{CloudProvider, Common, Kind},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json, to_value};

/// Any map of YAML.
type Object = Map<String, Value>;
/// Any list of YAML.
type List = Vec<Value>;
/// Labels, annotations and the like.
type Texts = BTreeMap<String, String>;

/// The values of the chart.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Values {
    /// The cloud: with it, the chart makes `peer-pods-cm` and `peer-pods-secret` from `providerConfigs` and `providerSecrets`. Without,
    /// both must be there already. `providers/NAME.yaml` is a values file for each, with every setting.
    #[schemars(schema_with = "provider")]
    provider: String,
    /// cloud-api-adaptor's settings, by provider: `providerConfigs.aws.PODVM_AMI_ID`. An empty value stands for the default.
    #[schemars(schema_with = "provider_configs")]
    provider_configs: Object,
    /// cloud-api-adaptor's credentials, by provider, where `secrets.mode` is `create`; `id_rsa` and `id_rsa_pub` (libvirt, byom) are the
    /// key for ssh. They are stored with the release: better have a Secret of your own.
    #[schemars(schema_with = "provider_secrets")]
    provider_secrets: Object,
    /// Where credentials come from.
    secrets: Secrets,
    /// Where settings come from.
    settings: Settings,
    /// What TLS connections must be like: cloud-api-adaptor's and the webhook's.
    tls_profile: TlsProfile,
    /// cloud-api-adaptor's image.
    image: AdaptorImage,
    /// How many peer-pod VMs there may be on all nodes together: `spec.limit` of the PeerPodConfig.
    #[schemars(schema_with = "limit")]
    limit: String,
    /// cloud-api-adaptor's DaemonSet, which the operator makes for the PeerPodConfig.
    daemonset: Daemonset,
    /// The controller that deletes VMs whose Pods are gone.
    resource_ctrl: ResourceCtrl,
    /// The admission webhook, which the operator makes for the PeerPodConfig.
    webhook: Webhook,
    /// What only Alibaba Cloud needs.
    alibabacloud: Alibabacloud,
    /// How Pods become peer pods, beside what `webhook` says.
    admission: Admission,
    /// A PeerPodConfig, which brings cloud-api-adaptor, the admission and the nodes' capacity.
    peer_pod_config: PeerPodConfig,
    /// The operator.
    operator: Operator,
    /// The policy over those who write PeerPods.
    guard: Guard,
    /// The custom resource definitions.
    crds: Crds,
    /// What Prometheus scrapes.
    metrics: Metrics,
    /// Whether the Pods' ports are closed but for metrics and reviews.
    network_policy: Switch,
    /// Whether evictions leave one of the operators.
    pod_disruption_budget: Switch,
    /// What is waited for before the chart is uninstalled: deletions under way, and every PeerPodConfig.
    drain: Drain,
    /// Labels of every object.
    common_labels: Texts,
    /// Without effect: Kata Containers are installed by themselves.
    #[serde(rename = "kata-deploy")]
    kata_deploy: Object,
    /// Without effect here.
    global: Object,
}

/// Where credentials come from.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Secrets {
    /// `create` makes the Secrets from these values, `reference` takes those named below.
    mode: SecretsMode,
    /// The Secret with the credentials, where the mode is `reference`. Empty is `peer-pods-secret`.
    existing_secret_name: String,
    /// The Secret with the key for ssh, where the mode is `reference`. Empty is `ssh-key-secret`, which is what cloud-api-adaptor mounts
    /// in any case.
    existing_ssh_key_secret_name: String,
    /// The Secret with certificates for the connection to pod VMs, where the mode is `reference`. cloud-api-adaptor mounts
    /// `certs-for-tls`, so it has that name.
    #[schemars(schema_with = "tls_secret")]
    existing_tls_secret_name: String,
    /// Certificates for the connection to pod VMs, where the mode is `create`; `CACERT_FILE`, `CERT_FILE` and `CERT_KEY` name their files in
    /// `/etc/certificates`: `ca.crt`, `client.crt` and `client.key`.
    tls_certs: TlsCerts,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SecretsMode {
    Create,
    #[expect(dead_code, reason = "it is in the schema")]
    Reference,
}

/// Certificates in PEM.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsCerts {
    /// The authority's certificate.
    ca_cert: String,
    /// The client's certificate.
    client_cert: String,
    /// The client's private key.
    client_key: String,
}

/// Where settings come from.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    /// A ConfigMap that is there already, in the place of `providerConfigs`. Empty is `peer-pods-cm`.
    existing_config_map_name: String,
}

/// What TLS connections must be like.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsProfile {
    /// The oldest version: `VersionTLS12` or `VersionTLS13`. Empty is TLS 1.2.
    #[schemars(schema_with = "tls_version")]
    min_version: String,
    /// Ciphers of TLS 1.2 by Go's names, with commas between. Empty is all that are safe.
    cipher_suites: String,
}

/// cloud-api-adaptor's image.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AdaptorImage {
    /// Its name. Empty is the public one, `quay.io/confidential-containers/cloud-api-adaptor`.
    name: String,
    /// Its tag. Empty is `latest`.
    tag: String,
}

/// cloud-api-adaptor's DaemonSet.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Daemonset {
    /// How a new version takes the place of an old one: `maxUnavailable` and `maxSurge`. Empty replaces one node's Pod at a time.
    #[schemars(schema_with = "update_strategy")]
    update_strategy: Object,
    /// Further labels of its Pods, such as `azure.workload.identity/use: "true"`.
    pod_labels: Texts,
    /// Its ServiceAccount.
    service_account: ServiceAccount,
}

/// A ServiceAccount.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceAccount {
    /// Its annotations, such as a cloud's role for workload identity.
    annotations: Texts,
}

/// The controller that deletes VMs whose Pods are gone.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceCtrl {
    /// Whether it runs.
    enabled: bool,
    /// Further labels of the operator's Pods.
    pod_labels: Texts,
    /// The operator's ServiceAccount.
    service_account: ServiceAccount,
    /// Without effect: names are fixed.
    name_prefix: String,
    /// Without effect: the operator's image is `operator.image`.
    image: Object,
    /// Without effect: there is no proxy before the metrics.
    auth_proxy: Object,
}

/// The admission webhook.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Webhook {
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
    /// Without effect: `tlsProfile` counts.
    tls_min_version: String,
    /// Without effect: `tlsProfile` counts.
    tls_cipher_suites: String,
    /// Without effect: it makes its own certificate, and uses the Secret `webhook-server-cert` if somebody else makes it.
    cert_manager: Object,
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
}

/// What only Alibaba Cloud needs.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Alibabacloud {
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
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Admission {
    /// `Webhook`, `Policy` (Kubernetes 1.36 and later), `Auto` or `None`.
    mode: peerpod_operator::api::v1alpha1::AdmissionMode,
    /// How the size of a VM follows from the containers' resources: `Kubernetes` or `Sum`.
    sizing: peerpod_operator::api::v1alpha1::Sizing,
    /// Namespaces whose Pods are left as they are.
    excluded_namespaces: Vec<String>,
}

/// A PeerPodConfig.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PeerPodConfig {
    /// Whether there is one. It is made once, and not changed or deleted until the chart is uninstalled.
    create: bool,
    /// Its name.
    #[schemars(length(min = 1, max = 40))]
    name: String,
    /// Further fields of its `spec`, which overrule what other values say.
    spec: Object,
}

/// The operator.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Operator {
    /// Its image.
    image: OperatorImage,
    /// Secrets that the image is pulled with: `[{name: …}]`.
    image_pull_secrets: List,
    /// How many there are, of which one acts.
    #[schemars(range(min = 0, max = 10))]
    replicas: i32,
    /// The controllers to run: `peerpod`, `peerpodconfig`. Empty: those that the other values need.
    controllers: Vec<Controller>,
    /// The Lease of the operator that acts; `33f6c5d6.confidentialcontainers.org` is that of cloud-api-adaptor's own controller. Empty: its
    /// own.
    lease_name: String,
    /// What it asks of its node, and the most that it gets.
    resources: Object,
    /// Its ServiceAccount.
    service_account: ServiceAccount,
    /// Further arguments.
    extra_args: Vec<String>,
    /// Further environment variables.
    extra_env: List,
    /// Further volumes.
    extra_volumes: List,
    /// Where they are mounted.
    extra_volume_mounts: List,
    /// Further labels of its Pods.
    pod_labels: Texts,
    /// Further annotations of its Pods.
    pod_annotations: Texts,
    /// Annotations of its Deployment.
    annotations: Texts,
    /// Labels of nodes that it runs on.
    node_selector: Texts,
    /// Taints of nodes that it runs on all the same.
    tolerations: List,
    /// Which nodes it prefers.
    affinity: Object,
    /// How it is spread over nodes.
    topology_spread_constraints: List,
    /// Its priority class.
    priority_class_name: String,
}

/// The operator's image.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OperatorImage {
    /// Its name.
    #[schemars(length(min = 1))]
    repository: String,
    /// Its tag. Empty is the chart's appVersion.
    tag: String,
    /// Its digest, as in `sha256:…`, in the place of a tag.
    digest: String,
    /// When a node pulls it.
    pull_policy: PullPolicy,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
enum PullPolicy {
    #[expect(dead_code, reason = "it is in the schema")]
    Always,
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

/// The policy over those who write PeerPods.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Guard {
    /// What becomes of a write without the right to it: `Warn`, `Deny`, or `None`, so that nobody asks.
    action: GuardAction,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
enum GuardAction {
    Warn,
    #[expect(dead_code, reason = "it is in the schema")]
    Deny,
    #[expect(dead_code, reason = "it is in the schema")]
    None,
}

/// The custom resource definitions.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Crds {
    /// Whether the chart installs and upgrades them.
    install: bool,
    /// Whether they stay when the chart is uninstalled, and with them what is known of running VMs.
    keep: bool,
}

/// What Prometheus scrapes.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metrics {
    /// A `PodMonitor` of the Prometheus operator.
    pod_monitor: Monitoring,
    /// A `PrometheusRule` of the Prometheus operator: what to be woken for.
    alerts: Monitoring,
}

/// An object of the Prometheus operator.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Monitoring {
    /// Whether there is one.
    enabled: bool,
    /// Its further labels, by which Prometheus selects it.
    labels: Texts,
}

/// Something that is there or not.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Switch {
    /// Whether it is there.
    enabled: bool,
}

/// What is waited for before the chart is uninstalled.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Drain {
    /// Whether it is waited for. Where PeerPods of running Pods are left, uninstalling fails and changes nothing.
    enabled: bool,
    /// How long; helm's own `--timeout` must be longer.
    #[schemars(regex(pattern = "^([0-9]+(ms|[smh]))+$"))]
    timeout: String,
}

impl Values {
    /// The defaults: those of the installation.
    pub(super) fn new() -> Result<Self> {
        let options = Options::default();
        let (repository, _) = options.image.rsplit_once(':').context("the image has a tag")?;
        let pod = install::deployment(&options).spec.and_then(|spec| spec.template.spec);
        let constraints = pod.and_then(|pod| pod.topology_spread_constraints);
        let spread = constraints.context("the operator is spread over nodes")?;
        let object = |value: Value| value.as_object().cloned().unwrap_or_default();
        Ok(Self {
            provider: String::new(),
            provider_configs: Object::new(),
            provider_secrets: Object::new(),
            secrets: Secrets {
                mode: SecretsMode::Create,
                existing_secret_name: String::new(),
                existing_ssh_key_secret_name: String::new(),
                existing_tls_secret_name: String::new(),
                tls_certs: TlsCerts::default(),
            },
            settings: Settings::default(),
            tls_profile: TlsProfile::default(),
            image: AdaptorImage::default(),
            limit: "10".to_owned(),
            daemonset: Daemonset::default(),
            resource_ctrl: ResourceCtrl {
                enabled: true,
                pod_labels: Texts::new(),
                service_account: ServiceAccount::default(),
                name_prefix: String::new(),
                image: Object::new(),
                auth_proxy: Object::new(),
            },
            webhook: Webhook {
                enabled: true,
                replicas: 2,
                target: WebhookTarget {
                    target_runtime_class: peerpod_operator::api::v1alpha1::RUNTIME_CLASS.to_owned(),
                    pod_vm_extended_resource: peerpod_operator::api::v1alpha1::EXTENDED_RESOURCE.to_owned(),
                    failure_policy: "Fail".to_owned(),
                },
                name_prefix: String::new(),
                namespace_override: String::new(),
                image: Object::new(),
                resources: Object::new(),
                tls_min_version: String::new(),
                tls_cipher_suites: String::new(),
                cert_manager: Object::new(),
            },
            alibabacloud: Alibabacloud::default(),
            admission: Admission {
                mode: peerpod_operator::api::v1alpha1::AdmissionMode::default(),
                sizing: peerpod_operator::api::v1alpha1::Sizing::default(),
                excluded_namespaces: Vec::new(),
            },
            peer_pod_config: PeerPodConfig {
                create: false,
                name: super::super::kustomize::CONFIG.to_owned(),
                spec: Object::new(),
            },
            operator: Operator {
                image: OperatorImage {
                    repository: repository.to_owned(),
                    tag: String::new(),
                    digest: String::new(),
                    pull_policy: PullPolicy::IfNotPresent,
                },
                image_pull_secrets: List::new(),
                replicas: options.replicas,
                controllers: Vec::new(),
                lease_name: String::new(),
                resources: object(to_value(&options.resources)?),
                service_account: ServiceAccount::default(),
                extra_args: Vec::new(),
                extra_env: List::new(),
                extra_volumes: List::new(),
                extra_volume_mounts: List::new(),
                pod_labels: Texts::new(),
                pod_annotations: Texts::new(),
                annotations: Texts::new(),
                node_selector: Texts::new(),
                tolerations: List::new(),
                affinity: Object::new(),
                topology_spread_constraints: spread.iter().map(to_value).collect::<Result<_, _>>()?,
                priority_class_name: String::new(),
            },
            guard: Guard { action: GuardAction::Warn },
            crds: Crds { install: true, keep: true },
            metrics: Metrics::default(),
            network_policy: Switch::default(),
            pod_disruption_budget: Switch::default(),
            drain: Drain { enabled: true, timeout: "4m".to_owned() },
            common_labels: Texts::new(),
            kata_deploy: Object::new(),
            global: Object::new(),
        })
    }
}

/// What cloud-api-adaptor's own chart calls a provider that has another name.
pub(super) const POWERVS_ALIAS: &str = "ibmcloudpowervs";

/// Every name that a provider can have in values.
pub(super) fn provider_names() -> impl Iterator<Item = (CloudProvider, &'static str)> {
    let own = CloudProvider::ALL.into_iter().map(|provider| (provider, provider.as_str()));
    own.chain([(CloudProvider::IbmcloudPowervs, POWERVS_ALIAS)])
}

fn provider(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = [""].into_iter().chain(provider_names().map(|(_, name)| name)).collect();
    json_schema!({ "type": "string", "enum": names })
}

/// A setting may be written without quotes.
fn setting() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

fn by_provider(further: &[&str], holds: impl Fn(Kind) -> bool) -> Schema {
    let providers: Object = provider_names()
        .map(|(provider, name)| {
            let keys = provider.keys().iter().chain(Common::KEYS).filter(|key| holds(key.kind));
            let described = keys.map(|key| {
                let mut schema = setting();
                schema["description"] = key.doc.split_whitespace().collect::<Vec<_>>().join(" ").into();
                (key.name.to_owned(), schema)
            });
            let further = further.iter().map(|name| ((*name).to_owned(), setting()));
            let schema = json!({
                "type": ["object", "null"],
                "properties": described.chain(further).collect::<Object>(),
                "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
                "additionalProperties": setting(),
            });
            (name.to_owned(), schema)
        })
        .collect();
    json_schema!({ "type": "object", "properties": providers, "additionalProperties": false })
}

fn provider_configs(_: &mut SchemaGenerator) -> Schema {
    by_provider(&[], |kind| kind != Kind::Secret)
}

fn provider_secrets(_: &mut SchemaGenerator) -> Schema {
    by_provider(&["id_rsa", "id_rsa_pub"], |kind| kind == Kind::Secret)
}

fn tls_secret(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "certs-for-tls"] })
}

fn tls_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["", "VersionTLS12", "VersionTLS13"] })
}

fn limit(_: &mut SchemaGenerator) -> Schema {
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
