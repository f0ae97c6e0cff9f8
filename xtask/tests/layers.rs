//! The folders of `src/` have an order, which the tour of the code has: each uses those before it alone, so there is no circle. The
//! rooms of `src/peerpodconfig/` do not use each other, with one exception, and do not use the modules that call them.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// The line of the tour before the order.
const HEADING: &str = "## What may use what";

/// The rooms of `src/peerpodconfig/`.
const ROOMS: [&str; 3] = ["adaptor", "admission", "capacity"];

/// The folders of `src/peerpodconfig/`, each with the rooms that it may use, as the tour has them.
const USABLE_ROOMS: [(&str, &[&str]); 4] =
    [("adaptor", &["capacity"]), ("admission", &[]), ("capacity", &[]), ("resources", &[])];

/// The modules of `src/peerpodconfig/` that call the rooms. None of these folders uses them.
const CALLERS: [&str; 5] = ["cleanup", "controller", "garbage_collect", "reconcile", "rooms"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders and files of `src/` from low to high, by the tour.
fn order() -> Result<Vec<String>> {
    let page = root().join("docs/src/contributing/tour.md");
    let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
    let (_, order) = text.split_once(HEADING).context("the tour has no order")?;
    let list = order.trim().split("\n\n").next().context("the order is empty")?;
    Ok(list.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

/// Adds the text of every source file of a folder or of one file, save tests.
fn sources(path: &Path, texts: &mut Vec<String>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            sources(&entry?.path(), texts)?;
        }
        return Ok(());
    }
    let is_tests =
        path.components().any(|part| ["tests", "tests.rs"].map(OsStr::new).contains(&part.as_os_str()));
    if !is_tests && path.extension() == Some(OsStr::new("rs")) {
        texts.push(fs::read_to_string(path)?);
    }
    Ok(())
}

/// The source without comments, and without tests at its end.
fn code(source: &str) -> String {
    let lines: Vec<_> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    lines.join("\n").split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
}

/// What this source uses of its crate: the first name of each path from the crate's top.
fn used(source: &str) -> Vec<String> {
    let code = code(source);
    let name = |text: &str| -> String {
        text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let mut names = Vec::new();
    for path in code.split("crate::").skip(1) {
        let Some(list) = path.strip_prefix('{') else {
            names.push(name(path));
            continue;
        };
        let (mut depth, mut is_first) = (0, true);
        for (at, char) in list.char_indices() {
            match char {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                _ if is_first && !char.is_whitespace() => {
                    names.push(name(&list[at..]));
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    names
}

/// Those of these modules that this source uses: each has its name in a path, as `capacity::Nodes`. A field of that name is no use.
fn used_of<'a>(modules: &[&'a str], source: &str) -> Vec<&'a str> {
    let code = code(source);
    let is_used = |module: &&str| {
        code.match_indices(module).any(|(at, _)| {
            let is_of_another_name = |char: char| char.is_alphanumeric() || "_.".contains(char);
            let rest = &code[at + module.len()..];
            !code[..at].ends_with(is_of_another_name) && (rest.starts_with("::") || rest.starts_with(" as "))
        })
    };
    modules.iter().copied().filter(is_used).collect()
}

#[test]
fn a_folder_uses_those_before_it_alone() -> Result<()> {
    let order = order()?;
    let places: BTreeMap<_, _> =
        order.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let mut count = 0;
    for entry in fs::read_dir(root().join("src"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(OsStr::to_str).context("a name")?.to_owned();
        if ["lib", "main"].contains(&&*name) {
            continue;
        }
        let place = places.get(&*name).with_context(|| format!("the tour's order lacks {name}"))?;
        let mut texts = Vec::new();
        sources(&path, &mut texts)?;
        for used in texts.iter().flat_map(|text| used(text)).filter(|used| *used != name) {
            // Other names are of what the crate's top shows again.
            let Some(other) = places.get(&*used) else { continue };
            ensure!(other < place, "{name} uses {used}, which comes after it in the tour's order");
            count += 1;
        }
    }
    ensure!(count > 100, "only {count} uses were found");
    Ok(())
}

#[test]
fn a_room_does_not_use_another_one_nor_what_calls_it() -> Result<()> {
    let here = root().join("src/peerpodconfig");
    for caller in CALLERS {
        ensure!(here.join(caller).with_extension("rs").is_file(), "there is no module {caller}");
    }
    let mut count = 0;
    for (folder, usable) in USABLE_ROOMS {
        let mut texts = Vec::new();
        sources(&here.join(folder), &mut texts)?;
        ensure!(!texts.is_empty(), "{folder} has no sources");
        for text in &texts {
            for room in used_of(&ROOMS, text).into_iter().filter(|room| *room != folder) {
                ensure!(usable.contains(&room), "{folder} uses the room {room}");
                count += 1;
            }
            let callers = used_of(&CALLERS, text);
            ensure!(callers.is_empty(), "{folder} uses {}", callers.join(", "));
        }
    }
    ensure!(count > 0, "no use was found");
    Ok(())
}

#[test]
fn a_room_is_used_by_a_path_and_not_by_a_field() {
    let import = "use super::super::{\n    capacity::Nodes,\n    conditions::Reason,\n};";
    assert_eq!(used_of(&ROOMS, import), ["capacity"]);
    assert_eq!(used_of(&ROOMS, "crate::peerpodconfig::admission::Admission"), ["admission"]);
    assert_eq!(used_of(&ROOMS, "use super::admission as other;"), ["admission"]);
    assert_eq!(used_of(&CALLERS, "super::super::reconcile::Reconciler"), ["reconcile"]);
    let no_use = "spec.admission::x; my_capacity::x; capacity(node); // adaptor::x\n#[cfg(test)]\nmod tests {\n adaptor::x }";
    assert!(used_of(&ROOMS, no_use).is_empty());
}

#[test]
fn the_used_modules_are_the_first_names_of_the_paths() {
    let source = "use crate::{\n    A, b::{c, d::{e}},\n    f::g, // crate::no\n};\nlet x = crate::h::i;\n#[cfg(test)]\nmod tests {\n crate::j }";
    assert_eq!(used(source), ["A", "b", "f", "h"]);
}
