//! The example operators stay small, and copy nothing from each other or from the operator. Code that they would
//! copy belongs into operator-kit.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

/// The examples, and how many lines each may have without its tests.
const EXAMPLES: [(&str, usize); 2] = [("examples/podset/src", 400), ("examples/ptemplate/src", 500)];

/// So many equal lines in a row, without blank ones, are a copy.
const COPY: usize = 6;

/// The lines of each file in a folder, without files of tests.
fn sources(folder: &str) -> Result<Vec<(PathBuf, Vec<String>)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut folders, mut sources) = (vec![root.join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
                sources.push((path.clone(), fs::read_to_string(path)?.lines().map(str::to_owned).collect()));
            }
        }
    }
    Ok(sources)
}

#[test]
fn the_examples_are_short() -> Result<()> {
    for (folder, most) in EXAMPLES {
        let lines: usize = sources(folder)?.iter().map(|(_, lines)| lines.len()).sum();
        ensure!(lines <= most, "{folder} has {lines} lines, which are more than {most}");
    }
    Ok(())
}

#[test]
fn nothing_is_copied() -> Result<()> {
    let mut seen: HashMap<Vec<String>, (&str, PathBuf)> = HashMap::new();
    for folder in EXAMPLES.map(|(folder, _)| folder).into_iter().chain(["src"]) {
        for (path, lines) in sources(folder)? {
            let lines: Vec<_> =
                lines.iter().map(|line| line.trim().to_owned()).filter(|it| !it.is_empty()).collect();
            for run in lines.windows(COPY) {
                // The operator may repeat itself.
                let (other, found) =
                    seen.entry(run.to_vec()).or_insert_with(|| (folder, path.clone())).clone();
                ensure!(
                    other == folder,
                    "these lines stand in {} and in {}:\n{}",
                    found.display(),
                    path.display(),
                    run.join("\n")
                );
            }
        }
    }
    Ok(())
}
