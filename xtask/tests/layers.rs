//! The folders of `src/` have an order, which the tour of the code has: each uses those before it alone, so there is no circle. The
//! rooms of `src/peerpodconfig/` do not use each other, with one exception, and do not use the modules that call them. Nor is there a
//! circle of files in the operator and its libraries.

use std::{
    collections::{BTreeMap, BTreeSet},
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

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Adds each path of the tree with which this text begins, as `a::{b, c::d}`, after these names. Returns what follows the tree.
fn paths<'a>(tree: &'a str, names: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    if let Some(mut list) = tree.strip_prefix('{') {
        loop {
            list = list.trim_start_matches(|char: char| char == ',' || char.is_whitespace());
            if list.is_empty() {
                return list;
            }
            if let Some(rest) = list.strip_prefix('}') {
                return rest;
            }
            // It may be renamed.
            let rest = paths(list, names, found);
            list = &rest[rest.find([',', '}']).unwrap_or(rest.len())..];
        }
    }
    let (name, rest) = tree.split_at(tree.find(|char| !is_of_name(char)).unwrap_or(tree.len()));
    let names = [names, &[name]].concat();
    if let Some(rest) = rest.strip_prefix("::") {
        return paths(rest, &names, found);
    }
    found.push(names);
    rest
}

/// The paths of this code that begin at its crate's top, at itself or at its parent.
fn own_paths(code: &str) -> Vec<Vec<&str>> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find("::") {
        let start = rest[..at].trim_end_matches(is_of_name).len();
        rest = match &rest[start..at] {
            "crate" | "self" | "super" => paths(&rest[start..], &[], &mut found),
            _ => &rest[at + 2..],
        };
    }
    found
}

/// What this source uses of its crate: the first name of each path from the crate's top.
fn used(source: &str) -> BTreeSet<String> {
    let code = code(source);
    let of_crate = own_paths(&code).into_iter().filter(|path| path[0] == "crate");
    of_crate.filter_map(|path| path.get(1).map(|&name| name.to_owned())).collect()
}

/// A module by its names from its crate's top.
type Module = Vec<String>;

/// The sources of a crate in this folder, by their modules.
fn modules(src: &Path, folder: &Path, found: &mut BTreeMap<Module, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            modules(src, &path, found)?;
            continue;
        }
        let mut source = Vec::new();
        sources(&path, &mut source)?;
        let names = path.strip_prefix(src)?.with_extension("");
        let mut module: Module = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        module.pop_if(|name| ["mod", "lib"].contains(&&**name));
        found.extend(source.into_iter().map(|source| (module.clone(), source)));
    }
    Ok(())
}

/// The other modules that each of these uses, save those around it and within it.
fn uses(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let of = |(module, source): (&Module, &String)| {
        let code = code(source);
        let used = own_paths(&code).into_iter().filter_map(|path| {
            let mut used = if path[0] == "crate" { Module::new() } else { module.clone() };
            for name in path {
                match name {
                    "crate" | "self" => {}
                    "super" => drop(used.pop()),
                    name => used.push(name.to_owned()),
                }
            }
            while !modules.contains_key(&used) {
                used.pop()?;
            }
            (!used.starts_with(module) && !module.starts_with(&used)).then_some(used)
        });
        (module.clone(), used.collect())
    };
    modules.iter().map(of).collect()
}

/// The modules that are in a circle, or between two circles.
fn in_circles(mut uses: BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    loop {
        let before = uses.clone();
        let needed: BTreeSet<_> = before.values().flatten().collect();
        uses.retain(|module, of| {
            of.retain(|other| before.contains_key(other));
            !of.is_empty() && needed.contains(module)
        });
        if uses == before {
            return uses;
        }
    }
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
fn no_file_names_another_one_by_its_path_that_names_it() -> Result<()> {
    let mut crates = vec![root().join("src")];
    for entry in fs::read_dir(root().join("crates"))? {
        crates.push(entry?.path().join("src"));
    }
    let mut count = 0;
    for src in crates {
        let mut found = BTreeMap::new();
        modules(&src, &src, &mut found)?;
        let uses = uses(&found);
        count += uses.values().map(BTreeSet::len).sum::<usize>();
        let circles = in_circles(uses).into_iter().map(|(module, of)| {
            let of: Vec<_> = of.iter().map(|it| it.join("::")).collect();
            format!("{} uses {}", module.join("::"), of.join(", "))
        });
        let circles: Vec<_> = circles.collect();
        ensure!(
            circles.is_empty(),
            "{} has files that use each other: move what several of them need into a file of its own\n{}",
            src.display(),
            circles.join("\n")
        );
    }
    ensure!(count > 1000, "only {count} uses were found");
    Ok(())
}

#[test]
fn a_circle_is_found_whatever_leads_to_it() {
    let sources = [
        ("a", "use super::{b::{B, c}, d as e};\nuse crate::a::inner::X;"),
        ("b", "pub(in crate::b) fn f() { crate::d::g::<X>() }"),
        ("b::c", "use super::B;"),
        ("d", "use crate::{b::c::{self, C}, top};\n#[cfg(test)]\nmod tests {\n use super::super::a }"),
        ("top", "// crate::a"),
    ];
    let module = |name: &str| -> Module { name.split("::").map(str::to_owned).collect() };
    let all = |names: &[&str]| -> BTreeSet<_> { names.iter().map(|name| module(name)).collect() };
    let uses = uses(&sources.map(|(name, source)| (module(name), source.to_owned())).into());
    assert_eq!(uses[&module("a")], all(&["b", "b::c", "d"]));
    assert_eq!(uses[&module("d")], all(&["b::c", "top"]));
    assert!(in_circles(uses.clone()).is_empty());
    let back = [(module("b::c"), all(&["a"]))];
    let circles = in_circles(uses.into_iter().chain(back).collect());
    assert_eq!(circles.into_keys().collect::<BTreeSet<_>>(), all(&["a", "b", "b::c", "d"]));
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
    assert_eq!(used(source), ["A", "b", "f", "h"].map(str::to_owned).into());
}
