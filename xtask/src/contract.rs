//! `cargo xtask contract`: the scenarios that every provider passes.

use std::io::{Write as _, stdout};

use anyhow::{Result, ensure};
use clap::Args;
use peerpod_operator::provider::contract::Cannot;
use testbed::contract::{PROVIDERS, keep};

/// On which providers.
#[derive(Args)]
pub(crate) struct Task {
    /// The providers [default: all]
    #[arg(value_parser = PROVIDERS, value_name = "PROVIDER")]
    providers: Vec<String>,
}

pub(crate) async fn run(task: &Task) -> Result<()> {
    let all = PROVIDERS.map(str::to_owned);
    let providers = if task.providers.is_empty() { &all[..] } else { &task.providers };
    let (mut passed, mut failed) = (0, 0);
    for provider in providers {
        writeln!(stdout(), "{provider}")?;
        let tally = keep(provider, |name, outcome| {
            let name = name.replace('_', " ");
            // Nobody reads it any more where this fails.
            let _ = match outcome {
                Ok(()) => writeln!(stdout(), "  ok      {name}"),
                Err(Cannot::Here(reason)) => writeln!(stdout(), "  -       {name}: {reason}"),
                Err(Cannot::Failed(error)) => writeln!(stdout(), "  FAILED  {name}: {error}"),
            };
        })
        .await?;
        passed += tally.passed;
        failed += tally.failed;
    }
    writeln!(stdout(), "{passed} passed, {failed} failed")?;
    ensure!(failed == 0, "a provider does not keep the contract; see above");
    Ok(())
}
