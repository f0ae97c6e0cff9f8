//! `cargo xtask test`: everything that has to hold, in the order in which it is cheapest to find out that it does not.

use anyhow::{Context as _, Result, ensure};
use cluster::{
    progress::Progress,
    tools::{self, Tools},
};

use crate::repository;

pub(crate) async fn run() -> Result<()> {
    let mut progress = Progress::new(4);
    progress.step("formatting");
    cargo(&["fmt", "--all", "--check"])?;
    progress.step("programs of the control plane, and helm");
    Tools::ensure().await?;
    tools::helm().await?;
    progress.step("lints");
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    progress.step("tests, generated files among them");
    cargo(&["test", "--workspace"])?;
    progress.finish();
    Ok(())
}

/// Runs cargo in this repository, its output going where ours goes.
pub(crate) fn cargo(arguments: &[&str]) -> Result<()> {
    let status = repository::cargo().args(arguments).status();
    let status = status.with_context(|| format!("running cargo {}", arguments.join(" ")))?;
    ensure!(status.success(), "`cargo {}` failed: see above", arguments.join(" "));
    Ok(())
}
