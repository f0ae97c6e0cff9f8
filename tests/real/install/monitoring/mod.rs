//! The generated alerts and the generated dashboard, checked by Prometheus.

mod alerts;
mod panels;

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

/// The package that has `promtool`.
const PACKAGE: &str = "prometheus";

/// Labels and their values.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// The output of `promtool` in a folder; an error if it finds a problem.
async fn promtool(folder: &Path, arguments: &[&str]) -> Result<String> {
    cluster::packages::ensure(&[PACKAGE])?;
    let output = Command::new("promtool").args(arguments).current_dir(folder).output().await?;
    let [said, problem] = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    ensure!(output.status.success(), "promtool {}:\n{said}{problem}", arguments.join(" "));
    Ok(said)
}

fn input(name: &str, labels: Labels, values: &str) -> Value {
    json!({ "series": format!("{name}{}", braces(labels)), "values": values })
}

fn braces(labels: Labels) -> String {
    let labels = labels.iter().map(|(label, value)| format!("{label}={value:?}"));
    format!("{{{}}}", labels.collect::<Vec<_>>().join(", "))
}
