//! The bill of materials of a program, in the format `CycloneDX` 1.6.
//!
//! It names the crates that are linked into a program of this machine or needed to build it, without those of tests. `cargo metadata`
//! lists them, and `Cargo.lock` has their checksums. It has no date and no serial number, so the same sources give the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The bill of materials of this package of the workspace in `root`.
pub fn sbom(root: &Path, package: &str) -> Result<Value> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .other_options(["--locked".to_owned(), "--filter-platform".to_owned(), target()?])
        .exec()
        .context("asking cargo what the program is made of")?;
    let lock = root.join("Cargo.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
    let lock: Lock = toml::from_str(&text).with_context(|| format!("reading {}", lock.display()))?;
    bill(&metadata, &lock, package)
}

fn bill(metadata: &Metadata, lock: &Lock, name: &str) -> Result<Value> {
    let root = metadata.workspace_packages().into_iter().find(|package| package.name == name);
    let root = root.with_context(|| format!("the workspace has no package {name}"))?;
    let dependencies = dependencies(metadata, &root.id)?;
    let packages: BTreeMap<_, _> = metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let purls: BTreeMap<_, _> = packages.iter().map(|(id, package)| (*id, purl(package))).collect();
    let checksums: BTreeMap<_, _> = lock
        .package
        .iter()
        .filter_map(|locked| {
            Some(((locked.name.as_str(), locked.version.as_str()), locked.checksum.as_deref()?))
        })
        .collect();

    let mut components: Vec<_> = dependencies
        .keys()
        .filter(|id| ***id != root.id)
        .filter_map(|id| packages.get(id))
        .map(|package| component(package, "library", &checksums))
        .collect();
    let mut edges: Vec<_> = dependencies
        .iter()
        .map(|(id, needs)| {
            let needs: BTreeSet<_> = needs.iter().map(|id| &purls[id]).collect();
            json!({"ref": purls[id], "dependsOn": needs})
        })
        .collect();
    components.sort_by_cached_key(|component| component["bom-ref"].to_string());
    edges.sort_by_cached_key(|edge| edge["ref"].to_string());
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root, "application", &checksums)},
        "components": components,
        "dependencies": edges,
    }))
}

/// The dependencies of each package that `root` needs, directly or indirectly, without those of tests.
fn dependencies<'a>(
    metadata: &'a Metadata,
    root: &'a PackageId,
) -> Result<BTreeMap<&'a PackageId, Vec<&'a PackageId>>> {
    let resolve = metadata.resolve.as_ref().context("cargo did not resolve the dependencies")?;
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut found = BTreeMap::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if found.contains_key(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("cargo did not resolve {id}"))?;
        let for_tests = |kinds: &[cargo_metadata::DepKindInfo]| {
            kinds.iter().all(|it| it.kind == DependencyKind::Development)
        };
        let needs: Vec<_> =
            node.deps.iter().filter(|it| !for_tests(&it.dep_kinds)).map(|it| &it.pkg).collect();
        open.extend(&needs);
        found.insert(id, needs);
    }
    Ok(found)
}

fn component(package: &Package, kind: &str, checksums: &BTreeMap<(&str, &str), &str>) -> Value {
    let version = package.version.to_string();
    let purl = purl(package);
    let mut component = json!({
        "type": kind,
        "bom-ref": purl,
        "name": package.name,
        "version": version,
        "purl": purl,
    });
    if let Some(license) = &package.license {
        // The slash of older manifests means a choice.
        component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(package.name.as_str(), version.as_str())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The identifier of a package in the bill.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// The target that this program was built for, which is this machine's.
fn target() -> Result<String> {
    let output = std::process::Command::new("rustc").arg("-vV").output().context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say which machines it builds for")?.to_owned())
}
