//! What the Prometheus operator scrapes and what it wakes people for. Its kinds are not Kubernetes' own.

use serde_json::{Value, json};

use super::{Component, NAME, Options};

/// Something to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// When it is time, in `PromQL`. Both replicas count PeerPods, and only the leader holds, decides and calls.
    pub expression: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub action: &'static str,
}

/// How long an alert's expression holds until somebody is woken.
pub const PATIENCE: &str = "5m";

/// Everything to be woken for.
pub const ALERTS: [Alert; 6] = [
    Alert {
        name: "PeerPodDeletionOverdue",
        expression: "max by (provider) (time() - peerpod_operator_oldest_pending_deletion_timestamp_seconds) > 900",
        meaning: "a PeerPod still exists 15 minutes after its deletion, although its Pod has ended",
        action: "`kubectl get peerpods -A` shows the STATE; the condition's message says why",
    },
    Alert {
        name: "PeerPodsNeedHelp",
        expression: "sum by (reason) (peerpod_operator_peerpods_held{reason!~\"WaitingForPod|Cloud.*\"}) > 0",
        meaning: "PeerPods need a person to act, or their deletion is slow",
        action: "`kubectl get events -A --field-selector type=Warning` shows the reasons; the table of reasons \
             says what to do",
    },
    Alert {
        name: "PeerPodCloudFails",
        expression: "sum by (provider) (rate(peerpod_operator_provider_errors_total[10m])) > 0 unless sum by (provider) \
                     (rate(peerpod_operator_provider_calls_total{result=\"ok\"}[10m])) > 0",
        meaning: "no call to the cloud succeeds",
        action: "the operator's log and the condition of any PeerPod that waits have the error; the labels \
             `class` and `result` say how calls end",
    },
    Alert {
        name: "PeerPodOperatorNotLed",
        expression: "(sum(peerpod_operator_leader) or vector(0)) != 1",
        meaning: "no operator leads, or two do",
        action: "check the Lease `peerpod-operator` and the logs of both replicas",
    },
    Alert {
        name: "PeerPodSettingsRefused",
        expression: "min(peerpod_operator_settings_valid) == 0",
        meaning: "the operator cannot use the mounted settings: deletions wait, or use the last good settings",
        action: "`/readyz` and the log name the key",
    },
    Alert {
        name: "PeerPodWebhookCertificateOverdue",
        expression: "min(peerpod_operator_webhook_certificate_overdue_timestamp_seconds) < time()",
        meaning: "the webhook's certificate is overdue for replacement; when it expires, API servers refuse all \
             peer pods",
        action: "the webhook's log names the certificate's source; replace the certificate there; if the \
             webhook created it, the log of the replica that holds the Lease `peerpod-webhook` says why it \
             did not replace it",
    },
];

/// What is scraped: the metrics of every operator and webhook.
pub fn pod_monitor(options: &Options) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": Component::Operator.namespaced(NAME, options),
        "spec": {
            "selector": { "matchLabels": { "app.kubernetes.io/name": NAME } },
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

/// [`ALERTS`], as rules.
pub fn prometheus_rule(options: &Options) -> Value {
    let rules = ALERTS.map(|Alert { name, expression, meaning, action }| {
        json!({
            "alert": name,
            "expr": expression,
            "for": PATIENCE,
            "labels": { "severity": "warning" },
            "annotations": { "summary": meaning, "description": format!("What to do: {action}") },
        })
    });
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": Component::Operator.namespaced(NAME, options),
        "spec": { "groups": [{ "name": NAME, "rules": rules }] },
    })
}

#[cfg(test)]
mod tests {
    use operator_kit::metrics::Description;

    use super::*;
    use crate::{metrics::Metrics, webhook};

    #[test]
    fn alerts_speak_of_metrics_that_there_are() {
        let all = Metrics::DESCRIPTIONS.iter().chain(&webhook::metrics::DESCRIPTIONS);
        let known: Vec<_> = all.map(|Description { name, .. }| *name).collect();
        for Alert { name, expression, .. } in ALERTS {
            let words = expression.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
            let metrics: Vec<_> = words.filter(|word| word.starts_with("peerpod_operator_")).collect();
            assert!(!metrics.is_empty(), "{name}");
            for metric in metrics {
                assert!(known.contains(&metric), "{name}: {metric}");
            }
        }
    }
}
