//! A dashboard of Grafana with a panel for each metric, made from the metrics' definitions.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use operator_kit::metrics::Description;
use serde_json::{Error, Value, json};

use super::{super::metadata::Component, NAME, Options, families};
use crate::metrics::Metrics;

/// The label by which Grafana's sidecar finds dashboards, as Grafana's own chart and kube-prometheus-stack have it.
pub const DASHBOARD_LABEL: (&str, &str) = ("grafana_dashboard", "1");

/// The rows, each with the prefixes of the names of its metrics. A metric belongs to the first row that fits.
const ROWS: [(&str, &[&str]); 8] = [
    ("PeerPodConfigs", &["peerpodconfig_", "capacity_"]),
    ("Deletions", &["pending_", "oldest_pending_", "deletion"]),
    ("PeerPods", &["peerpods", "decisions_", "reconcile"]),
    ("Clouds", &["provider_"]),
    ("Sweep", &["untracked_", "lost_", "sweep_"]),
    ("Admission", &["admission_", "webhook_"]),
    ("Processes", &["process_"]),
    ("Operator", &[""]),
];

/// How the operator's own metrics are named.
const PREFIX: &str = "peerpod_operator_";

/// Selects the series of the jobs that are chosen at the dashboard's top.
const JOBS: &str = "{job=~\"$job\"}";

/// The number of panels beside each other.
const COLUMNS: usize = 3;

/// The number of columns of Grafana's grid.
const GRID_WIDTH: usize = 24;

/// The height of a panel in the grid.
const HEIGHT: usize = 8;

/// The rows of the dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Each with its title and its panels.
    pub rows: Vec<(&'static str, Vec<Panel>)>,
}

/// What shows one metric.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its definition.
    pub family: &'static Description,
    /// What it shows, in `PromQL` with the dashboard's variables, each with the name of its series.
    pub queries: Vec<(String, String)>,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// Whether it shows the present value alone.
    pub is_stat: bool,
}

