//! Parts of a Pod that runs an operator *(no client)*: its rights, its probes, and what it learns of itself.

use k8s_openapi::{
    api::core::v1::{
        Capabilities, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector,
        PodSecurityContext, Probe, SeccompProfile, SecurityContext,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

/// Where `/healthz` and `/readyz` are served.
pub const HEALTH_PORT: i32 = 8081;

/// Where metrics are served.
pub const METRICS_PORT: i32 = 8080;

/// A user other than root: the one that minimal images call `nonroot`.
pub const USER: i64 = 65_532;

/// The name of the port that [`probe`] asks.
const HEALTH: &str = "health";

/// What the profile `restricted` of Pod Security requires of a Pod.
pub fn security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

/// What the profile `restricted` requires of a container, and a read-only root filesystem.
pub fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// A variable with the value of the Pod's own field at this path, such as `metadata.namespace`.
pub fn field(variable: &str, path: &str) -> EnvVar {
    EnvVar {
        name: variable.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                // Explicit, because the API server sets it, and an apply would take that for another program's change.
                api_version: Some("v1".to_owned()),
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

/// The ports of [`HEALTH_PORT`] and [`METRICS_PORT`], named `health` and `metrics`.
pub fn ports() -> Vec<ContainerPort> {
    vec![port(HEALTH, HEALTH_PORT), port("metrics", METRICS_PORT)]
}

/// A port of a container.
pub fn port(name: &str, port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// Asks the port `health` for this path.
pub fn probe(path: &str, period_seconds: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(HEALTH.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        ..Probe::default()
    }
}
