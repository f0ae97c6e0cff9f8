//! cloud-api-adaptor on every selected node, and the annotations of its ServiceAccount.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::{
            Affinity, Capabilities, ConfigMapEnvSource, Container, EnvFromSource, EnvVar, HTTPGetAction,
            PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec, Probe, SecretEnvSource,
            SecurityContext, ServiceAccount, Toleration, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
        util::intstr::IntOrString,
    },
};
use kube::api::ObjectMeta;
use operator_kit::{pod::field, text::non_empty};

use super::{
    super::qualified::is_annotation,
    CONFIG_LABEL, Inputs, InstanceType, Names,
    cloud::{self, AdaptorSecrets, MountedVolume},
    instance_type,
    names::Part,
    program::named_once,
    selection::{affinity, node_selector},
    settings::{BUILT_FROM_ANNOTATION, OVERRULED},
};
use crate::api::v1alpha1::{ImagePullPolicy, PeerPodConfig};

/// The default image of cloud-api-adaptor.
pub const DEFAULT_ADAPTOR_IMAGE: &str = "quay.io/confidential-containers/cloud-api-adaptor";

/// The identity that cloud-api-adaptor runs under. It is part of the installation: the operator gives no rights.
pub const SERVICE_ACCOUNT: &str = "cloud-api-adaptor";

/// On cloud-api-adaptor's Pods: the hash of the settings that their DaemonSet is built from.
pub const SETTINGS_HASH_ANNOTATION: &str = "peerpods.confidentialcontainers.org/settings-hash";

/// Keeps the cluster autoscaler from evicting cloud-api-adaptor together with the peer pods of a node that it removes.
const STAYS_ON_NODE: &str = "cluster-autoscaler.kubernetes.io/enable-ds-eviction";

/// cloud-api-adaptor on every selected node.
///
/// Every change of the Pod template replaces running Pods, and a cloud-api-adaptor that restarts loses track of its VMs. So
/// `inputs.settings` must be those that are [in force](super::AdaptorSettings::in_force); the object records them.
pub fn daemon_set(inputs: &Inputs) -> DaemonSet {
    let (config, adaptor) = (inputs.owner.config, &inputs.owner.config.spec.adaptor);
    let mut labels = adaptor.pod_labels.clone();
    labels.extend(Part::Adaptor.labels(config));
    let mut annotations = adaptor.pod_annotations.clone();
    annotations.entry(STAYS_ON_NODE.to_owned()).or_insert_with(|| "false".to_owned());
    annotations.insert(SETTINGS_HASH_ANNOTATION.to_owned(), inputs.settings.hash.clone());
    let record = [(BUILT_FROM_ANNOTATION.to_owned(), inputs.settings.record(&config.spec))];
    DaemonSet {
        metadata: ObjectMeta {
            annotations: Some(record.into()),
            ..Part::Adaptor.metadata(&inputs.owner, Names::of(config).adaptor)
        },
        spec: DaemonSetSpec {
            selector: Part::Adaptor.selector(config),
            update_strategy: Some(update_strategy(adaptor.update_strategy.as_ref())),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(inputs)),
            },
            ..DaemonSetSpec::default()
        }
        .into(),
        status: None,
    }
}

/// The annotations of the ServiceAccount that all configurations share, each with the configuration whose value counts: where two set
/// the same key, the first one wins. A configuration that is being deleted sets none. [Unusable](unusable_annotations) ones are left
/// out, because the API server would reject all with them.
pub fn account_annotations<'a>(
    configs: impl IntoIterator<Item = &'a PeerPodConfig>,
) -> BTreeMap<&'a str, (&'a PeerPodConfig, &'a str)> {
    let mut annotations = BTreeMap::new();
    for config in configs.into_iter().filter(|config| config.metadata.deletion_timestamp.is_none()) {
        for (key, value) in &config.spec.adaptor.service_account_annotations {
            if is_annotation(key) {
                annotations.entry(&**key).or_insert((config, &**value));
            }
        }
    }
    annotations
}

