//! The report for people *(no client)*.

use std::io::{self, Write};

use anstyle::Style;
use jiff::Timestamp;

use super::{
    capacity::{ConfigRow, NodeRow, is_overfull},
    peer_pods::{Row, State},
    problem::Severity,
    report::Report,
};
use crate::{
    api::v1alpha1::Distribution,
    cli::{
        table::{Cell, Table},
        terminal::{BAD, BOLD, DIM, GOOD, ODD, clean},
    },
    sweep::{LostVm, Untracked},
};

/// How much of a message the narrow table shows, in characters.
const MESSAGE: usize = 100;

/// What is shown of a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) wide: bool,
    /// The namespace of the PeerPods; `None`: all.
    pub(super) namespace: Option<&'a str>,
}

/// Writes the report, with the sequences for colours.
pub(super) fn write(out: &mut dyn Write, report: &Report, view: View) -> io::Result<()> {
    problems(out, report)?;
    lost(out, report)?;
    untracked(out, report, view)?;
    configs(out, report)?;
    nodes(out, report)?;
    operator(out, report)?;
    peer_pods(out, report, view)
}

fn section(out: &mut dyn Write, title: &str) -> io::Result<()> {
    writeln!(out, "{BOLD}{title}{BOLD:#}")
}

fn problems(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if report.problems.is_empty() {
        return Ok(());
    }
    section(out, "Problems")?;
    for problem in &report.problems {
        let (style, word) = match problem.severity {
            Severity::Error => (BAD, "error"),
            Severity::Warning => (ODD, "warning"),
        };
        writeln!(out, "  {style}{word:7}{style:#}  {}: {}", clean(&problem.subject), clean(&problem.text))?;
    }
    writeln!(out)
}

fn lost(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let clouds = report.clouds.iter().flatten();
    let lost: Vec<&LostVm> = clouds.clone().flat_map(|cloud| &cloud.lost).collect();
    if lost.is_empty() {
        return Ok(());
    }
    section(out, "VMs of running Pods that are gone or off")?;
    let table = Table::of(&lost)
        .column("NAMESPACE", |row| Cell::from(&*row.namespace))
        .column("PEERPOD", |row| Cell::from(&*row.name))
        .column("VM", |row| Cell::from(&*row.id))
        .column("STATE", |row| Cell::styled(row.state.as_str(), BAD))
        .column("SINCE", |row| age(report, row.since));
    table.write(out)?;
    more(out, clouds.map(|cloud| cloud.more_lost).sum())
}

fn untracked(out: &mut dyn Write, report: &Report, view: View) -> io::Result<()> {
    let clouds = report.clouds.iter().flatten();
    let all: Vec<(&str, &Untracked)> =
        clouds.clone().flat_map(|cloud| cloud.untracked.iter().map(|it| (&*cloud.cloud, it))).collect();
    if all.is_empty() {
        return Ok(());
    }
    section(out, "What no PeerPod tracks")?;
    let table = Table::of(&all)
        .column("CLOUD", |row| Cell::from(row.0))
        .column("KIND", |row| Cell::from(&*row.1.kind))
        .column("NAME", |row| Cell::from(&*row.1.name))
        .column("AGE", |row| age(report, row.1.since))
        .column("POD", |row| Cell::maybe(row.1.pod.as_deref()))
        .column("VERDICT", |row| Cell::styled(&*row.1.verdict, ODD))
        .column_if(view.wide, "ID", |row| Cell::from(&*row.1.id))
        .column_if(view.wide, "PROOF", |row| Cell::maybe(row.1.proof.as_deref()))
        .column("ACTION", |row| Cell::from(&*row.1.action));
    table.write(out)?;
    more(out, clouds.map(|cloud| cloud.more_untracked).sum())
}

/// The end of a table that the operator did not publish as a whole.
fn more(out: &mut dyn Write, count: usize) -> io::Result<()> {
    if count > 0 {
        writeln!(out, "{DIM}and {count} more{DIM:#}")?;
    }
    writeln!(out)
}

fn configs(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if report.peer_pod_configs.is_empty() {
        return Ok(());
    }
    section(out, "PeerPodConfigs")?;
    let ready = |row: &ConfigRow| if row.ready == "True" { GOOD } else { BAD };
    let table = Table::of(&report.peer_pod_configs)
        .column("NAME", |row| Cell::from(&*row.name))
        .column("READY", move |row| Cell::styled(&*row.ready, ready(row)))
        .column("REASON", |row| Cell::from(&*row.reason))
        .column("NODES", |row| Cell::number(Some(row.nodes)))
        .column("LIMIT", |row| Cell::from(limit(row)))
        .column("ADVERTISED", |row| Cell::number(Some(row.advertised)))
        .column("USED", |row| Cell::number(row.used))
        .column("FREE", |row| Cell::number(row.free))
        .column("AGE", |row| row.created.map_or_else(|| "".into(), |created| age(report, created)));
    table.write(out)?;
    writeln!(out)
}

