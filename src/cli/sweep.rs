//! `sweep`: searches the cloud of the settings once for what no PeerPod tracks.

use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use operator_kit::client;
use prometheus_client::registry::Registry;
use tokio::time::sleep;

use super::{
    FolderArgs, NamespaceArgs, patience,
    serving::block_on,
    table::{Cell, Table},
    terminal::{self, json},
};
use crate::{
    metrics::Metrics,
    names::PLACES,
    provider::{CATALOGUE, Target},
    settings::{Folders, Inspection, Snapshot},
    sweep::{ByHand, Search, Untracked},
};

/// For `--help`.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  the cloud was listed, and what was to be deleted is deleted
  1  the cloud or the cluster could not be read, or something that was to be deleted is left
  2  the arguments are invalid";

/// How many calls are made at once.
const CALLS: usize = 10;

/// Arguments of `sweep`.
#[derive(Clone, Debug, Args)]
pub struct SweepArgs {
    /// The folders with the settings.
    #[command(flatten)]
    pub folders: FolderArgs,

    /// The operator, by its namespace.
    #[command(flatten)]
    pub operator: NamespaceArgs,

    /// Delete nothing
    #[arg(long, env = "PEERPOD_OPERATOR_DRY_RUN")]
    pub dry_run: bool,

    /// Leave out what is younger by the cloud's clock. Without such a clock (libvirt; addresses and interfaces of aws) it counts from
    /// the first listing: there, give a shorter time. From 1s to 24h
    #[arg(long, value_name = "DURATION", env = "PEERPOD_OPERATOR_GRACE", default_value = "30m", value_parser = patience)]
    pub grace: Duration,

    /// The time between the two listings, from 1s to 24h
    #[arg(long, value_name = "DURATION", env = "PEERPOD_OPERATOR_PAUSE", default_value = "10s", value_parser = patience)]
    pub pause: Duration,

    /// The most that is deleted
    #[arg(long, value_name = "N", env = "PEERPOD_OPERATOR_MAX", default_value = "10")]
    pub max: u16,

    /// Format of the report
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        env = "PEERPOD_OPERATOR_OUTPUT",
        value_enum,
        default_value = "table"
    )]
    pub output: SweepFormat,
}

/// How the report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SweepFormat {
    /// One line for each thing
    Table,
    /// One JSON document
    Json,
}

pub(super) fn sweep(args: SweepArgs) -> ExitCode {
    block_on(search(args), |problem| terminal::problem("sweep", problem))
}

async fn search(args: SweepArgs) -> Result<(), String> {
    let client = client::infer().await.map_err(|problem| problem.to_string())?;
    let metrics = Metrics::new(&mut Registry::default());
    let settings = settings(&args.folders.into())?;
    let target =
        Target::open(settings, (client.clone(), &args.operator.namespace), CALLS, metrics.clone()).await;
    let target = target.map_err(|error| error.message.for_log().to_owned())?;
    let target = target.ok_or("this version does not know the cloud of the settings")?;
    if target.has_moved {
        print_note(&format!(
            "another host, account or pool answers here than before: SWEEP_TAG and SWEEP_EXCLUSIVE prove nothing. If no pod VM is left \
             in the former one, or only the UUID of the host changed, delete the entry of this place from the ConfigMap {PLACES}"
        ));
    }
    let search = Search::new(client, metrics);
    let mut by_hand = ByHand::new(search, target, args.grace, args.pause);
    let failed = |problem: crate::sweep::Problem| problem.to_string();
    by_hand.list().await.map_err(failed)?;
    sleep(args.pause).await;
    let (findings, younger) = by_hand.list().await.map_err(failed)?;
    let shown = by_hand.shown(&findings, args.dry_run);
    terminal::reported(print(&shown, args.output))?;
    print_note(&format!("{} untracked, {younger} more that are younger than --grace", shown.len()));
    if args.dry_run {
        return Ok(());
    }
    let (tally, more) = by_hand.delete(findings, args.max.into()).await;
    print_note(&format!("{} deleted", tally.deleted));
    let mut failed = tally.failed;
    failed.extend(tally.problem.map(|problem| format!("{problem}; what was left then is not deleted")));
    ensure_none_left(failed, more)
}

/// Fails if something that was to be deleted is left: what `failed`, or `more` than the command may delete.
fn ensure_none_left(mut failed: Vec<String>, more: usize) -> Result<(), String> {
    if more > 0 {
        failed.push(format!(
            "{more} more to delete are left because of --max: run the command again, or raise --max"
        ));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The settings, if nothing is wrong with them.
fn settings(folders: &Folders) -> Result<Snapshot, &'static str> {
    let inspection = Inspection::of(folders, CATALOGUE);
    let is_right = inspection.is_right();
    let settings = inspection.snapshot.filter(|_| is_right);
    settings.ok_or("the settings cannot be used; peerpod-operator check says why")
}

fn print(shown: &[Untracked], format: SweepFormat) -> io::Result<()> {
    let mut out = BufWriter::new(anstream::stdout().lock());
    match format {
        SweepFormat::Json => json(&mut out, shown)?,
        SweepFormat::Table if shown.is_empty() => {}
        SweepFormat::Table => {
            let now = Timestamp::now();
            Table::of(shown)
                .column("KIND", |it| Cell::from(&*it.kind))
                .column("NAME", |it| Cell::from(&*it.name))
                .column("ID", |it| Cell::from(&*it.id))
                .column("AGE", |it| {
                    let age = SignedDuration::from_secs(now.duration_since(it.since).as_secs());
                    Cell::from(format!("{age:#}"))
                })
                .column("POD", |it| Cell::maybe(it.pod.as_deref()))
                .column("VERDICT", |it| Cell::from(&*it.verdict))
                .column("PROOF", |it| Cell::maybe(it.proof.as_deref()))
                .column("ACTION", |it| Cell::from(&*it.action))
                .write(&mut out)?;
        }
    }
    out.flush()
}

/// Prints a line beside the report.
fn print_note(line: &str) {
    // If even this cannot be written, the exit code must do.
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_that_was_to_be_deleted_and_is_left_is_a_failure_with_advice() {
        assert_eq!(ensure_none_left(Vec::new(), 0), Ok(()));
        assert_eq!(ensure_none_left(vec!["i-1: no".to_owned()], 0), Err("i-1: no".to_owned()));
        let left = ensure_none_left(vec!["i-1: no".to_owned()], 2).unwrap_err();
        assert!(left.starts_with("i-1: no\n2 more") && left.contains("raise --max"), "{left}");
        assert!(ensure_none_left(Vec::new(), 1).is_err());
    }
}