/// cloud-api-adaptor's ServiceAccount, which the installation creates, with the [annotations](account_annotations) of these
/// configurations.
pub fn service_account<'a>(
    configs: impl IntoIterator<Item = &'a PeerPodConfig>,
    namespace: &str,
) -> ServiceAccount {
    let annotations = account_annotations(configs).into_iter();
    let annotations: BTreeMap<_, _> =
        annotations.map(|(key, (_, value))| (key.to_owned(), value.to_owned())).collect();
    ServiceAccount {
        metadata: ObjectMeta {
            name: Some(SERVICE_ACCOUNT.to_owned()),
            namespace: Some(namespace.to_owned()),
            annotations: Some(annotations).filter(|it| !it.is_empty()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    }
}

/// The keys among a configuration's annotations of the ServiceAccount that no annotation can have.
pub fn unusable_annotations(config: &PeerPodConfig) -> Vec<&str> {
    let keys = config.spec.adaptor.service_account_annotations.keys().map(String::as_str);
    keys.filter(|key| !is_annotation(key)).collect()
}

/// The strategy with both of its numbers. The API server validates them together, so it could refuse one beside a number that
/// another program set.
fn update_strategy(wanted: Option<&DaemonSetUpdateStrategy>) -> DaemonSetUpdateStrategy {
    // The API server stores an empty type as the default, which would count as a difference.
    let type_ = non_empty(wanted.and_then(|it| it.type_.clone()));
    let type_ = type_.unwrap_or_else(|| "RollingUpdate".to_owned());
    let numbers = wanted.and_then(|it| it.rolling_update.clone()).unwrap_or_default();
    let rolling_update = (type_ == "RollingUpdate").then(|| {
        let none = numbers.max_unavailable.as_ref().is_some_and(is_zero);
        let surge = numbers.max_surge.unwrap_or(IntOrString::Int(none.into()));
        let default = i32::from(is_zero(&surge));
        let unavailable = numbers.max_unavailable.unwrap_or(IntOrString::Int(default));
        RollingUpdateDaemonSet { max_surge: Some(surge), max_unavailable: Some(unavailable) }
    });
    DaemonSetUpdateStrategy { type_: Some(type_), rolling_update }
}

/// Whether the new Pod of a node starts before the old one ends.
pub fn surges(wanted: Option<&DaemonSetUpdateStrategy>) -> bool {
    let numbers = update_strategy(wanted).rolling_update;
    numbers.and_then(|it| it.max_surge).is_some_and(|surge| !is_zero(&surge))
}

fn is_zero(number: &IntOrString) -> bool {
    match number {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(percentage) => percentage == "0%",
    }
}

fn pod(inputs: &Inputs) -> PodSpec {
    let spec = &inputs.owner.config.spec;
    let adaptor = &spec.adaptor;
    let (volumes, mounts): (Vec<_>, Vec<_>) = common_volumes(inputs.secrets)
        .into_iter()
        .chain(cloud::volumes(inputs.settings.cloud, inputs.secrets))
        .unzip();
    PodSpec {
        service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
        // It creates network interfaces of the node, for the tunnels to its VMs.
        host_network: Some(true),
        dns_policy: Some("ClusterFirstWithHostNet".to_owned()),
        node_selector: node_selector(spec),
        affinity: Some(Affinity {
            pod_anti_affinity: Some(apart_from_others(inputs.owner.config)),
            ..affinity(spec).unwrap_or_default()
        }),
        tolerations: Some(adaptor.tolerations.iter().map(stored).collect())
            .filter(|it: &Vec<_>| !it.is_empty()),
        priority_class_name: adaptor.priority_class_name.clone(),
        image_pull_secrets: Some(named_once(&adaptor.image_pull_secrets)).filter(|it| !it.is_empty()),
        containers: vec![container(inputs, mounts)],
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// Two cloud-api-adaptors on one node would share its socket and port. A change of its labels can select a node twice at any time, so
/// the scheduler waits with the second Pod until the first has ended. If the second has a higher priority, it preempts the first.
fn apart_from_others(config: &PeerPodConfig) -> PodAntiAffinity {
    let mut labels = Part::Adaptor.selector_labels(config);
    let own = labels.remove(CONFIG_LABEL);
    let not_own = LabelSelectorRequirement {
        key: CONFIG_LABEL.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(own.into_iter().collect()),
    };
    let selector = LabelSelector { match_labels: Some(labels), match_expressions: Some(vec![not_own]) };
    PodAntiAffinity {
        required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
            label_selector: Some(selector),
            topology_key: "kubernetes.io/hostname".to_owned(),
            ..PodAffinityTerm::default()
        }]),
        ..PodAntiAffinity::default()
    }
}

/// A toleration as the API server stores it, without empty fields, which would count as a difference.
fn stored(toleration: &Toleration) -> Toleration {
    Toleration {
        key: non_empty(toleration.key.clone()),
        operator: non_empty(toleration.operator.clone()),
        value: non_empty(toleration.value.clone()),
        effect: non_empty(toleration.effect.clone()),
        toleration_seconds: toleration.toleration_seconds,
    }
}

/// What it needs on every cloud.
fn common_volumes(secrets: AdaptorSecrets) -> Vec<MountedVolume> {
    let with = |(volume, mount): MountedVolume, change: fn(&mut VolumeMount)| {
        let mut mount = mount;
        change(&mut mount);
        (volume, mount)
    };
    vec![
        cloud::host_path("pods-dir", "/run/peerpod", None),
        // It must see network namespaces that are created after its start.
        with(cloud::host_path("netns", "/run/netns", None), |mount| {
            mount.mount_propagation = Some("HostToContainer".to_owned());
        }),
        cloud::host_path("xtables-lock", "/run/xtables.lock", Some("FileOrCreate")),
        with(cloud::host_path("lib-modules", "/lib/modules", None), |mount| mount.read_only = Some(true)),
        cloud::host_path(
            "kata-direct-volumes",
            "/run/kata-containers/shared/direct-volumes",
            Some("DirectoryOrCreate"),
        ),
        cloud::secret("auth-json", "auth-json-secret", "/root/containers"),
        cloud::secret("certs", secrets.tls, "/etc/certificates"),
    ]
}

/// The name of cloud-api-adaptor's container.
pub const ADAPTOR_CONTAINER: &str = "cloud-api-adaptor";

fn container(inputs: &Inputs, mounts: Vec<VolumeMount>) -> Container {
    let adaptor = &inputs.owner.config.spec.adaptor;
    let image = adaptor.image.as_deref().unwrap_or(inputs.adaptor_image);
    let policy = adaptor.image_pull_policy.map(|policy| match policy {
        ImagePullPolicy::Always => "Always",
        ImagePullPolicy::IfNotPresent => "IfNotPresent",
        ImagePullPolicy::Never => "Never",
    });
    Container {
        name: ADAPTOR_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: policy.map(str::to_owned),
        command: Some(vec!["/usr/local/bin/entrypoint.sh".to_owned()]),
        env: Some(env(inputs)),
        env_from: Some(env_from(inputs)),
        resources: adaptor.resources.clone().map(Into::into),
        security_context: Some(SecurityContext {
            // Not `false`: an upgrade of the operator would change the Pod template.
            privileged: adaptor.privileged.then_some(true),
            capabilities: Some(Capabilities {
                add: Some(vec!["NET_ADMIN".to_owned(), "SYS_ADMIN".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        // It answers when the peer pods of its node have become ready since it started, and some never do. A startup probe would
        // then end it, and cut off all peer pods of the node that started meanwhile.
        readiness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                host: Some("127.0.0.1".to_owned()),
                path: Some("/startup".to_owned()),
                port: IntOrString::Int(inputs.settings.probe_port.into()),
                ..HTTPGetAction::default()
            }),
            period_seconds: Some(10),
            ..Probe::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// The environment variables that take precedence over the settings.
fn env(inputs: &Inputs) -> Vec<EnvVar> {
    let spec = &inputs.owner.config.spec;
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    };
    let [limit_per_node, runtime_class] = OVERRULED;
    let mut env = vec![
        field("NODE_NAME", "spec.nodeName"),
        field("POD_UID", "metadata.uid"),
        // The operator advertises the capacity of nodes; two writers would fight.
        value(limit_per_node, "-1"),
        value(runtime_class, &spec.admission.runtime_class_name),
    ];
    if let (InstanceType::Reaches(key), Some(instance_type)) =
        (instance_type(spec, inputs.settings), &spec.instance_type)
    {
        env.push(value(key, instance_type));
    }
    env
}

/// The `ConfigMap` comes last, and the last one wins.
fn env_from(inputs: &Inputs) -> Vec<EnvFromSource> {
    let spec = &inputs.owner.config.spec;
    vec![
        EnvFromSource {
            secret_ref: Some(SecretEnvSource {
                name: spec.cloud_secret_name.clone(),
                ..SecretEnvSource::default()
            }),
            ..EnvFromSource::default()
        },
        EnvFromSource {
            config_map_ref: Some(ConfigMapEnvSource {
                name: spec.config_map_name.clone(),
                ..ConfigMapEnvSource::default()
            }),
            ..EnvFromSource::default()
        },
    ]
}

#[cfg(test)]
mod tests;
