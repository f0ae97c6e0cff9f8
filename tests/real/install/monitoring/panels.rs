//! The dashboard: each panel shows its metric, and Grafana finds it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use operator_kit::metrics::Description;
use peerpod_operator::install::{
    Options,
    monitoring::{Dashboard, dashboard},
};
use serde_json::{Value, json};

use super::{braces, input, promtool};
use crate::{
    install::{
        helm::Helm,
        kustomize::{KUSTOMIZE, built},
    },
    support::{beside_others, run},
};

const A: (&str, &str) = ("pod", "a");

/// A query of the dashboard, with its variables filled in as Grafana does.
fn query(text: &str) -> Result<String> {
    let query = text.replace("$__rate_interval", "5m").replace("$job", "operator|webhook");
    ensure!(!query.contains('$'), "{query} has a further variable");
    Ok(query)
}

#[test]
fn every_panel_of_the_dashboard_shows_its_metric() -> Result<()> {
    let (mut inputs, mut checks) = (Vec::new(), Vec::new());
    for panel in Dashboard::new().rows.iter().flat_map(|(_, panels)| panels) {
        let Description { name, kind, labels, .. } = panel.family;
        let own: Vec<_> = labels.iter().map(|label| (*label, "x")).collect();
        let scraped = [own.as_slice(), &[A, ("job", "operator")]].concat();
        match *kind {
            "counter" => inputs.push(input(name, &scraped, "0+60x20")),
            "histogram" => {
                for bound in ["1", "+Inf"] {
                    let labels = [scraped.as_slice(), &[("le", bound)]].concat();
                    inputs.push(input(&format!("{name}_bucket"), &labels, "0+60x20"));
                }
            }
            _ => inputs.push(input(name, &scraped, "1x20")),
        }
        let by = if own.is_empty() && *kind != "histogram" { &[A] } else { own.as_slice() };
        let milliseconds = panel.unit == "dateTimeFromNow";
        let values: &[f64] = match *kind {
            "histogram" => &[0.5, 0.99],
            _ if milliseconds => &[1000.0],
            _ => &[1.0],
        };
        ensure!(panel.queries.len() == values.len(), "{panel:?}");
        for ((text, _), value) in panel.queries.iter().zip(values) {
            let sample = json!({ "labels": braces(by), "value": value });
            checks.push(json!({ "expr": query(text)?, "eval_time": "10m", "exp_samples": [sample] }));
        }
    }
    let dir = tempfile::tempdir()?;
    let tests = json!([{ "interval": "1m", "input_series": inputs, "promql_expr_test": checks }]);
    let tests = json!({ "rule_files": [], "evaluation_interval": "1m", "tests": tests });
    fs::write(dir.path().join("tests.yaml"), tests.to_string())?;
    run(async { promtool(dir.path(), &["test", "rules", "tests.yaml"]).await.map(drop) })
}

/// The dashboard in the only `ConfigMap` that has one.
fn model(objects: &[Value]) -> Result<Value> {
    let text = objects.iter().find_map(|object| object["data"]["peerpod-operator.json"].as_str());
    Ok(serde_json::from_str(text.context("there is no dashboard")?)?)
}

#[test]
fn chart_and_component_have_the_same_dashboard_and_grafana_finds_it() -> Result<()> {
    beside_others(async |scene| {
        let cluster = scene.testbed.cluster();
        let expected = model(&[serde_json::to_value(dashboard(&Options::default())?)?])?;
        let component = built(cluster, &format!("{KUSTOMIZE}/components/dashboard")).await?;
        let chart = Helm::of(cluster).await?.rendered(&["--set=metrics.dashboard.enabled=true"]).await?;
        for objects in [component, chart] {
            ensure!(model(&objects)? == expected, "it is another one");
            let labels = objects.iter().map(|object| &object["metadata"]["labels"]);
            let found = labels.filter(|labels| labels["grafana_dashboard"] == "1").count();
            ensure!(found == 1, "{found} objects have the label");
        }
        Ok(())
    })
}
