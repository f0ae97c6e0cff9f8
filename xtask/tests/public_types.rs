//! No type of a private dependency is part of a public signature of the libraries. Each such crate would be a promise to their users.
//! This file lists the crates that a library deliberately shares with its users.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::repository;

/// The standard library.
const STANDARD: [&str; 3] = ["alloc", "core", "std"];

/// A library, its features, and the crates whose types its users see. A facade re-exports types of the crates behind it.
struct Library {
    name: &'static str,
    features: &'static str,
    shown: &'static [&'static str],
}

const LIBRARIES: [Library; 3] = [
    Library { name: "libvirt-client", features: "", shown: &["uuid"] },
    Library {
        name: "operator-kit",
        features: "k8s-openapi/v1_33,program",
        shown: &[
            "clap_builder",
            "futures_core",
            "jiff",
            "k8s_openapi",
            "kube",
            "kube_client",
            "kube_core",
            "kube_runtime",
            "prometheus_client",
            // The TLS and HTTP crates that a program serves HTTPS with.
            "rustls",
            "serde_core",
            "serde_json",
            "tokio",
            "tokio_util",
        ],
    },
    Library {
        name: "peerpod-operator",
        features: "k8s-openapi/v1_33",
        shown: &[
            "futures_core",
            "jiff",
            "k8s_openapi",
            "kube_client",
            "kube_core",
            "kube_runtime",
            "operator_kit",
            "prometheus_client",
            // Certificates that are replaced while they are in use.
            "rustls",
            "schemars",
            "secrecy",
            "serde_core",
            "tokio",
            "tokio_util",
        ],
    },
];

/// rustdoc's JSON output needs a flag that only nightly accepts, unless this variable is set. The format fits the toolchain, which is
/// pinned. Cargo and the compiler do not get the variable, because it would rebuild everything.
const RUSTDOC: &str = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";

/// The version of the format that this test reads.
const FORMAT: u64 = 57;

/// rustdoc's description of a library.
fn describe(library: &Library, dir: &Path) -> Result<Value> {
    let rustdoc = dir.join("rustdoc");
    fs::write(&rustdoc, RUSTDOC)?;
    fs::set_permissions(&rustdoc, Permissions::from_mode(0o755))?;
    let mut cargo = repository::cargo();
    cargo.args(["rustdoc", "--quiet", "--package", library.name, "--lib", "--no-default-features"]);
    cargo.args(["--features", library.features, "--", "-Zunstable-options", "--output-format=json"]);
    // Links to items of other features are broken here. The lints check those.
    cargo.arg("--cap-lints=allow").env("RUSTDOC", rustdoc);
    let output = cargo.output().context("running cargo rustdoc")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The folder of documentation is beside that of programs.
    let target = Path::new(env!("CARGO_BIN_EXE_xtask")).ancestors().nth(2).context("a target folder")?;
    let description = fs::read(target.join("doc").join(library.name.replace('-', "_") + ".json"))?;
    let description: Value = serde_json::from_slice(&description)?;
    ensure!(description["format_version"] == FORMAT, "another format: {}", description["format_version"]);
    Ok(description)
}

/// Adds the identifiers of all types and traits that a part of an item names.
fn named(part: &Value, found: &mut BTreeSet<u64>) {
    match part {
        Value::Object(fields) => {
            // A path has generic arguments, and a re-export its source.
            if fields.contains_key("args") && fields.contains_key("path") || fields.contains_key("source") {
                found.extend(fields["id"].as_u64());
            }
            fields.values().for_each(|field| named(field, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| named(part, found)),
        _ => {}
    }
}

/// The crates that public items name, each with a few of the places.
fn shown(description: &Value) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for item in description["index"].as_object().context("an index")?.values() {
        let implementation = &item["inner"]["impl"];
        // Implementations that the compiler and other crates make for all types are no promise of this library.
        let foreign = implementation["is_synthetic"] == true || !implementation["blanket_impl"].is_null();
        if item["crate_id"] != 0 || foreign {
            continue;
        }
        let mut ids = BTreeSet::new();
        named(&item["inner"], &mut ids);
        for id in ids {
            let path = &description["paths"][id.to_string()];
            let number = path["crate_id"].as_u64();
            // A re-export's source may be an item without a path: a variant, or an import.
            let Some(number) = number.filter(|it| *it != 0) else { continue };
            let name =
                description["external_crates"][number.to_string()]["name"].as_str().context("a name")?;
            let (file, line) = (&item["span"]["filename"], &item["span"]["begin"][0]);
            crates
                .entry(name.to_owned())
                .or_default()
                .insert(format!("{}:{line}", file.as_str().unwrap_or("?")));
        }
    }
    Ok(crates)
}

#[test]
fn no_public_signature_has_a_type_of_a_private_dependency() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for library in &LIBRARIES {
        let mut crates = shown(&describe(library, dir.path())?)?;
        crates.retain(|name, _| !STANDARD.contains(&name.as_str()));
        for name in library.shown {
            ensure!(
                crates.remove(*name).is_some(),
                "{} no longer shows {name}: take it off the list",
                library.name
            );
        }
        ensure!(crates.is_empty(), "{} shows types of its private dependencies: {crates:#?}", library.name);
    }
    Ok(())
}
