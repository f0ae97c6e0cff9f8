//! The tables of the README, printed from the code they describe.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::{
    api::v1alpha1::{AdmissionMode, PeerPodConfigSpec, Sizing},
    install::monitoring::{ALERTS, Alert, PATIENCE},
    peerpod::{
        decide::Decision,
        verdict::{self, Reason},
    },
    peerpodconfig::{
        self,
        build::policy::{Unsupported, unsupported},
    },
    provider::ErrorClass,
    runtime::{Metrics, metrics::Description, process},
    settings::{Key, Kind, Libvirt},
    webhook,
};

/// The README with every generated table brought up to date.
pub(crate) fn update(readme: &str) -> Result<String> {
    let tables = [
        ("settings", settings()?),
        ("reasons", reasons()?),
        ("config-reasons", config_reasons()?),
        ("decisions", decisions()?),
        ("classes", classes()?),
        (
            "metrics",
            families(Metrics::DESCRIPTIONS.iter().chain([&Metrics::BUILD]).chain(&process::DESCRIPTIONS))?,
        ),
        ("review-metrics", families(webhook::metrics::DESCRIPTIONS.iter().chain([&Metrics::BUILD]))?),
        ("policy", policy()?),
        ("alerts", alerts()?),
    ];
    tables.iter().try_fold(readme.to_owned(), |readme, (name, table)| replace(&readme, name, table))
}

/// Puts `table` between the two marks of its name.
fn replace(readme: &str, name: &str, table: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let missing = || format!("README.md lacks the marks {} and {end}", begin.trim());
    let (before, rest) = readme.split_once(&begin).with_context(missing)?;
    let (_, after) = rest.split_once(&end).with_context(missing)?;
    ensure!(!after.contains(&begin), "README.md has the mark {} twice", begin.trim());
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

fn settings() -> Result<String> {
    let mut table = String::from("| key | default | used for deletion | meaning |\n|---|---|---|---|\n");
    for Key { name, doc, kind, default, concerns_deletion, .. } in Libvirt::KEYS {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        let secret = if *kind == Kind::Secret { " (secret)" } else { "" };
        let used = if *concerns_deletion { "yes" } else { "" };
        writeln!(table, "| `{name}` | {default} | {used} | {}{secret} |", one_line(doc))?;
    }
    Ok(table)
}

fn policy() -> Result<String> {
    let mut table = String::from("| the webhook | the policy |\n|---|---|\n");
    let mut spec = PeerPodConfigSpec::default();
    spec.admission.mode = AdmissionMode::Policy;
    // All that either kind of sizing lacks.
    spec.admission.sizing = Sizing::Sum;
    for Unsupported { webhook, policy } in unsupported(&spec) {
        writeln!(table, "| {webhook} | {policy} |")?;
    }
    Ok(table)
}

fn reasons() -> Result<String> {
    let mut table = String::from("| condition | reason | event | what it means |\n|---|---|---|---|\n");
    for reason in Reason::ALL {
        let (condition, event) = (reason.kind().as_str(), reason.event());
        writeln!(table, "| {condition} | `{}` | {event:?} | {} |", reason.as_str(), one_line(reason.doc()))?;
    }
    writeln!(table, "| | `{}` | Normal | {} |", verdict::ABANDONED, one_line(verdict::ABANDONED_DOC))?;
    Ok(table)
}

fn config_reasons() -> Result<String> {
    let mut table =
        String::from("| condition | status | reason | event | what it means |\n|---|---|---|---|---|\n");
    for reason in peerpodconfig::verdict::Reason::ALL {
        let (condition, event) = (reason.kind().as_str(), reason.event());
        let status = if reason.status() { "True" } else { "False" };
        let (reason, meaning) = (reason.as_str(), one_line(reason.doc()));
        writeln!(table, "| {condition} | {status} | `{reason}` | {event:?} | {meaning} |")?;
    }
    Ok(table)
}

fn decisions() -> Result<String> {
    let mut table = String::from("| decision | what it means |\n|---|---|\n");
    for (label, doc) in Decision::LABELS {
        writeln!(table, "| `{label}` | {} |", one_line(doc))?;
    }
    Ok(table)
}

fn classes() -> Result<String> {
    let mut table = String::from("| class | reason | what it means and what follows |\n|---|---|---|\n");
    for class in ErrorClass::ALL {
        let reason = verdict::reason_of(class).as_str();
        writeln!(table, "| `{}` | `{reason}` | {} |", class.as_str(), one_line(class.doc()))?;
    }
    Ok(table)
}

fn families<'a>(families: impl IntoIterator<Item = &'a Description>) -> Result<String> {
    let mut table = String::from("| metric | type | labels | what it tells |\n|---|---|---|---|\n");
    for family in families {
        let labels = family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        writeln!(table, "| `{}` | {} | {labels} | {} |", family.name, family.kind, one_line(family.help))?;
    }
    Ok(table)
}

fn alerts() -> Result<String> {
    let mut table = format!("| alert if, for {PATIENCE} | it means | what to do |\n|---|---|---|\n");
    for Alert { name, expression, meaning, action } in ALERTS {
        let expression = one_line(expression);
        writeln!(table, "| `{expression}` ({name}) | {meaning} | {action} |")?;
    }
    Ok(table)
}

/// Documentation comments come in several lines; a table's cell is one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_one_before() {
        let readme = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n";
        assert_eq!(replace(readme, "x", "new\n").unwrap(), "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n");
        assert!(replace(readme, "y", "").unwrap_err().to_string().contains("begin y"));
    }
}
