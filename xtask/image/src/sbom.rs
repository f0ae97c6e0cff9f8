//! The bill of materials of a program, in the format `CycloneDX` 1.6.
//!
//! `Cargo.lock` has the checksums of the crates. The bill has no date and no serial number, so the same sources give the same text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result};
use cargo_metadata::Package;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::materials::{Materials, expression};
use crate::system::SystemPart;

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

impl Materials {
    /// The bill of materials.
    pub fn bill(&self) -> Result<Value> {
        let lock = self.root.join("Cargo.lock");
        let text = fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
        let lock: Lock = toml::from_str(&text).with_context(|| format!("reading {}", lock.display()))?;
        let checksums: BTreeMap<_, _> = lock
            .package
            .iter()
            .filter_map(|locked| {
                Some(((locked.name.as_str(), locked.version.as_str()), locked.checksum.as_deref()?))
            })
            .collect();
        let dependencies = self.dependencies()?;
        let packages = self.packages();
        let purls: BTreeMap<_, _> = packages.iter().map(|(id, package)| (*id, purl(package))).collect();
        let root = packages.get(self.package()).context("cargo did not list the program")?;

        let mut components: Vec<_> = dependencies
            .keys()
            .filter(|id| **id != self.package())
            .filter_map(|id| packages.get(id))
            .map(|package| component(package, "library", &checksums))
            .chain(self.system.iter().map(system_component))
            .collect();
        let mut edges: Vec<_> = dependencies
            .iter()
            .map(|(id, needs)| {
                let mut needs: BTreeSet<_> = needs.iter().map(|id| purls[id].as_str()).collect();
                if *id == self.package() {
                    needs.extend(self.system.iter().map(reference));
                }
                json!({"ref": purls[id], "dependsOn": needs})
            })
            .chain(self.system.iter().map(|part| json!({"ref": reference(part), "dependsOn": []})))
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
        "licenses": [{"expression": expression(package)}],
    });
    if let Some(checksum) = checksums.get(&(package.name.as_str(), version.as_str())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

fn system_component(part: &SystemPart) -> Value {
    let mut component = json!({
        "type": part.kind,
        "bom-ref": reference(part),
        "name": part.name,
        "licenses": [{"expression": part.license}],
    });
    for (key, value) in [("version", &part.version), ("purl", &part.purl)] {
        if let Some(value) = value {
            component[key] = json!(value);
        }
    }
    component
}

/// The identifier of a package in the bill.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

/// The identifier of such a part in the bill.
fn reference(part: &SystemPart) -> &str {
    part.purl.as_deref().unwrap_or(part.name)
}
