//! The tables of the README, printed from the code they describe.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::{
    peerpod::verdict::Reason,
    runtime::metrics::{self, Metrics},
    settings::{Key, Kind, Libvirt},
};

/// The README with every generated table brought up to date.
pub(crate) fn update(readme: &str) -> Result<String> {
    let tables = [("settings", settings()?), ("reasons", reasons()?), ("metrics", families()?)];
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

fn reasons() -> Result<String> {
    let mut table = String::from("| condition | reason | what it means |\n|---|---|---|\n");
    for reason in Reason::ALL {
        writeln!(
            table,
            "| {} | `{}` | {} |",
            reason.kind().as_str(),
            reason.as_str(),
            one_line(reason.doc())
        )?;
    }
    Ok(table)
}

fn families() -> Result<String> {
    let mut table = String::from("| metric | type | labels | what it tells |\n|---|---|---|---|\n");
    for family in Metrics::DESCRIPTIONS {
        let labels = family.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let (prefix, help) = (metrics::PREFIX, one_line(family.help));
        writeln!(table, "| `{prefix}_{}` | {} | {labels} | {help} |", family.name, family.kind)?;
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
