//! The report for people.

use std::fmt::Write as _;

use super::document::{Cloud, Document, Outcome, Provider, ReportedFinding, Setting};
use crate::{
    cli::terminal::{BAD, BOLD, DIM, GOOD, ODD, clean},
    settings::Source,
};

/// The most settings that are shown. A folder with more is probably the wrong one.
const ROWS: usize = 100;

/// The most characters that are shown of a value that matters here, such as a URI, and of any other.
const USED_VALUE: usize = 250;
const VALUE: usize = 60;

/// The report, with the sequences for colours.
pub(super) fn render(document: &Document) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = document.providers.iter().try_for_each(|provider| section(&mut out, provider));
    let (style, conclusion) = match document.result {
        Outcome::Ok => (GOOD, "The settings are correct, and the cloud answers."),
        Outcome::Settings => (BAD, "The settings are wrong: deletions or the sweep will not work."),
        Outcome::Cloud => (BAD, "The settings are correct, but the cloud cannot be reached or refuses."),
    };
    let _ = writeln!(out, "{style}{conclusion}{style:#}");
    out
}

fn section(out: &mut String, provider: &Provider) -> std::fmt::Result {
    let Provider { name, settings_dir, credentials_dir, problems, settings, cloud } = provider;
    writeln!(out, "{BOLD}{}{BOLD:#}", name.unwrap_or("no provider"))?;
    writeln!(out, "  settings     {} (ConfigMap)", clean(settings_dir))?;
    if let Some(credentials_dir) = credentials_dir {
        writeln!(out, "  credentials  {} (Secret)", clean(credentials_dir))?;
    }
    for problem in problems {
        writeln!(out, "  {BAD}wrong{BAD:#}        {}", clean(problem))?;
    }
    writeln!(out)?;
    table(out, settings)?;
    writeln!(out)?;
    match cloud {
        Cloud::NotTried => writeln!(out, "  cloud: not asked; correct the settings first")?,
        Cloud::Unreached { error, .. } => {
            writeln!(out, "  {BAD}cloud: not reached{BAD:#}\n    {}", clean(error))?;
        }
        Cloud::Reached { findings } => {
            writeln!(out, "  cloud: reached")?;
            let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
            findings.iter().try_for_each(|it| finding(out, it, width))?;
        }
    }
    writeln!(out)
}

/// The settings that the operator uses, that are set, or that have remarks.
fn table(out: &mut String, settings: &[Setting]) -> std::fmt::Result {
    let matters = |it: &&Setting| it.used || it.source != Source::Default || !it.remarks.is_empty();
    let shown: Vec<_> = settings.iter().filter(matters).collect();
    let hidden = settings.len() - shown.len();
    let rows: Vec<_> = shown.iter().take(ROWS).map(|it| (it, clean(&it.key), value(it))).collect();
    let keys = rows.iter().map(|(_, key, _)| key.chars().count()).max().unwrap_or(0);
    let values = rows.iter().map(|(_, _, value)| value.chars().count()).max().unwrap_or(0);
    for (setting, key, value) in &rows {
        let source = match setting.source {
            Source::ConfigMap => "ConfigMap",
            Source::Secret => "Secret",
            Source::Default => "default",
        };
        let (style, verdict) = match setting.remarks.first() {
            Some(remark) if remark.wrong => (BAD, setting.verdict),
            Some(_) => (ODD, setting.verdict),
            None if setting.used => (GOOD, "ok"),
            None => (DIM, "not for deletions"),
        };
        writeln!(out, "  {key:keys$}  {source:9}  {value:values$}  {style}{verdict}{style:#}")?;
        setting.remarks.iter().try_for_each(|remark| writeln!(out, "    {}", clean(&remark.text)))?;
    }
    if shown.len() > ROWS {
        writeln!(out, "  and {} more: is it the right folder?", shown.len() - ROWS)?;
    }
    if hidden > 0 {
        writeln!(
            out,
            "  {DIM}not shown: {hidden} that deletions do not depend on, with their defaults{DIM:#}"
        )?;
    }
    Ok(())
}

fn value(setting: &Setting) -> String {
    let Some(value) = &setting.value else {
        return if setting.hidden { "(set)" } else { "(none)" }.to_owned();
    };
    let value = clean(value);
    match value.char_indices().nth(if setting.used { USED_VALUE } else { VALUE }) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into_owned(),
    }
}

fn finding(out: &mut String, finding: &ReportedFinding, width: usize) -> std::fmt::Result {
    let (style, outcome) = match finding.outcome {
        "works" => (GOOD, "works"),
        "fails" => (BAD, "fails"),
        _ => (DIM, "not tried"),
    };
    let (subject, text) = (finding.subject, clean(&finding.text));
    writeln!(out, "    {style}{outcome:9}{style:#}  {subject:width$}  {text}")
}

#[cfg(test)]
mod tests;
