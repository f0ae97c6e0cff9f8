//! The licences of the software of others in an image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cargo_metadata::Package;

use crate::materials::{Materials, expression};
use crate::system::SystemPart;

/// How the names of files with licences or notices begin, in capitals.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

const INTRODUCTION: &str = "\
The software of others that this program contains, or that was needed to build it. Each line has a name, a version and the licence
as an SPDX expression. The texts follow, each once, below the names of what brings it.
";
const RULE: &str = "\n--------------------------------------------------------------------------------------------------\n\n";

/// A part that others made.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// The name and the version.
    name: String,
    license: String,
    /// The content of its files.
    texts: Vec<String>,
}

impl Materials {
    /// The licences of the software of others: a list, and each text once.
    pub fn third_party(&self) -> Result<String> {
        let packages = self.packages();
        let dependencies = self.dependencies()?;
        let others = dependencies.keys().filter_map(|id| packages.get(id)).filter(|it| it.source.is_some());
        let crates = others.map(|package| Part::of_package(package)).collect::<Result<Vec<_>>>()?;
        let system = self.system.iter().map(Part::of_system);
        Ok(document(crates.into_iter().chain(system).collect()))
    }

    /// The licence of the program and its image as an SPDX expression. Where a part leaves the choice, it is a licence that another part
    /// requires, if there is one. So the expression stays short.
    pub fn license(&self) -> Result<String> {
        let packages = self.packages();
        let dependencies = self.dependencies()?;
        let crates = dependencies.keys().filter_map(|id| packages.get(id)).map(|package| expression(package));
        let system = self.system.iter().map(|part| part.license.to_owned());
        Ok(all_of(crates.chain(system)))
    }
}

impl Part {
    fn of_package(package: &Package) -> Result<Self> {
        let texts = files(package)?.iter().map(|path| read(path)).collect::<Result<_>>()?;
        let name = format!("{} {}", package.name, package.version);
        Ok(Self { name, license: expression(package), texts })
    }

    fn of_system(part: &SystemPart) -> Self {
        let version = part.version.iter().map(|version| format!(" {version}"));
        let name = [part.name.to_owned()].into_iter().chain(version).collect();
        // A machine of another distribution does not have them at this place.
        let texts = part.texts.iter().filter_map(|path| read(Path::new(path)).ok()).collect();
        Self { name, license: part.license.to_owned(), texts }
    }
}

/// The files of a package with licences or notices, in a fixed order.
fn files(package: &Package) -> Result<BTreeSet<PathBuf>> {
    let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
    let mut files: BTreeSet<_> = package.license_file().map(PathBuf::from).into_iter().collect();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {folder}"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if FILES.iter().any(|start| name.starts_with(start)) && path.is_file() {
            files.insert(path);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Texts that differ only in white space are one text. Similar texts follow each other, which compresses well.
fn document(mut parts: Vec<Part>) -> String {
    parts.sort_unstable();
    let mut document = format!("{INTRODUCTION}\n");
    let mut texts: BTreeMap<String, (&str, BTreeSet<&str>)> = BTreeMap::new();
    for Part { name, license, texts: own } in &parts {
        let remark = if own.is_empty() { " (it brings no text)" } else { "" };
        document.extend([name, ": ", license, remark, "\n"]);
        for text in own {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            texts.entry(words).or_insert((text, BTreeSet::new())).1.insert(name);
        }
    }
    for (text, names) in texts.into_values() {
        document.push_str(RULE);
        document.extend(names.into_iter().flat_map(|name| [name, "\n"]));
        document.push('\n');
        document.extend(text.trim_matches(['\r', '\n']).lines().flat_map(|line| [line.trim_end(), "\n"]));
    }
    document
}

/// The expression that all these expressions are part of.
fn all_of(expressions: impl Iterator<Item = String>) -> String {
    let terms: BTreeSet<_> = expressions.flat_map(|expression| terms(&expression)).collect();
    let (required, choices): (BTreeSet<_>, _) = terms.into_iter().partition(|term| term.len() == 1);
    let open = choices
        .iter()
        .filter(|choice| !choice.iter().any(|license| required.contains(&BTreeSet::from([license.clone()]))));
    let open = open.map(|choice| {
        let choice: Vec<_> = choice.iter().map(String::as_str).collect();
        format!("({})", choice.join(" OR "))
    });
    let all: BTreeSet<_> = required.iter().flatten().cloned().chain(open).collect();
    all.into_iter().collect::<Vec<_>>().join(" AND ")
}

/// The terms of an expression that are joined by `AND`, each a choice of licences or a single one.
fn terms(expression: &str) -> Vec<BTreeSet<String>> {
    let expression = expression.trim();
    // `AND` binds more tightly than `OR`.
    let choice = split(expression, " OR ");
    if choice.len() > 1 {
        return vec![choice.into_iter().map(str::to_owned).collect()];
    }
    let parts = split(expression, " AND ");
    if parts.len() > 1 {
        return parts.into_iter().flat_map(terms).collect();
    }
    match expression.strip_prefix('(').and_then(|it| it.strip_suffix(')')) {
        Some(inner) => terms(inner),
        None => vec![BTreeSet::from([expression.to_owned()])],
    }
}

/// The parts between these operators, without those in parentheses.
fn split<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, _) in expression.match_indices(operator) {
        let before = &expression[..at];
        if before.matches('(').count() == before.matches(')').count() {
            parts.push(&expression[start..at]);
            start = at + operator.len();
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, texts: &[&str]) -> Part {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        Part { name: name.to_owned(), license: "MIT".to_owned(), texts }
    }

    #[test]
    fn each_text_is_there_once_with_all_that_bring_it() {
        let parts = || vec![part("b 2", &["One\r\n\r\ntext\r\n", "Notice"]), part("a 1", &[" One text"])];
        let text = document(parts().into_iter().chain([part("c 3", &[])]).collect());
        let listed = "a 1: MIT\nb 2: MIT\nc 3: MIT (it brings no text)\n";
        assert_eq!(
            text,
            format!("{INTRODUCTION}\n{listed}{RULE}b 2\n\nNotice\n{RULE}a 1\nb 2\n\n One text\n")
        );
        let turned: Vec<_> = parts().into_iter().rev().collect();
        assert_eq!(document(parts()), document(turned), "the order of the packages has no effect");
    }

    #[test]
    fn an_expression_has_each_licence_that_is_required_and_the_choices_left_open() {
        let all = |expressions: &[&str]| all_of(expressions.iter().map(|it| (*it).to_owned()));
        assert_eq!(all(&["Apache-2.0", "MIT OR Apache-2.0", "ISC"]), "Apache-2.0 AND ISC");
        assert_eq!(all(&["(MIT OR Apache-2.0) AND Unicode-3.0", "MIT"]), "MIT AND Unicode-3.0");
        assert_eq!(all(&["Zlib OR MIT", "MIT OR Zlib", "ISC"]), "(MIT OR Zlib) AND ISC");
        assert_eq!(all(&["(A OR B) AND (C OR D)", "B"]), "(C OR D) AND B");
        assert_eq!(all(&["A OR B AND C", "C"]), "(A OR B AND C) AND C");
        let exception = "Apache-2.0 WITH LLVM-exception";
        assert_eq!(all(&[exception, "MIT OR Apache-2.0"]), format!("(Apache-2.0 OR MIT) AND {exception}"));
    }
}
