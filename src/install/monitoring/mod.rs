//! What the Prometheus operator scrapes and what it wakes people for, and what Grafana shows. The Prometheus operator's kinds are
//! not Kubernetes' own.

mod alerts;
mod dashboard;

use operator_kit::{metrics::Description, process};
use serde_json::{Value, json};

use super::{Component, NAME, Options};
use crate::{metrics::Metrics, names::NAME_LABEL, webhook};

pub use self::{
    alerts::{Alert, alerts},
    dashboard::{DASHBOARD_LABEL, Dashboard, Panel, dashboard},
};

/// Every metric that an operator or a webhook serves, in the order of their reference.
pub fn families() -> impl Iterator<Item = &'static Description> {
    let webhook = &webhook::metrics::DESCRIPTIONS;
    Metrics::descriptions().chain(webhook).chain([&Metrics::BUILD]).chain(&process::DESCRIPTIONS)
}

/// What is scraped: the metrics of every operator and webhook.
pub fn pod_monitor(options: &Options) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": Component::Operator.namespaced(NAME, options),
        "spec": {
            "selector": { "matchLabels": { NAME_LABEL: NAME } },
            "podMetricsEndpoints": [{ "port": "metrics" }],
        },
    })
}

/// The Secret with the token (`token`) that Prometheus shows where metrics are secure, unless another one is named.
pub const TOKEN_SECRET: &str = "peerpod-metrics-token";

/// How an endpoint of [`pod_monitor`] is scraped where metrics are secure, with the token in this Secret. The certificates are
/// for no name that Prometheus knows a Pod by.
pub fn secure_endpoint(token_secret: &str) -> Value {
    json!({
        "port": "metrics",
        "scheme": "https",
        "tlsConfig": { "insecureSkipVerify": true },
        "authorization": { "credentials": { "name": token_secret, "key": "token" } },
    })
}

/// The [`alerts()`], as rules.
pub fn prometheus_rule(options: &Options) -> Value {
    let rules = alerts().into_iter().map(|Alert { name, expression, patience, meaning, action }| {
        json!({
            "alert": name,
            "expr": expression,
            "for": patience,
            // Alertmanager routes by the namespace, which the expressions leave out.
            "labels": { "severity": "warning", "namespace": options.namespace },
            "annotations": { "summary": meaning, "description": format!("What to do: {action}") },
        })
    });
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": Component::Operator.namespaced(NAME, options),
        "spec": { "groups": [{ "name": NAME, "rules": rules.collect::<Vec<_>>() }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_speak_of_metrics_that_there_are() {
        let known: Vec<_> = families().map(|Description { name, .. }| *name).collect();
        for Alert { name, expression, .. } in alerts() {
            let words = expression.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
            let metrics: Vec<_> = words.filter(|word| word.starts_with("peerpod_operator_")).collect();
            assert!(!metrics.is_empty(), "{name}");
            for metric in metrics {
                assert!(known.contains(&metric), "{name}: {metric}");
            }
        }
    }
}
