//! An image as one file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flate2::{GzBuilder, write::GzEncoder};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tar::{Builder, EntryType};

use crate::files::{Files, append};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The prefix that container runtimes add to a name without a registry before they look an image up.
const SHORT_NAMES: &str = "docker.io/library/";

/// A container image for machines like this one.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its name, with a tag and without a registry: `peerpod-operator:0.1.0`.
    pub name: String,
    /// The files in the container.
    pub files: Files,
    /// How the container runs.
    pub config: Config,
}

/// How a container of an image runs.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The program, and its fixed arguments.
    pub entrypoint: Vec<String>,
    /// User and group as numbers, `65532:65532`, so that a kubelet can tell that they are not root's.
    pub user: String,
    /// Variables, `KEY=VALUE`.
    pub env: Vec<String>,
    /// The signal that stops a container, if it is not SIGTERM. The first process of a container does not get SIGTERM unless it
    /// installs a handler.
    pub stop_signal: Option<&'static str>,
    /// Labels; those of the OCI begin with `org.opencontainers.image.`.
    pub labels: BTreeMap<String, String>,
}

/// Whether an image's one layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No: for an image that the same machine imports at once.
    None,
    /// As small as gzip makes it.
    Gzip,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The manifest's digest, `sha256:…`, by which registries know the image.
    pub digest: String,
    /// The bytes that a node fetches: layer, configuration and manifest.
    pub size: usize,
}

/// An image as registries and archives have it.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The layer and the configuration.
    pub blobs: [Blob; 2],
    /// Names both of them. Its digest is the image's.
    pub manifest: Blob,
    index: Value,
}

/// Content with its digest.
#[derive(Clone, Debug)]
pub struct Blob {
    /// `sha256:…`.
    pub digest: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        Self { digest: sha256(&content), content }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.content.len()})
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

impl Image {
    /// Writes an OCI archive at `path`. Replaces an existing file.
    pub fn write(&self, path: &Path, compression: Compression) -> Result<Written> {
        self.pack(compression)?
            .write(path)
            .with_context(|| format!("writing the image {} to {}", self.name, path.display()))
    }

    /// Packs the files into the image's one layer.
    pub fn pack(&self, compression: Compression) -> Result<Packed> {
        let layer = self.files.tar()?;
        let diff_id = sha256(&layer);
        let (layer, layer_type) = match compression {
            Compression::None => (layer, LAYER.to_owned()),
            Compression::Gzip => (gzip(&layer)?, format!("{LAYER}+gzip")),
        };
        let layer = Blob::new(layer);
        let architecture = architecture()?;
        let config = Blob::json(&json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "User": self.config.user,
                "Env": self.config.env,
                "Entrypoint": self.config.entrypoint,
                "StopSignal": self.config.stop_signal,
                "WorkingDir": "/",
                "Labels": self.config.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }));
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [layer.descriptor(&layer_type)],
            "annotations": self.config.labels,
        }));
        let mut descriptor = manifest.descriptor(MANIFEST);
        descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        // containerd uses the first name, other programs the second.
        descriptor["annotations"] = json!({
            "io.containerd.image.name": format!("{SHORT_NAMES}{}", self.name),
            "org.opencontainers.image.ref.name": self.name,
        });
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
        Ok(Packed { blobs: [layer, config], manifest, index })
    }
}

impl Packed {
    /// Writes it as an OCI archive at `path`. Replaces an existing file.
    pub fn write(&self, path: &Path) -> Result<Written> {
        let mut builder = Builder::new(BufWriter::new(File::create(path)?));
        let mut add =
            |path: &str, content: &[u8]| append(&mut builder, path, EntryType::Regular, 0o644, content);
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", self.index.to_string().as_bytes())?;
        let mut size = 0;
        for blob in self.blobs.iter().chain([&self.manifest]) {
            add(&blob.path(), &blob.content)?;
            size += blob.content.len();
        }
        builder.into_inner()?.flush()?;
        Ok(Written { digest: self.manifest.digest.clone(), size })
    }
}

/// The same bytes for the same content: the header contains neither name nor time.
fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder: GzEncoder<_> = GzBuilder::new().mtime(0).write(Vec::new(), flate2::Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

fn sha256(content: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in digest(&SHA256, content).as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// This machine's architecture, as images name it.
fn architecture() -> Result<&'static str> {
    Ok(match (std::env::consts::ARCH, cfg!(target_endian = "little")) {
        ("x86_64", _) => "amd64",
        ("aarch64", _) => "arm64",
        ("s390x", _) => "s390x",
        ("powerpc64", true) => "ppc64le",
        (other, _) => bail!("no OCI name is known for the architecture {other}"),
    })
}
