//! The operator's Deployment.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource,
            HTTPGetAction, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
            ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext,
            TopologySpreadConstraint, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::api::ObjectMeta;

use super::{NAME, metadata};
use crate::cli::{CREDENTIALS_DIR, SETTINGS_DIR};

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
const METRICS_PORT: i32 = 8080;
/// Any user but root; the image has one of this number.
const USER: i64 = 65_532;

/// Two replicas, of which one acts and the other is ready to take over.
pub fn deployment() -> Deployment {
    Deployment {
        metadata: metadata(NAME),
        spec: Some(DeploymentSpec {
            replicas: Some(2),
            selector: selector(),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                ..DeploymentStrategy::default()
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: metadata(NAME).labels, ..ObjectMeta::default() }),
                spec: Some(pod()),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn selector() -> LabelSelector {
    let labels = [("app.kubernetes.io/name", NAME), ("app.kubernetes.io/component", "operator")];
    LabelSelector {
        match_labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..LabelSelector::default()
    }
}

fn pod() -> PodSpec {
    PodSpec {
        service_account_name: Some(NAME.to_owned()),
        // A node that fails should not take both with it; one node alone may have both.
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            topology_key: "kubernetes.io/hostname".into(),
            max_skew: 1,
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(selector()),
            ..TopologySpreadConstraint::default()
        }]),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container()],
        volumes: Some(vec![
            Volume {
                name: "settings".into(),
                config_map: Some(ConfigMapVolumeSource {
                    name: CONFIG_MAP.into(),
                    ..ConfigMapVolumeSource::default()
                }),
                ..Volume::default()
            },
            secret("credentials", SECRET, None),
            // Only libvirt by ssh needs it.
            secret("ssh-key", SSH_KEY_SECRET, Some(true)),
        ]),
        ..PodSpec::default()
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

fn container() -> Container {
    let quantities = |cpu: &str, memory: &str| {
        Some(
            [("cpu", cpu), ("memory", memory)]
                .map(|(name, value)| (name.into(), Quantity(value.into())))
                .into(),
        )
    };
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
                field_path: path.into(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    let value = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: Some(value.into()),
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
        image: Some(DEFAULT_IMAGE.into()),
        image_pull_policy: Some("IfNotPresent".into()),
        args: Some(vec!["run".into(), "--leader-elect=true".into(), "--log-format=json".into()]),
        env: Some(vec![
            field("PEERPOD_OPERATOR_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            value("HOME", HOME),
            // What it deploys in its turn: the webhook is this image, too. Empty is cloud-api-adaptor's own.
            value("PEERPOD_OPERATOR_IMAGE", DEFAULT_IMAGE),
            value("RELATED_IMAGE_CAA", ""),
        ]),
        ports: Some(vec![port("health", HEALTH_PORT), port("metrics", METRICS_PORT)]),
        liveness_probe: Some(probe("/healthz", 10)),
        readiness_probe: Some(probe("/readyz", 5)),
        // No limit on cpu: throttling a process that idles saves nothing and delays deletions.
        resources: Some(ResourceRequirements {
            requests: quantities("10m", "32Mi"),
            limits: Some([("memory".to_owned(), Quantity("128Mi".into()))].into()),
            ..ResourceRequirements::default()
        }),
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
