//! What is installed beside the operator.

use peerpod_operator::install::monitoring::DASHBOARD_LABEL;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::{Texts, further_labels};

/// The admission policy for writes to PeerPods.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Guard {
    /// What happens to a write without the right to it: `Warn`, `Deny`, or `None` (no policy).
    action: GuardAction,
}

#[derive(Clone, Copy, Default, Serialize, JsonSchema)]
enum GuardAction {
    #[default]
    Warn,
    #[expect(dead_code, reason = "it is in the schema")]
    Deny,
    #[expect(dead_code, reason = "it is in the schema")]
    None,
}

/// The custom resource definitions.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Crds {
    /// Whether the chart installs and upgrades them. An upgrade that sets this to false deletes them, and with them all PeerPods and
    /// PeerPodConfigs, if `keep` was false: before, upgrade with `keep: true`.
    install: bool,
    /// Whether they stay when the chart is uninstalled, and with them the records of running VMs.
    keep: bool,
}

impl Default for Crds {
    fn default() -> Self {
        Self { install: true, keep: true }
    }
}

/// Objects for Prometheus and Grafana.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Metrics {
    /// Whether operator and webhook serve metrics with TLS, and only to clients with a token whose account may get the path `/metrics`.
    /// The role `peerpod-metrics-reader` gives that right. The operator and the webhook get the right to create a
    /// `TokenReview` and a `SubjectAccessReview`, by which they check the clients.
    secure: bool,
    /// The Secret with the operator's certificate for metrics, as `tls.crt` and `tls.key`, if they are secure. If empty, the operator
    /// creates a self-signed certificate.
    tls_secret_name: String,
    /// The Secret with the token, as `token`, that Prometheus sends to the Pods of the `PodMonitor` if metrics are secure. You
    /// create it. If empty, `peerpod-metrics-token`.
    token_secret_name: String,
    /// A `PodMonitor` of the Prometheus operator.
    pod_monitor: Monitoring,
    /// A `PrometheusRule` of the Prometheus operator, with the alerts.
    alerts: Monitoring,
    /// A `ConfigMap` with a dashboard of Grafana, with a panel for each metric.
    dashboard: Dashboard,
}

/// An object of the Prometheus operator.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Monitoring {
    /// Whether the chart creates it.
    enabled: bool,
    /// Additional labels, by which Prometheus selects it. The names that `commonLabels` forbids are forbidden here, too.
    #[schemars(schema_with = "further_labels")]
    labels: Texts,
}

/// A dashboard of Grafana.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Dashboard {
    /// Whether the chart creates it.
    enabled: bool,
    /// Labels by which Grafana's sidecar finds it. The names that `commonLabels` forbids are forbidden here, too.
    #[schemars(schema_with = "further_labels")]
    labels: Texts,
}

impl Default for Dashboard {
    fn default() -> Self {
        let (name, value) = DASHBOARD_LABEL;
        Self { enabled: false, labels: Texts::from([(name.to_owned(), value.to_owned())]) }
    }
}

/// Something that is there or not.
#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Switch {
    /// Whether the chart creates it.
    enabled: bool,
}

/// What `helm uninstall` waits for.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Drain {
    /// Whether `helm uninstall` waits. If there are PeerPods of Pods that still exist, it fails and changes nothing. If false,
    /// delete every PeerPodConfig first (`kubectl -n NAMESPACE delete peerpodconfigs --all`): while one
    /// exists, `helm uninstall` fails, and a second one deletes the operator, which alone can clean up the nodes.
    enabled: bool,
    /// Time limit, such as `4m` or `1h 30m`, up to `24h`. helm's own `--timeout` must be a minute longer.
    #[schemars(schema_with = "drain_timeout")]
    timeout: String,
}

impl Default for Drain {
    fn default() -> Self {
        Self { enabled: true, timeout: "4m".to_owned() }
    }
}

/// What `drain` takes: durations of at least a second that no spelling makes longer than a day.
fn drain_timeout(_: &mut SchemaGenerator) -> Schema {
    let seconds = "[0-9]{1,4}s";
    let minutes = "[0-9]{1,3}m( ?[0-9]{1,4}s)?";
    let hours = "(1?[0-9]|2[0-3])h( ?[0-5]?[0-9]m)?( ?[0-5]?[0-9]s)?";
    json_schema!({
        "type": "string",
        "pattern": format!("^({seconds}|{minutes}|{hours}|24h)$"),
        "not": { "pattern": "^[0hms ]*$" },
    })
}
