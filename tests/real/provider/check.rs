//! The report of `check` about a cloud.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::{MountedFolder, Settings};
use tokio::process::Command;

use crate::support::PROGRAM;

/// The exit code and the report of `check`, with these settings and this environment.
pub async fn check(dir: &Path, settings: &Settings, environment: &[(&str, &str)]) -> Result<(Output, Value)> {
    let dir = tempfile::tempdir_in(dir)?;
    let secrets = &settings.secret;
    let [settings, credentials] = [("settings", &settings.config_map), ("credentials", &settings.secret)]
        .map(|(name, data)| {
            MountedFolder::create(dir.path().join(name), data).map(|folder| folder.path().to_owned())
        });
    let mut command = Command::new(PROGRAM);
    command.env_clear().envs(environment.iter().copied()).args(["check", "-o", "json", "--settings-dir"]);
    command.arg(settings?).arg("--credentials-dir").arg(credentials?).stdin(Stdio::null());
    let output = command.output().await?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let values = secrets.values().filter(|value| value.len() > 8);
    for secret in values.map(String::as_str).chain(["PRIVATE KEY", "ya29."]) {
        ensure!(!printed.contains(secret), "{printed}");
    }
    let report: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    Ok((output, report["providers"][0]["cloud"].clone()))
}

/// The outcome and the text of each finding.
pub fn findings(cloud: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = cloud["findings"].as_array().into_iter().flatten();
    findings.map(|finding| (text(&finding["outcome"]), text(&finding["text"]))).collect()
}

pub fn outcomes(cloud: &Value) -> Vec<String> {
    findings(cloud).into_iter().map(|(outcome, _)| outcome).collect()
}
