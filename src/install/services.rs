//! The Service for metrics, the disruption budget, and the network policies of the operator's Pods.

use k8s_openapi::{
    api::{
        core::v1::{Service, ServiceSpec},
        networking::v1::{NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use operator_kit::pod::METRICS_PORT;

use super::{Component, NAME, Options};
use crate::{own_pods, peerpodconfig::resources::webhook};

/// The name of the Service with the operator's metrics.
pub const METRICS_SERVICE: &str = "peerpod-operator-metrics";

/// Where the operator's metrics are scraped. Each Pod has its own, so it has no address of its own.
pub fn metrics_service(options: &Options) -> Service {
    Service {
        metadata: Component::Operator.namespaced(METRICS_SERVICE, options),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(Component::Operator.selector_labels()),
            ports: Some(vec![own_pods::service_port("metrics", METRICS_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// One of the operators at a time may be evicted.
pub fn disruption_budget(options: &Options) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: Component::Operator.namespaced(NAME, options),
        spec: Some(own_pods::disruption_budget(Component::Operator.selector())),
        status: None,
    }
}

/// Closes the Pods' ports except for metrics and, on the webhook, reviews. (A node's kubelet reaches its Pods in any case.)
/// Egress stays open, because the addresses of clouds are unknown.
pub fn network_policies(options: &Options) -> [NetworkPolicy; 2] {
    let policy = |component: Component, name: &str, ports: &[i32]| {
        let port = |port: &i32| NetworkPolicyPort {
            port: Some(IntOrString::Int(*port)),
            protocol: Some("TCP".to_owned()),
            ..NetworkPolicyPort::default()
        };
        let open = NetworkPolicyIngressRule { ports: Some(ports.iter().map(port).collect()), from: None };
        NetworkPolicy {
            metadata: component.namespaced(name, options),
            spec: Some(NetworkPolicySpec {
                pod_selector: component.selector().into(),
                ingress: Some(vec![open]),
                policy_types: Some(vec!["Ingress".to_owned()]),
                ..NetworkPolicySpec::default()
            }),
        }
    };
    [
        policy(Component::Operator, NAME, &[METRICS_PORT]),
        policy(Component::Webhook, webhook::SERVICE_ACCOUNT, &[webhook::PORT, METRICS_PORT]),
    ]
}
