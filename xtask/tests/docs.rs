//! README.md, CHANGELOG.md, CONTRIBUTING.md, docs/, and the READMEs of the chart, of operator-kit and of the examples: every link leads somewhere, every page is listed, the README is short, and
//! commands are what tests run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::{peerpod::reasons::Reason, provider::CLOUDS};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use testbed::docs;

/// The pages of the book.
const BOOK: &str = "docs/src";

/// The book's table of contents.
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// The most that a newcomer reads in five minutes.
const README_LINES: usize = 150;
const README_WORDS: usize = 1500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// Every document, by path in the repository.
fn documents() -> Result<BTreeMap<PathBuf, String>> {
    let mut documents = docs::pages()?;
    for path in [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "crates/operator-kit/README.md",
        "examples/README.md",
        "examples/podset/README.md",
        "examples/ptemplate/README.md",
        "helm/peerpod-operator/README.md",
    ] {
        documents.insert(path.into(), read(path)?);
    }
    Ok(documents)
}

/// A document's links, and the anchors of its headings.
#[derive(Debug, Default, PartialEq)]
struct Outline {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Outline {
    fn of(text: &str) -> Self {
        let mut outline = Self::default();
        let mut heading = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => outline.anchor(&heading.take().unwrap_or_default()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    outline.links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        outline
    }

    /// Adds a heading's anchor, as GitHub and mdBook form it.
    fn anchor(&mut self, heading: &str) {
        let kept = heading.chars().filter(|it| it.is_alphanumeric() || "-_ ".contains(*it));
        let slug = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = [slug.clone()].into_iter().chain(numbered).find(|it| !self.anchors.contains(it));
        self.anchors.extend(free);
    }
}

/// The document to which a link from `from` leads, without `.` and `..`. Links that lead out of the repository lead nowhere.
fn target(from: &Path, link: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_path_buf();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => path.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// Problems with the links of these documents.
fn broken_links(documents: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let outlines: BTreeMap<_, _> =
        documents.iter().map(|(path, text)| (path.as_path(), Outline::of(text))).collect();
    let mut problems = Vec::new();
    for (from, Outline { links, .. }) in &outlines {
        for link in links.iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { Some(from.to_path_buf()) } else { target(from, file) };
            let problem = match &to {
                Some(to) if !exists(to) => Some("no such file"),
                // mdBook has only the pages of the book.
                Some(to) if from.starts_with(BOOK) && !to.starts_with(BOOK) => Some("leads out of the book"),
                Some(to) if !anchor.is_empty() => match outlines.get(to.as_path()) {
                    Some(outline) if outline.anchors.contains(anchor) => None,
                    _ => Some("no such heading"),
                },
                Some(_) => None,
                None => Some("leads out of the repository"),
            };
            problems.extend(problem.map(|problem| format!("{}: {link}: {problem}", from.display())));
        }
    }
    problems
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_in_it() -> Result<()> {
    let problems = broken_links(&documents()?, |path| root().join(path).exists());
    ensure!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

/// Files and folders of this repository that a page names as code.
fn named_paths(text: &str) -> Vec<String> {
    const TOP: [&str; 9] =
        ["src/", "crates/", "examples/", "xtask/", "tests/", "manifests/", "kustomize/", "helm/", "docs/"];
    let codes = Parser::new_ext(text, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Code(code) => Some(code.into_string()),
        _ => None,
    });
    codes.filter(|code| TOP.iter().any(|top| code.starts_with(top)) && !code.contains(' ')).collect()
}

#[test]
fn every_file_and_folder_that_the_tour_names_exists() -> Result<()> {
    let mut count = 0;
    for (page, text) in documents()?.iter().filter(|(page, _)| page.starts_with("docs/src/contributing")) {
        for path in named_paths(text) {
            ensure!(root().join(&path).exists(), "{}: there is no {path}", page.display());
            count += 1;
        }
    }
    ensure!(count > 30, "only {count} paths were found");
    Ok(())
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let documents = BTreeMap::from([
        (
            "README.md".into(),
            "# A `b`: c\n[1](#a-b-c) [2](#b) [3](docs/src/a.md#x) [4](docs/src/b.md)".into(),
        ),
        ("docs/src/a.md".into(), "# x\n# x\n[5](#x-1) [6](../../README.md) [7](../../../a) `[8](no)`".into()),
    ]);
    let problems = broken_links(&documents, |path| documents.contains_key(path));
    let expected = [
        "README.md: #b: no such heading",
        "README.md: docs/src/b.md: no such file",
        "docs/src/a.md: ../../README.md: leads out of the book",
        "docs/src/a.md: ../../../a: leads out of the repository",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn the_book_lists_every_page_once() -> Result<()> {
    let listed = Outline::of(&read(SUMMARY)?).links.into_iter().map(|link| Path::new(BOOK).join(link));
    let mut listed: Vec<_> = listed.collect();
    listed.sort();
    let pages = docs::pages()?.into_keys();
    let pages: Vec<_> = pages.filter(|it| it.starts_with(BOOK) && it != Path::new(SUMMARY)).collect();
    assert_eq!(listed, pages);
    Ok(())
}

/// The versions that a text gives the operator's image.
fn image_versions(text: &str) -> Vec<&str> {
    let after = |mark| text.split(mark).skip(1);
    let all = ["peerpod-operator:", "image.version=\"", "newTag: ", "the tag `"].into_iter().flat_map(after);
    let versions =
        all.map(|rest| rest.split(|it: char| !it.is_ascii_alphanumeric() && !"+-.".contains(it)).next());
    versions.flatten().filter(|version| version.starts_with(|first: char| first.is_ascii_digit())).collect()
}

#[test]
fn the_image_has_the_present_version_wherever_it_is_named() -> Result<()> {
    for path in ["Containerfile", "docs/src/install/image.md", "docs/src/install/manifests.md"] {
        let text = read(path)?;
        let versions = image_versions(&text);
        ensure!(!versions.is_empty(), "{path} names no version");
        let other =
            versions.iter().find(|version| version.trim_end_matches('.') != env!("CARGO_PKG_VERSION"));
        ensure!(other.is_none(), "{path} names the version {other:?}");
    }
    Ok(())
}

#[test]
fn every_provider_is_listed_with_its_page() -> Result<()> {
    let overview = read("docs/src/providers/overview.md")?;
    for provider in CLOUDS {
        let row = format!("| [`{provider}`]({provider}.md) |");
        ensure!(overview.lines().any(|line| line.starts_with(&row)), "{provider} is not listed");
    }
    Ok(())
}

#[test]
fn troubleshooting_names_every_reason_of_a_peerpod() -> Result<()> {
    let page = read("docs/src/operations/troubleshooting.md")?;
    for reason in Reason::ALL {
        let reason = reason.as_str();
        ensure!(page.contains(&format!("`{reason}`")), "{reason} is missing");
    }
    Ok(())
}

#[test]
fn the_readme_is_short() -> Result<()> {
    let readme = read("README.md")?;
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    ensure!(lines <= README_LINES, "{lines} lines");
    ensure!(words <= README_WORDS, "{words} words");
    Ok(())
}

#[test]
fn every_marked_block_is_there_once_and_its_copies_are_the_same() -> Result<()> {
    let pages = docs::pages()?;
    let mut original = BTreeMap::new();
    for (path, text) in &pages {
        let blocks = docs::blocks(text, "run");
        ensure!(
            blocks.len() == text.matches("<!-- run ").count(),
            "{}: a mark without block",
            path.display()
        );
        for (name, commands) in blocks {
            ensure!(original.insert(name, commands).is_none(), "{}: {name} is there twice", path.display());
        }
    }
    for (path, text) in &pages {
        let blocks = docs::blocks(text, "copy");
        ensure!(
            blocks.len() == text.matches("<!-- copy ").count(),
            "{}: a mark without block",
            path.display()
        );
        for (name, commands) in blocks {
            ensure!(original.get(name) == Some(&commands), "{}: {name} is not the original", path.display());
        }
    }
    Ok(())
}

/// The files in the present folder that these commands write, or read credentials from.
fn own_files(text: &str) -> BTreeSet<&str> {
    let mut files = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        let words: Vec<_> = line.split_whitespace().collect();
        files
            .extend(words.windows(2).filter(|pair| [">", "--output"].contains(&pair[0])).map(|pair| pair[1]));
        files.extend(words.iter().filter_map(|word| word.strip_prefix("--from-env-file=")));
        let entries = words.iter().filter_map(|word| word.strip_prefix("--from-file="));
        files.extend(entries.map(|entry| entry.split_once('=').map_or(entry, |(_, file)| file)));
        if let ["cp", .., to] = words[..] {
            files.insert(to);
        }
    }
    files.retain(|file| {
        file.contains('.') && file.chars().all(|it| it.is_ascii_alphanumeric() || ".-_/".contains(it))
    });
    files
}

#[test]
fn git_ignores_what_the_pages_have_their_readers_create() -> Result<()> {
    let pages = docs::pages()?;
    let files: BTreeSet<_> = pages.values().flat_map(|text| own_files(text)).collect();
    for file in
        ["aws-credentials.env", "clientkey.pem", "credentials.env", "key.json", "peerpod-operator.oci.tar"]
    {
        ensure!(files.contains(file), "{file} was not found among {files:?}");
    }
    for file in files {
        let status =
            Command::new("git").args(["check-ignore", "--quiet", file]).current_dir(root()).status()?;
        ensure!(status.success(), "git does not ignore {file}");
    }
    Ok(())
}

/// Whether these sources run the block of this name, with one of the calls that do so.
fn runs(sources: &str, name: &str) -> bool {
    ["documented(", "documented(cluster, ", "docs::block("]
        .iter()
        .any(|call| sources.contains(&format!("{call}\"{name}\")")))
}

#[test]
fn a_literal_of_a_blocks_name_does_not_run_the_block() {
    assert!(!runs("let check = \"check\"; // documented(check)", "check"));
    assert!(!runs("shell.documented(\"check-all\")", "check"));
    for call in ["shell.documented(\"check\")", "documented(cluster, \"check\")", "docs::block(\"check\")?"] {
        assert!(runs(call, "check"), "{call}");
    }
}

#[test]
fn a_test_runs_every_command_of_the_readme_and_every_marked_block() -> Result<()> {
    let readme = read("README.md")?;
    let blocks = docs::blocks(&readme, "run");
    ensure!(blocks.len() == readme.matches("```sh\n").count(), "a block of README.md has no mark");
    // The command that runs all tests cannot be run by one of them.
    let test = docs::block("test")?;
    ensure!(read(".ci/run")?.lines().any(|line| line == test), "{test}");

    let mut sources = String::new();
    let mut folders = ["tests", "xtask/tests"].map(|folder| root().join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with(file!()) {
                sources += &fs::read_to_string(&path)?;
            }
        }
    }
    let pages = docs::pages()?;
    for (name, _) in pages.values().flat_map(|text| docs::blocks(text, "run")) {
        ensure!(name == "test" || runs(&sources, name), "no test runs the block {name}");
    }
    Ok(())
}