fn limit(config: &ConfigRow) -> String {
    match (config.limit, config.distribution) {
        (None, _) => String::new(),
        (Some(limit), Distribution::Total) => limit.to_string(),
        (Some(limit), Distribution::PerNode) => format!("{limit} per node"),
    }
}

fn nodes(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if report.nodes.is_empty() {
        return Ok(());
    }
    section(out, "Nodes")?;
    let free = |row: &NodeRow| match row.free {
        _ if is_overfull(row) => BAD,
        Some(0) => ODD,
        _ => Style::new(),
    };
    let table = Table::of(&report.nodes)
        .column("NAME", |row| Cell::from(&*row.name))
        .column("STATE", |row| if row.ready { "Ready".into() } else { Cell::styled("NotReady", BAD) })
        .column("CONFIG", |row| Cell::maybe(row.config.as_deref()))
        .column("ADVERTISED", |row| Cell::number(row.advertised))
        .column("USED", |row| Cell::number(row.used))
        .column("FREE", move |row| Cell::number(row.free).with(free(row)))
        .column("LIMIT", |row| Cell::number(row.limit))
        .column("RESOURCE", |row| Cell::from(&*row.resource));
    table.write(out)?;
    writeln!(out)
}

fn operator(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    section(out, "Operator")?;
    match &report.leader {
        Some(leader) => {
            let since = leader.since.map(|since| format!(", for {}", report.age(since))).unwrap_or_default();
            writeln!(out, "  leader    {}{since}", clean(leader.pod()))?;
        }
        None => writeln!(out, "  leader    -")?,
    }
    for settings in &report.settings {
        let provider = settings.provider.as_deref().unwrap_or("no CLOUD_PROVIDER");
        let changed =
            settings.changed.map(|it| format!(", changed {} ago", report.age(it))).unwrap_or_default();
        writeln!(out, "  settings  {}: {}{changed}", clean(&settings.name), clean(provider))?;
    }
    for cloud in report.clouds.iter().flatten() {
        let listed = match cloud.listed {
            Some(listed) => format!("{} VMs, listed {} ago", cloud.vms, report.age(listed)),
            None => "not listed yet".to_owned(),
        };
        writeln!(out, "  cloud     {}: {listed}", clean(&cloud.cloud))?;
    }
    writeln!(out)
}

fn peer_pods<'a>(out: &mut dyn Write, report: &'a Report, view: View<'_>) -> io::Result<()> {
    let place = match view.namespace {
        Some(namespace) => format!(" in the namespace {}", clean(namespace)),
        None => String::new(),
    };
    let states = report.states();
    let Some(rows) = report.peer_pods.as_ref().filter(|_| !states.is_empty()) else {
        let known = if report.peer_pods.is_some() { "No PeerPods" } else { "PeerPods are not known" };
        return writeln!(out, "{known}{place}.");
    };
    let states: Vec<_> = states.iter().map(|(state, count)| format!("{count} {}", state.as_str())).collect();
    section(out, &format!("PeerPods{place}: {}", states.join(", ")))?;
    let message = move |row: &'a Row| match &row.message {
        Some(message) if !view.wide => Cell::from(beginning(message)),
        message => Cell::maybe(message.as_deref()),
    };
    let table = Table::of(rows)
        .column_if(view.namespace.is_none(), "NAMESPACE", |row| Cell::from(&*row.namespace))
        .column("NAME", |row| Cell::from(&*row.name))
        .column("POD", |row| Cell::maybe(row.pod.as_deref()))
        .column("NODE", |row| Cell::maybe(row.node.as_deref()))
        .column("VM", |row| Cell::from(&*row.vm))
        .column("STATE", |row| Cell::styled(row.state.as_str(), style(row.state)))
        .column("AGE", |row| age(report, row.created))
        .column("REASON", |row| Cell::maybe(row.reason.as_deref()))
        .column_if(view.wide, "CLOUD", |row| Cell::from(&*row.cloud))
        .column_if(view.wide, "SINCE", |row| age(report, row.since))
        .column("MESSAGE", message);
    table.write(out)
}

const fn style(state: State) -> Style {
    match state {
        State::Stalled => BAD,
        State::Delayed => ODD,
        State::Waiting | State::Deleting => DIM,
        State::Active => Style::new(),
    }
}

fn age(report: &Report, time: Timestamp) -> Cell<'static> {
    Cell::from(report.age(time).to_string())
}

/// As much of a message as the narrow table shows.
fn beginning(message: &str) -> String {
    match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
