//! The operator's Deployment.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentSpec},
    core::v1::{
        ConfigMapVolumeSource, Container, EnvVar, PodDNSConfig, PodDNSConfigOption, PodSecurityContext,
        PodSpec, PodTemplateSpec, SecretVolumeSource, Volume, VolumeMount,
    },
};
use kube::api::ObjectMeta;
use operator_kit::pod::{self, probe};

use super::{Component, NAME, Options};
use crate::{
    cli::{CREDENTIALS_DIR, SETTINGS_DIR},
    own_pods,
    peerpodconfig::resources::program::OPERATOR_CONTAINER,
    provider::{
        CLOUDS,
        cloud::{AdaptorSecret, VolumeSource},
    },
};

/// The operator's home folder. It is that of cloud-api-adaptor, so that the default of a `LIBVIRT_URI` (`~/.ssh`) and a path in
/// it (`keyfile=/root/.ssh/id_rsa`) mean the same for both.
const HOME: &str = "/root";

/// The user that a `LIBVIRT_URI` without one means, for the same reason.
const DEFAULT_USER: &str = "root";

/// The label of the nodes that the image is for. Every kubelet sets it, and the webhook's Pods take it over.
pub const NODE_LABEL: (&str, &str) = ("kubernetes.io/os", "linux");

/// Selects these nodes.
pub(super) fn node_selector() -> BTreeMap<String, String> {
    let (name, value) = NODE_LABEL;
    [(name.to_owned(), value.to_owned())].into()
}

/// The operator's replicas: one acts, and the others are ready to take over.
pub fn deployment(options: &Options) -> Deployment {
    Deployment {
        metadata: Component::Operator.namespaced(NAME, options),
        spec: Some(DeploymentSpec {
            replicas: Some(options.replicas),
            selector: Component::Operator.selector(),
            strategy: Some(own_pods::strategy()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(Component::Operator.labels()),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(options)),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn pod(options: &Options) -> PodSpec {
    PodSpec {
        service_account_name: Some(NAME.to_owned()),
        node_selector: Some(node_selector()),
        topology_spread_constraints: Some(vec![own_pods::spread(Component::Operator.selector())]),
        security_context: Some(pod_security()),
        dns_config: Some(dns()),
        containers: vec![container(options)],
        volumes: Some(
            [
                Volume {
                    name: "settings".into(),
                    config_map: Some(ConfigMapVolumeSource {
                        name: options.config_map.clone(),
                        ..ConfigMapVolumeSource::default()
                    }),
                    ..Volume::default()
                },
                secret("credentials", &options.secret, None),
            ]
            .into_iter()
            .chain(of_clouds(options).map(|(name, secret_name, _)| secret(name, secret_name, Some(true))))
            .collect(),
        ),
        ..PodSpec::default()
    }
}

/// Name, Secret and path of the further volumes that deletions on any cloud need: those of cloud-api-adaptor, at the same paths.
fn of_clouds(options: &Options) -> impl Iterator<Item = (&'static str, &str, &'static str)> {
    let volumes = CLOUDS.into_iter().flat_map(|cloud| cloud.volumes);
    let by_name: BTreeMap<_, _> = volumes.map(|volume| (volume.name, volume)).collect();
    by_name.into_values().filter_map(|volume| {
        let secret = match volume.source {
            VolumeSource::Secret(AdaptorSecret::SshKey) => &options.ssh_key_secret,
            VolumeSource::Secret(AdaptorSecret::HostKeys) => &options.byom_host_keys_secret,
            VolumeSource::Secret(AdaptorSecret::Named(name)) => name,
            VolumeSource::HostPath | VolumeSource::Token { .. } => return None,
        };
        Some((volume.name, secret, volume.path))
    })
}

/// Names with two dots or more, such as those of clouds, are asked for as they are first. By Kubernetes' default they come after all names
/// that the search list makes of them, and a nameserver that does not answer costs 5 s for each.
fn dns() -> PodDNSConfig {
    let ndots = PodDNSConfigOption { name: Some("ndots".into()), value: Some("2".into()) };
    PodDNSConfig { options: Some(vec![ndots]), ..PodDNSConfig::default() }
}

/// The operator reads the files of Secrets as a member of their group.
fn pod_security() -> PodSecurityContext {
    PodSecurityContext { fs_group: Some(pod::USER), ..pod::security() }
}

/// A Secret's files, which its group may read: `fsGroup` makes that the operator's.
fn secret(volume: &str, name: &str, optional: Option<bool>) -> Volume {
    Volume {
        name: volume.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.into()),
            default_mode: Some(0o440),
            optional,
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The operator itself.
pub(super) fn container(options: &Options) -> Container {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let value = |name: &str, value: &str| EnvVar {
        name: name.into(),
        // The API server drops an empty one, so an apply would take that for another program's change.
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        ..EnvVar::default()
    };
    Container {
        name: OPERATOR_CONTAINER.into(),
        image: Some(options.image.clone()),
        image_pull_policy: Some("IfNotPresent".into()),
        args: Some(["run", "--leader-elect=true", "--log-format=json"].map(str::to_owned).into()),
        env: Some(vec![
            own_pods::namespace_variable(),
            own_pods::name_variable(),
            value("HOME", HOME),
            value("USER", DEFAULT_USER),
            value("PEERPOD_OPERATOR_SETTINGS_CONFIG_MAP", &options.config_map),
            value("PEERPOD_OPERATOR_CREDENTIALS_SECRET", &options.secret),
            // The Secrets that cloud-api-adaptor mounts, which the operator deploys.
            value("PEERPOD_OPERATOR_SSH_KEY_SECRET", &options.ssh_key_secret),
            value("PEERPOD_OPERATOR_ADAPTOR_TLS_SECRET", &options.tls_secret),
            // Empty is cloud-api-adaptor's own.
            value("RELATED_IMAGE_CAA", &options.adaptor_image),
            value("PEERPOD_OPERATOR_BYOM_HOST_KEYS_SECRET", &options.byom_host_keys_secret),
        ]),
        ports: Some(pod::ports()),
        liveness_probe: Some(probe("/healthz", 10)),
        readiness_probe: Some(probe("/readyz", 5)),
        resources: Some(options.resources.clone()),
        security_context: Some(pod::container_security()),
        volume_mounts: Some(
            [mount("settings", SETTINGS_DIR), mount("credentials", CREDENTIALS_DIR)]
                .into_iter()
                .chain(of_clouds(options).map(|(name, _, path)| mount(name, path)))
                .collect(),
        ),
        ..Container::default()
    }
}
