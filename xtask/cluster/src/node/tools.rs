//! The programs of a real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use image::{Config, Files, Image};
use serde::{Deserialize, Serialize};

use super::network::output;
use crate::packages;
use crate::tools::{KUBERNETES_LDFLAGS, LDFLAGS, Module, Places};

/// What Debian has: the program that makes containers, their network plugins, and what Services are made with.
const PACKAGES: [&str; 4] = ["containernetworking-plugins", "iptables", "iproute2", "runc"];

/// Where that package has its program.
pub(super) const RUNC: &str = "/usr/sbin/runc";
/// Where that package has its plugins.
pub(super) const CNI_PLUGINS: &str = "/usr/lib/cni";
/// The image of the first container of every Pod, which does nothing. It is on every real node.
pub const PAUSE_IMAGE: &str = "peerpod-operator-pause:1";

const KUBERNETES_NODE: Module = Module {
    name: "kubernetes-node",
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tools/kubernetes-node"),
    tags: "",
    ldflags: KUBERNETES_LDFLAGS,
    programs: &[
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ],
    data: None,
};
const CONTAINERD: Module = Module {
    name: "containerd",
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tools/containerd"),
    // The file systems of these need C libraries.
    tags: "no_btrfs no_zfs no_devmapper",
    ldflags: LDFLAGS,
    programs: &[
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ],
    data: None,
};

/// Where each program is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeTools {
    pub(super) kubelet: PathBuf,
    pub(super) kube_proxy: PathBuf,
    pub(super) containerd: PathBuf,
    pub(super) shim: PathBuf,
    pub(super) ctr: PathBuf,
}

impl NodeTools {
    /// Finds every program; installs the packages and builds the programs that are missing first.
    pub(super) async fn ensure() -> Result<Self> {
        packages::ensure(&PACKAGES)?;
        let places = Places::from_environment()?;
        places.build_missing(&[&KUBERNETES_NODE, &CONTAINERD]).await?;
        Ok(Self {
            kubelet: places.program(&KUBERNETES_NODE, "kubelet")?,
            kube_proxy: places.program(&KUBERNETES_NODE, "kube-proxy")?,
            containerd: places.program(&CONTAINERD, "containerd")?,
            shim: places.program(&CONTAINERD, "containerd-shim-runc-v2")?,
            ctr: places.program(&CONTAINERD, "ctr")?,
        })
    }
}

/// The image that the programs of every Pod stand on: one static program that does nothing.
pub(super) fn pause(dir: &Path) -> Result<Image> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/pause/pause.rs");
    static_program(&source, dir, PAUSE_IMAGE, "/pause", "65535:65535")
}

/// An image of one static program at `path`, which this user runs. It is built in `dir`, from one Rust source file that
/// needs the standard library alone, and ends at once when it is to end.
fn static_program(source: &Path, dir: &Path, name: &str, path: &str, user: &str) -> Result<Image> {
    let program = dir.join(source.file_stem().context("a source file without a name")?);
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition=2024",
        "-Copt-level=s",
        "-Cpanic=abort",
        "-Cstrip=symbols",
        "-Ctarget-feature=+crt-static",
    ]);
    // The toolchain is the one that this repository asks for.
    rustc.arg("-o").arg(&program).arg(source).current_dir(env!("CARGO_MANIFEST_DIR"));
    output(&mut rustc).with_context(|| format!("building {}", source.display()))?;
    let mut files = Files::new();
    files.program(path, fs::read(&program).with_context(|| format!("reading {}", program.display()))?);
    let config = Config {
        entrypoint: vec![path.to_owned()],
        user: user.to_owned(),
        // The standard library has no way to ask for SIGTERM.
        stop_signal: Some("SIGKILL"),
        ..Config::default()
    };
    Ok(Image { name: name.to_owned(), files, config })
}
