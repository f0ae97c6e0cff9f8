//! libvirt's own client, as an observer that shares no code with the operator.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libvirt_client::ConnectUri;
use tokio::process::Command;
use tokio::time::timeout;

/// How long one command may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// virsh, at one daemon.
#[derive(Clone, Debug)]
pub struct Virsh {
    uri: String,
}

impl Virsh {
    /// virsh with `--connect URI`.
    pub fn new(uri: &ConnectUri) -> Self {
        Self { uri: uri.to_string() }
    }

    /// Runs one command, such as `["dominfo", "NAME"]`. Returns its output.
    pub async fn run(&self, arguments: &[&str]) -> Result<String> {
        let what = format!("virsh {}", arguments.join(" "));
        let output = Command::new("virsh")
            // It translates also what programs read.
            .env("LC_ALL", "C")
            .args(["--quiet", "--connect", &self.uri])
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(DEADLINE, output)
            .await
            .with_context(|| format!("{what} did not end within {DEADLINE:?}"))?
            .with_context(|| format!("running {what}"))?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{what} failed ({}): {}", output.status, error.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The names of all domains, running or not, sorted.
    pub async fn domains(&self) -> Result<Vec<String>> {
        let listed = self.run(&["list", "--all", "--name"]).await?;
        Ok(sorted(listed.lines().map(str::trim)))
    }

    /// The names of the volumes in a pool, sorted.
    pub async fn volumes(&self, pool: &str) -> Result<Vec<String>> {
        let listed = self.run(&["vol-list", pool]).await?;
        Ok(sorted(listed.lines().filter_map(|line| line.split_ascii_whitespace().next())))
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<_> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    names.sort_unstable();
    names
}
