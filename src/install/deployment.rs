//! The operator's Deployment.

use clap::ValueEnum as _;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource,
            HTTPGetAction, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
            SeccompProfile, SecretVolumeSource, SecurityContext, TopologySpreadConstraint, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::api::ObjectMeta;

use super::{Component, NAME, Options};
use crate::cli::{CREDENTIALS_DIR, ControllerName, SETTINGS_DIR};

/// The image that is installed unless told otherwise.
pub const DEFAULT_IMAGE: &str = concat!("peerpod-operator:", env!("CARGO_PKG_VERSION"));

/// The `ConfigMap` with the provider's settings, cloud-api-adaptor's own.
pub const CONFIG_MAP: &str = "peer-pods-cm";

/// The `Secret` with the provider's credentials, cloud-api-adaptor's own.
pub const SECRET: &str = "peer-pods-secret";

/// The `Secret` with the key (`id_rsa`, `id_ecdsa` or `id_ed25519`) and, if wanted, the `known_hosts` for libvirt by ssh:
/// cloud-api-adaptor's own.
pub const SSH_KEY_SECRET: &str = "ssh-key-secret";

/// The operator's home folder. That of cloud-api-adaptor, so that what a `LIBVIRT_URI` leaves to it (`~/.ssh`) or says of it
/// (`keyfile=/root/.ssh/id_rsa`) is the same for both.
const HOME: &str = "/root";

const HEALTH_PORT: i32 = 8081;
pub(super) const METRICS_PORT: i32 = 8080;
/// Any user but root; the image has one of this number.
const USER: i64 = 65_532;

/// The operators, of which one acts and the others are ready to take over.
pub fn deployment(options: &Options) -> Deployment {
    Deployment {
        metadata: Component::Operator.namespaced(NAME, options),
        spec: Some(DeploymentSpec {
            replicas: Some(options.replicas),
            selector: Component::Operator.selector(),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
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
        // A node that fails should not take both with it; one node alone may have both.
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            topology_key: "kubernetes.io/hostname".into(),
            max_skew: 1,
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(Component::Operator.selector()),
            ..TopologySpreadConstraint::default()
        }]),
        security_context: Some(pod_security()),
        containers: vec![container(options)],
        volumes: Some(vec![
            Volume {
                name: "settings".into(),
                config_map: Some(ConfigMapVolumeSource {
                    name: options.config_map.clone(),
                    ..ConfigMapVolumeSource::default()
                }),
                ..Volume::default()
            },
            secret("credentials", &options.secret, None),
            // Only libvirt by ssh needs it.
            secret("ssh-key", &options.ssh_key_secret, Some(true)),
        ]),
        ..PodSpec::default()
    }
}

/// What the profile `restricted` asks of a Pod.
pub(super) fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
        ..PodSecurityContext::default()
    }
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

/// The operator itself. Its first variable says the namespace.
pub(super) fn container(options: &Options) -> Container {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                // Written out: the API server would, and an apply would take that for somebody else's change.
                api_version: Some("v1".into()),
                field_path: path.into(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let value = |name: &str, value: &str| EnvVar {
        name: name.into(),
        // The API server drops an empty one, and an apply would take that for somebody else's change.
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        ..EnvVar::default()
    };
    let port = |name: &str, port| ContainerPort {
        name: Some(name.into()),
        container_port: port,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    Container {
        name: "operator".into(),
        image: Some(options.image.clone()),
        image_pull_policy: Some("IfNotPresent".into()),
        args: Some(arguments(options)),
        env: Some(vec![
            field("PEERPOD_OPERATOR_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            value("HOME", HOME),
            // What it deploys in its turn: the webhook is this image, too. Empty is cloud-api-adaptor's own.
            value("PEERPOD_OPERATOR_IMAGE", &options.image),
            value("RELATED_IMAGE_CAA", &options.adaptor_image),
        ]),
        ports: Some(vec![port("health", HEALTH_PORT), port("metrics", METRICS_PORT)]),
        liveness_probe: Some(probe("/healthz", 10)),
        readiness_probe: Some(probe("/readyz", 5)),
        resources: Some(options.resources.clone()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount("settings", SETTINGS_DIR),
            mount("credentials", CREDENTIALS_DIR),
            mount("ssh-key", &format!("{HOME}/.ssh")),
        ]),
        ..Container::default()
    }
}

fn arguments(options: &Options) -> Vec<String> {
    let mut arguments =
        vec!["run".to_owned(), "--leader-elect=true".to_owned(), "--log-format=json".to_owned()];
    arguments.extend(options.lease_name.iter().map(|name| format!("--lease-name={name}")));
    if !options.controllers.is_empty() {
        let names = options.controllers.iter().filter_map(ControllerName::to_possible_value);
        let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
        arguments.push(format!("--controllers={}", names.join(",")));
    }
    arguments
}

fn probe(path: &str, period_seconds: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::String("health".into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        ..Probe::default()
    }
}
