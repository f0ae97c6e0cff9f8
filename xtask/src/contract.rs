//! `cargo xtask contract`: the scenarios that every provider passes.

use std::{
    fmt::Write as _,
    io::{Write as _, stdout},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use peerpod_operator::provider::contract::{Cannot, Tally};
use testbed::contract::{PROVIDERS, keep};

/// On which providers.
#[derive(Args)]
pub(crate) struct Task {
    /// The providers [default: all]
    #[arg(value_parser = PROVIDERS, value_name = "PROVIDER")]
    providers: Vec<String>,
}

/// Runs all providers at once, because scenarios wait most of the time. Prints their reports in order.
pub(crate) async fn run(task: &Task) -> Result<()> {
    let all = PROVIDERS.map(str::to_owned);
    let providers = if task.providers.is_empty() { &all[..] } else { &task.providers };
    let (mut passed, mut failed) = (0, 0);
    let mut reports = stream::iter(providers).map(|it| report(it)).buffered(providers.len());
    while let Some((text, tally)) = reports.try_next().await? {
        write!(stdout(), "{text}")?;
        passed += tally.passed;
        failed += tally.failed;
    }
    writeln!(stdout(), "{passed} passed, {failed} failed")?;
    ensure!(failed == 0, "a provider does not keep the contract; see above");
    Ok(())
}

async fn report(provider: &str) -> Result<(String, Tally)> {
    let mut text = format!("{provider}\n");
    let tally = keep(provider, None, |name, outcome| {
        let name = name.replace('_', " ");
        // Writing to a string cannot fail.
        let _ = match outcome {
            Ok(()) => writeln!(text, "  ok      {name}"),
            Err(Cannot::Here(reason)) => writeln!(text, "  -       {name}: {reason}"),
            Err(Cannot::Failed(error)) => writeln!(text, "  FAILED  {name}: {error}"),
        };
    })
    .await
    .with_context(|| provider.to_owned())?;
    Ok((text, tally))
}
