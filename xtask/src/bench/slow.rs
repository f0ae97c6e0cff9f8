//! Deletions on a cloud that is far away, and on one that partly hangs.

use std::{path::Path, time::Duration};

use anyhow::Result;
use peers::libvirt::{Libvirtd, Relay};
use testbed::{Operator, OperatorOptions, Settings};

use super::{figures::Figures, scene::Bench, usage};

/// The delay of each answer.
const LATE: Duration = Duration::from_millis(50);
/// The number of machines whose calls are answered.
const ANSWERED: usize = 100;
/// The number of further machines whose calls are all lost: a third of all.
const LOST: usize = 50;
/// The time limit without machines that hang, in seconds.
const TARGET: f64 = 0.6;
/// The time limit with machines that hang, in seconds.
const HANGING_TARGET: f64 = 1.5;

pub(super) async fn measure(
    bench: &Bench<'_>,
    libvirtd: &Libvirtd,
    program: &Path,
    dir: &Path,
    figures: &mut Figures,
) -> Result<()> {
    let relay = Relay::start(libvirtd.host(), dir, LATE)?;
    let settings = Settings::libvirt(&relay.uri().to_string());
    let operator =
        Operator::start(bench.testbed, &OperatorOptions::new(program, dir.join("far"), settings)).await?;
    bench.delete(1).await?;

    let one = bench.dangling(1).await?;
    let (call, all) = bench.delete_and_wait(&one, &one).await?;
    figures.info("1 deletion, answers 50 ms late: after the call", all - call, "s");

    let dangling = bench.dangling(ANSWERED).await?;
    let (calls, all) = bench.delete_and_wait(&dangling, &dangling).await?;
    figures.at_most("100 deletions, answers 50 ms late: after the calls", all - calls, "s", TARGET);

    let dangling = bench.dangling(ANSWERED + LOST).await?;
    let (lost, answered) = dangling.split_at(LOST);
    relay.lose(lost.iter().map(|lost| lost.machine.domain.uuid.as_bytes().to_vec()));
    let (calls, all) = bench.delete_and_wait(&dangling, answered).await?;
    figures.at_most("the same 100 beside 50 that hang: after the calls", all - calls, "s", HANGING_TARGET);
    let (resident, _) = usage::memory(operator.pid())?;
    figures.info("resident memory then", resident, "MiB");
    operator.stop().await?;
    Ok(())
}
