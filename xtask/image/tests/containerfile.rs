//! The Containerfile, and which files its build gets.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cargo_metadata::MetadataCommand;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn its_build_gets_every_package_of_the_workspace_and_only_files_that_are_named() -> Result<()> {
    let ignored = fs::read_to_string(root().join(".dockerignore"))?;
    let mut patterns = ignored.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(patterns.next(), Some("*"), "whatever is not named is ignored");
    let named = patterns.map(|pattern| pattern.strip_prefix('!').context("a name"));
    let named = named.collect::<Result<BTreeSet<_>>>()?;
    for name in &named {
        assert!(root().join(name).exists(), "there is no {name}");
    }
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec()?;
    for package in &metadata.packages {
        let manifest = package.manifest_path.strip_prefix(&metadata.workspace_root)?;
        let top = manifest.components().next().context("a path")?.as_str();
        assert!(named.contains(top), "the build does not get {manifest}");
    }
    Ok(())
}