impl Dashboard {
    /// The dashboard of all metrics.
    pub fn new() -> Self {
        let row_of = |family: &Description| {
            let name = family.name.strip_prefix(PREFIX).unwrap_or(family.name);
            ROWS.iter().position(|(_, begins)| begins.iter().any(|begin| name.starts_with(begin)))
        };
        let row = |(index, (title, _)): (usize, &(&'static str, _))| {
            let of_row = families().filter(|family| row_of(family) == Some(index));
            (*title, of_row.map(Panel::of).collect())
        };
        Self { rows: ROWS.iter().enumerate().map(row).collect() }
    }

    /// As Grafana has it.
    fn model(&self) -> Value {
        let mut panels = Vec::new();
        let mut top = 0;
        for (title, row) in &self.rows {
            panels.push(json!({
                "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false,
                "gridPos": { "x": 0, "y": top, "w": GRID_WIDTH, "h": 1 },
            }));
            top += 1;
            for (index, panel) in row.iter().enumerate() {
                let width = GRID_WIDTH / COLUMNS;
                let place = json!({
                    "x": index % COLUMNS * width, "y": top + index / COLUMNS * HEIGHT, "w": width, "h": HEIGHT,
                });
                panels.push(panel.model(panels.len() + 1, &place));
            }
            top += row.len().div_ceil(COLUMNS) * HEIGHT;
        }
        let jobs = format!("label_values({}, job)", Metrics::BUILD.name);
        json!({
            "uid": NAME,
            "title": "Peer pods",
            "description": "A panel for each metric of peerpod-operator and its webhook.",
            "tags": ["peer-pods"],
            "schemaVersion": 39,
            "editable": true,
            "refresh": "1m",
            "time": { "from": "now-6h", "to": "now" },
            "templating": { "list": [
                { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
                {
                    "name": "job", "label": "Job", "type": "query", "datasource": source(), "definition": jobs,
                    "query": { "query": jobs, "refId": "job" }, "refresh": 2, "sort": 1, "multi": true,
                    "includeAll": true, "current": { "text": ["All"], "value": ["$__all"] },
                },
            ] },
            "panels": panels,
        })
    }
}

impl Default for Dashboard {
    fn default() -> Self {
        Self::new()
    }
}

impl Panel {
    fn of(family: &'static Description) -> Self {
        let Description { name, kind, labels, .. } = *family;
        // Series without labels differ by process.
        let labels = if labels.is_empty() && kind != "histogram" { &["pod"] } else { labels };
        let (by, legend) = (labels.join(", "), legend(labels));
        let rate = |suffix: &str| format!("rate({name}{suffix}{JOBS}[$__rate_interval])");
        let is_moment =
            kind == "gauge" && ["_time_seconds", "_timestamp_seconds"].iter().any(|end| name.ends_with(end));
        let queries = match kind {
            "counter" => vec![(format!("sum by ({by}) ({})", rate("")), legend)],
            "histogram" => ["0.5", "0.99"]
                .map(|quantile| {
                    let by = [&["le"], labels].concat().join(", ");
                    let buckets = format!("sum by ({by}) ({})", rate("_bucket"));
                    let legend = format!("{quantile} {legend}").trim_end().to_owned();
                    (format!("histogram_quantile({quantile}, {buckets})"), legend)
                })
                .into(),
            // Grafana counts in milliseconds. 0 means that there is no such moment.
            _ if is_moment => vec![(format!("max by ({by}) ({name}{JOBS} > 0) * 1000"), legend)],
            // Both replicas may show the same.
            _ => vec![(format!("max by ({by}) ({name}{JOBS})"), legend)],
        };
        let unit = match kind {
            "counter" if name.ends_with("_seconds_total") => "percentunit",
            "counter" => "ops",
            _ if is_moment => "dateTimeFromNow",
            _ if name.ends_with("_seconds") => "s",
            _ if name.ends_with("_bytes") => "bytes",
            _ => "short",
        };
        Self { family, queries, unit, is_stat: is_moment || kind == "info" }
    }

    /// The metric's title, without the unit and the kind.
    fn title(&self) -> String {
        let name = self.family.name;
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        let name = ["_total", "_info", "_bytes", "_seconds", "_timestamp"]
            .into_iter()
            .fold(name, |name, suffix| name.strip_suffix(suffix).unwrap_or(name));
        // PeerPods wait, not calls. The metric keeps its name, by which alerts and dashboards of users query it.
        let name = if name == "provider_calls_queued" { "peerpods_that_wait_for_a_cloud" } else { name };
        let words = name.split('_').enumerate().map(|(place, word)| match word {
            "peerpods" => "PeerPods".to_owned(),
            "peerpodconfig" => "PeerPodConfig".to_owned(),
            "vms" => "VMs".to_owned(),
            _ if place == 0 => {
                let (first, rest) = word.split_at(word.len().min(1));
                first.to_uppercase() + rest
            }
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// As Grafana has it.
    fn model(&self, id: usize, place: &Value) -> Value {
        let targets = self.queries.iter().zip('A'..).map(|((expression, legend), id)| {
            json!({
                "refId": id, "datasource": source(), "expr": expression, "legendFormat": legend,
                "instant": self.is_stat, "range": !self.is_stat,
            })
        });
        let options = if self.is_stat {
            json!({ "textMode": "value_and_name", "reduceOptions": { "calcs": ["lastNotNull"] } })
        } else {
            json!({ "legend": { "showLegend": true, "displayMode": "list", "placement": "bottom" } })
        };
        json!({
            "id": id,
            "type": if self.is_stat { "stat" } else { "timeseries" },
            "title": self.title(),
            "description": self.family.help,
            "datasource": source(),
            "gridPos": place,
            "fieldConfig": { "defaults": { "unit": self.unit, "min": 0 }, "overrides": [] },
            "options": options,
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}

/// The data source that is chosen at the dashboard's top.
fn source() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// What a series of these labels is named.
fn legend(labels: &[&str]) -> String {
    labels.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" ")
}

/// The `ConfigMap` of the dashboard, without the [label](DASHBOARD_LABEL) by which it is found. Fails only if it could not be written
/// as JSON.
pub fn dashboard(options: &Options) -> Result<ConfigMap, Error> {
    let text = serde_json::to_string_pretty(&Dashboard::new().model())?;
    // Flux would replace Grafana's variables in it by nothing.
    let unchanged = ("kustomize.toolkit.fluxcd.io/substitute".to_owned(), "disabled".to_owned());
    let metadata = Component::Operator.namespaced(&format!("{NAME}-dashboard"), options);
    Ok(ConfigMap {
        metadata: ObjectMeta { annotations: Some([unchanged].into()), ..metadata },
        data: Some(BTreeMap::from([(format!("{NAME}.json"), text)])),
        ..ConfigMap::default()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_has_one_panel_and_every_row_has_some() {
        let Dashboard { rows } = Dashboard::new();
        assert!(rows.iter().all(|(_, panels)| !panels.is_empty()), "{rows:?}");
        let shown: Vec<_> =
            rows.iter().flat_map(|(_, panels)| panels).map(|panel| panel.family.name).collect();
        let known: BTreeSet<_> = families().map(|family| family.name).collect();
        assert_eq!((shown.len(), shown.into_iter().collect()), (known.len(), known));
    }

    #[test]
    fn a_panel_shows_its_metric_in_its_unit_by_its_labels() {
        let Dashboard { rows } = Dashboard::new();
        let panels: Vec<_> = rows.iter().flat_map(|(_, panels)| panels).collect();
        let of = |name: &str| {
            let panel = panels.iter().find(|panel| panel.family.name == name).unwrap();
            (panel.title(), panel.unit, &*panel.queries[0].0, &*panel.queries[0].1)
        };
        for (name, title, unit, query, legend) in [
            (
                "peerpod_operator_peerpods",
                "PeerPods",
                "short",
                "max by (provider) (peerpod_operator_peerpods{job=~\"$job\"})",
                "{{provider}}",
            ),
            (
                "peerpod_operator_peerpodconfig_ready",
                "PeerPodConfig ready",
                "short",
                "max by (config) (peerpod_operator_peerpodconfig_ready{job=~\"$job\"})",
                "{{config}}",
            ),
            (
                "peerpod_operator_provider_calls_queued",
                "PeerPods that wait for a cloud",
                "short",
                "max by (provider) (peerpod_operator_provider_calls_queued{job=~\"$job\"})",
                "{{provider}}",
            ),
            (
                "peerpod_operator_deletions_total",
                "Deletions",
                "ops",
                "sum by (provider, outcome) (rate(peerpod_operator_deletions_total{job=~\"$job\"}[$__rate_interval]))",
                "{{provider}} {{outcome}}",
            ),
            (
                "peerpod_operator_deletion_latency_seconds",
                "Deletion latency",
                "s",
                "histogram_quantile(0.5, sum by (le, provider) \
                 (rate(peerpod_operator_deletion_latency_seconds_bucket{job=~\"$job\"}[$__rate_interval])))",
                "0.5 {{provider}}",
            ),
            (
                "peerpod_operator_oldest_pending_deletion_timestamp_seconds",
                "Oldest pending deletion",
                "dateTimeFromNow",
                "max by (provider) (peerpod_operator_oldest_pending_deletion_timestamp_seconds{job=~\"$job\"} > 0) * 1000",
                "{{provider}}",
            ),
            (
                "process_resident_memory_bytes",
                "Process resident memory",
                "bytes",
                "max by (pod) (process_resident_memory_bytes{job=~\"$job\"})",
                "{{pod}}",
            ),
        ] {
            assert_eq!(of(name), (title.to_owned(), unit, query, legend), "{name}");
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        let model = Dashboard::new().model();
        let mut taken = BTreeSet::new();
        for panel in model["panels"].as_array().unwrap() {
            let [x, y, width, height] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
            assert!(x + width <= GRID_WIDTH as u64, "{panel}");
            for place in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
                assert!(taken.insert(place), "{panel}");
            }
        }
        let ids = model["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64());
        assert!(ids.eq((1..).map(Some).take(model["panels"].as_array().unwrap().len())));
    }
}
