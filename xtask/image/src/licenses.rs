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
}
