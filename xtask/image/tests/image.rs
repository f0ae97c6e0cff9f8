//! Images, as the programs that import them see them.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::read::GzDecoder;
use image::{Compression, Files, Image, Materials, USER, closure, operator};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tar::{Archive, EntryType};

/// A small program of this machine that is linked as the operator is.
fn program() -> PathBuf {
    PathBuf::from("/bin/true")
}

fn image() -> Result<Image> {
    let labels = BTreeMap::from([("org.opencontainers.image.version".to_owned(), "1.2.3".to_owned())]);
    operator(&program(), "peerpod-operator:test", &labels)
}

const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What the administrator of this machine trusts beside the public authorities.
fn local_authorities() -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir("/usr/local/share/ca-certificates") else { return Ok(Vec::new()) };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let certificates = paths.iter().filter(|path| path.extension().is_some_and(|it| it == "crt"));
    certificates.map(|path| Ok(fs::read_to_string(path)?)).collect()
}

/// The files of an archive by their paths.
fn unpack(archive: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in Archive::new(File::open(archive)?).entries()? {
        let mut entry = entry?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        files.insert(entry.path()?.display().to_string(), content);
    }
    Ok(files)
}

fn sha256(content: &[u8]) -> String {
    digest(&SHA256, content).as_ref().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// The content of a descriptor. Fails unless digest and size are right.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Result<&'a [u8]> {
    let hash = descriptor["digest"].as_str().and_then(|it| it.strip_prefix("sha256:")).context("a digest")?;
    let content = files.get(&format!("blobs/sha256/{hash}")).context("a blob of this digest")?;
    assert_eq!(sha256(content), hash);
    assert_eq!(descriptor["size"], content.len());
    Ok(content)
}

#[test]
fn an_image_has_the_same_digest_every_time() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    let first = image()?.write(&one, Compression::Gzip)?;
    assert_eq!(first, image()?.write(&other, Compression::Gzip)?);
    assert!(fs::read(&one)? == fs::read(&other)?, "the same digest, and other bytes around it");
    let unlike = operator(&program(), "peerpod-operator:test", &BTreeMap::new())?;
    assert_ne!(first.digest, unlike.write(&other, Compression::Gzip)?.digest, "other labels");
    Ok(())
}

#[test]
fn an_archive_leads_from_its_index_to_its_files() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image.oci.tar");
    for compression in [Compression::None, Compression::Gzip] {
        let written = image()?.write(&path, compression)?;
        let files = unpack(&path)?;
        assert_eq!(files["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
        let index: Value = serde_json::from_slice(&files["index.json"])?;
        let [entry] = index["manifests"].as_array().unwrap().as_slice() else { panic!("{index}") };
        assert_eq!(entry["digest"], json!(written.digest));
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "peerpod-operator:test");
        let manifest: Value = serde_json::from_slice(blob(&files, entry)?)?;
        let config: Value = serde_json::from_slice(blob(&files, &manifest["config"])?)?;
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.title"], "peerpod-operator");
        let mut layer = blob(&files, &manifest["layers"][0])?.to_vec();
        if compression == Compression::Gzip {
            assert!(written.size < image()?.write(&path, Compression::None)?.size);
            let packed = std::mem::take(&mut layer);
            GzDecoder::new(packed.as_slice()).read_to_end(&mut layer)?;
        }
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{}", sha256(&layer))]));
        as_expected(&layer)?;
    }
    Ok(())
}

