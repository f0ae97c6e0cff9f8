//! What all Pods that run this program have in common, beside [`operator_kit::pod`]: the operator's, the webhook's and those of Jobs.

use k8s_openapi::{
    api::{
        apps::v1::{DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{EnvVar, ServicePort, TopologySpreadConstraint},
        policy::v1::PodDisruptionBudgetSpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use operator_kit::pod::field;

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

/// The variable with the program's namespace.
pub(crate) fn namespace_variable() -> EnvVar {
    field("PEERPOD_OPERATOR_NAMESPACE", "metadata.namespace")
}

/// The variable that says the Pod's name.
pub(crate) fn name_variable() -> EnvVar {
    field("POD_NAME", "metadata.name")
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
