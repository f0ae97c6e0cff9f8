//! What all Pods that run this program have in common: the operator's, the webhook's and those of Jobs.

use k8s_openapi::{
    api::{
        apps::v1::{DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Capabilities, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector,
            PodSecurityContext, Probe, SeccompProfile, SecurityContext, ServicePort,
            TopologySpreadConstraint,
        },
        policy::v1::PodDisruptionBudgetSpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

/// Where `/healthz` and `/readyz` are served.
pub(crate) const HEALTH_PORT: i32 = 8081;

/// Where metrics are served.
pub(crate) const METRICS_PORT: i32 = 8080;

/// A user other than root; the image has one with this number.
pub(crate) const USER: i64 = 65_532;

/// A new Pod is ready before an old one is removed.
pub(crate) fn strategy() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
    }
}

/// A node that fails should not take all Pods with it. If there is only one node, it may have all.
pub(crate) fn spread(selector: LabelSelector) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        topology_key: "kubernetes.io/hostname".to_owned(),
        max_skew: 1,
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(selector),
        ..TopologySpreadConstraint::default()
    }
}

/// One Pod at a time may be evicted. A Pod that is not ready may always be evicted.
pub(crate) fn disruption_budget(selector: LabelSelector) -> PodDisruptionBudgetSpec {
    PodDisruptionBudgetSpec {
        max_unavailable: Some(IntOrString::Int(1)),
        selector: Some(selector),
        unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
        ..PodDisruptionBudgetSpec::default()
    }
}

/// What the profile `restricted` requires of a Pod.
pub(crate) fn pod_security() -> PodSecurityContext {
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
pub(crate) fn container_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        ..SecurityContext::default()
    }
}

/// The variable with the program's namespace.
pub(crate) fn namespace_variable() -> EnvVar {
    field("PEERPOD_OPERATOR_NAMESPACE", "metadata.namespace")
}

/// The variable that says the Pod's name.
pub(crate) fn name_variable() -> EnvVar {
    field("POD_NAME", "metadata.name")
}

/// A variable with the value of the Pod's own field at this path.
pub(crate) fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
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

pub(crate) fn port(name: &str, port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

/// A Service's port, which leads to the Pods' port of this name.
pub(crate) fn service_port(name: &str, port: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port,
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    }
}

/// Asks the port `health`.
pub(crate) fn probe(path: &str, period_seconds: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("health".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        ..Probe::default()
    }
}
