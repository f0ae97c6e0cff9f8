//! The features with which cargo builds the dependencies.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use testbed::repository;

/// The features of each package, where cargo builds these packages.
fn features(arguments: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut cargo = repository::cargo();
    cargo.args(["tree", "--prefix=none", "--format={p}|{f}"]).args(arguments);
    let output = cargo.output()?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let mut all = BTreeMap::<_, BTreeSet<String>>::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let Some((package, features)) = line.split_once('|') else { continue };
        // cargo marks a package whose own dependencies it has shown before.
        let features = features.trim_end_matches(" (*)").split(',').filter(|feature| !feature.is_empty());
        all.entry(package.to_owned()).or_default().extend(features.map(ToOwned::to_owned));
    }
    Ok(all)
}

/// A dependency with other features is built once more, and with it all that depends on it: two minutes on a new machine.
#[test]
fn cargo_builds_for_xtask_what_the_tests_need() -> Result<()> {
    let tests = features(&["--workspace", "--edges=normal,build,dev"])?;
    let xtask = features(&["--package=xtask", "--edges=normal,build"])?;
    assert!(xtask.len() > 300, "{} packages", xtask.len());
    let differ: Vec<_> = xtask
        .iter()
        .filter_map(|(package, features)| {
            let lacks: Vec<_> = tests[package].difference(features).collect();
            (!lacks.is_empty()).then(|| format!("{package} lacks {lacks:?}"))
        })
        .collect();
    assert!(differ.is_empty(), "add these features in xtask/Cargo.toml: {differ:#?}");
    Ok(())
}