/// The operator's layer: only what the program needs, readable for every user and writable for root alone.
fn as_expected(layer: &[u8]) -> Result<()> {
    let mut found = Vec::new();
    for entry in Archive::new(layer).entries()? {
        let mut entry = entry?;
        let path = format!("/{}", entry.path()?.display());
        let header = entry.header().clone();
        assert_eq!((header.uid()?, header.gid()?, header.mtime()?), (0, 0, 0), "{path}");
        if header.entry_type() == EntryType::Directory {
            assert_eq!(header.mode()?, 0o755, "{path}");
            continue;
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        if path == "/usr/bin/peerpod-operator" {
            assert_eq!(header.mode()?, 0o755);
            assert!(content == fs::read(program())?, "another program");
        }
        if path == "/etc/passwd" {
            let text = String::from_utf8_lossy(&content);
            assert!(text.contains(&format!(":{USER}:{USER}:")), "{text}");
        }
        if path == AUTHORITIES {
            let text = String::from_utf8_lossy(&content);
            assert!(text.matches("-----BEGIN CERTIFICATE-----").count() > 100, "{} bytes", text.len());
            assert!(local_authorities()?.iter().all(|own| !text.contains(own.trim())), "a private authority");
        }
        found.push(path);
    }
    let mut expected = ["/usr/bin/peerpod-operator", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"]
        .map(str::to_owned)
        .to_vec();
    expected.push(AUTHORITIES.to_owned());
    let libraries = closure(&program())?;
    assert!(libraries.iter().any(|it| it.to_string_lossy().contains("libc.so")), "{libraries:?}");
    expected.extend(libraries.iter().map(|library| library.display().to_string()));
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn materials() -> Result<Materials> {
    Ok(Materials::of(&root(), "peerpod-operator")?.with_authorities())
}

#[test]
fn the_bill_is_reproducible_and_omits_test_dependencies() -> Result<()> {
    let bill = materials()?.bill()?;
    assert_eq!(bill, materials()?.bill()?);
    let components = bill["components"].as_array().context("components")?;
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    let tokio = named("tokio").context("tokio is linked in")?;
    let version = tokio["version"].as_str().context("a version")?;
    assert_eq!(tokio["purl"], format!("pkg:cargo/tokio@{version}"));
    assert_eq!(tokio["licenses"], json!([{"expression": "MIT"}]));
    assert_eq!(tokio["hashes"][0]["content"].as_str().map(str::len), Some(64));
    assert!(named("libvirt-client").is_some(), "a part of this repository");
    assert!(named("proptest").is_none() && named("cluster").is_none(), "of tests alone");
    assert_eq!(bill["metadata"]["component"]["name"], "peerpod-operator");
    assert!(Materials::of(&root(), "no-such-package").is_err());
    Ok(())
}

#[test]
fn the_bill_names_what_cargo_does_not_list() -> Result<()> {
    let bill = materials()?.bill()?;
    let listed = |key: &str| bill[key].as_array().with_context(|| format!("{key} are a list"));
    let (components, edges) = (listed("components")?, listed("dependencies")?);
    let of = |reference: &Value| edges.iter().find(|edge| edge["ref"] == *reference);
    let needs = of(&bill["metadata"]["component"]["bom-ref"]).context("what the program needs")?;
    let needs = needs["dependsOn"].as_array().context("a list")?;
    for (name, kind, license) in [
        ("glibc", "library", "LGPL-2.1-or-later"),
        ("libgcc", "library", "GPL-3.0-or-later WITH GCC-exception-3.1"),
        ("rust-std", "library", "MIT OR Apache-2.0"),
        ("ca-certificates", "data", "MPL-2.0"),
    ] {
        let component = components.iter().find(|it| it["name"] == name).context(name)?;
        assert_eq!(component["type"], kind);
        assert_eq!(component["licenses"], json!([{"expression": license}]));
        assert!(needs.contains(&component["bom-ref"]) && of(&component["bom-ref"]).is_some(), "{name}");
    }
    let of_example = Materials::of(&root(), "podset")?.bill()?;
    let components = of_example["components"].as_array().context("components")?;
    assert!(components.iter().all(|it| it["name"] != "ca-certificates"), "its image has none");
    Ok(())
}

#[test]
fn an_image_has_the_licences_of_all_that_is_in_it() -> Result<()> {
    let materials = materials()?;
    let layer = || -> Result<Vec<u8>> {
        let mut files = Files::new();
        materials.license_files("peerpod-operator", &mut files)?;
        files.tar()
    };
    let layer_now = layer()?;
    assert!(layer_now == layer()?, "other bytes the second time");
    let mut found = BTreeMap::new();
    for entry in Archive::new(layer_now.as_slice()).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        found.insert(path, text);
    }
    let file = |name: &str| &found[&format!("usr/share/licenses/peerpod-operator/{name}")];
    assert_eq!(*file("LICENSE"), fs::read_to_string(root().join("LICENSE"))?);

    let text = file("THIRD-PARTY.txt");
    let bill = materials.bill()?;
    for component in bill["components"].as_array().context("components")? {
        let name = component["name"].as_str().context("a name")?;
        let version = component["version"].as_str().map(|version| format!(" {version}"));
        let license = component["licenses"][0]["expression"].as_str().context("a licence")?;
        let line = format!("\n{name}{}: {license}", version.unwrap_or_default());
        // What has no checksum is a part of this repository, or of no package of cargo.
        let others = component["hashes"].is_array() || !component["purl"].to_string().contains("pkg:cargo/");
        assert_eq!(text.contains(&line), others, "{line}");
    }
    for license in [
        "Copyright (c) Tokio Contributors",
        "Apache License",
        "LESSER GENERAL PUBLIC",
        "GCC RUNTIME LIBRARY EXCEPTION",
        "Mozilla Public",
    ] {
        assert!(text.contains(license), "{license} is missing");
    }
    assert!(text.len() < 1 << 20, "{} bytes: are texts there more than once?", text.len());
    Ok(())
}
