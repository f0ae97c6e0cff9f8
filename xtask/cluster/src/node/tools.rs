//! The programs of a real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use image::{Config, Files, Image};
use serde::{Deserialize, Serialize};

use super::network::output;
use crate::packages;
use crate::tools::{KUBERNETES_LDFLAGS, LDFLAGS, Module, Places, SOURCE};

/// Debian's packages: the program that makes containers, their network plugins, and the tools for Services.
const PACKAGES: [&str; 4] = ["containernetworking-plugins", "iptables", "iproute2", "runc"];

/// The folder of the network plugins in their package.
pub(super) const CNI_PLUGINS: &str = "/usr/lib/cni";
/// The image of the first container of every Pod, which does nothing. Every real node has it.
pub const PAUSE_IMAGE: &str = "peerpod-operator-pause:1";

const KUBERNETES_NODE: Module = Module {
    name: "kubernetes-node",
    source: SOURCE,
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
    // These file systems need C libraries.
    tags: "no_btrfs no_zfs no_devmapper",
    ldflags: LDFLAGS,
    programs: &[
        ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        ("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
        ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ],
    data: None,
};

/// The path of each program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeTools {
    pub(super) kubelet: PathBuf,
    pub(super) kube_proxy: PathBuf,
    pub(super) containerd: PathBuf,
    pub(super) shim: PathBuf,
    pub(super) ctr: PathBuf,
}

impl NodeTools {
    /// Finds every program. First installs missing packages and builds missing programs.
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

/// The image of the first container of every Pod: one static program that does nothing.
pub(super) fn pause(dir: &Path) -> Result<Image> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/pause/pause.rs");
    static_program(&source, dir, PAUSE_IMAGE, "/pause", "65535:65535")
}

/// An image of one static program at `path`, which runs as this user. The program is built in `dir`, from one Rust source file that
/// needs only the standard library, and ends at once on its stop signal.
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
    // The toolchain is the one of this repository.
    rustc.arg("-o").arg(&program).arg(source).current_dir(env!("CARGO_MANIFEST_DIR"));
    output(&mut rustc).with_context(|| format!("building {}", source.display()))?;
    let mut files = Files::new();
    files.program(path, fs::read(&program).with_context(|| format!("reading {}", program.display()))?);
    let config = Config {
        entrypoint: vec![path.to_owned()],
        user: user.to_owned(),
        // The standard library cannot handle SIGTERM.
        stop_signal: Some("SIGKILL"),
        ..Config::default()
    };
    Ok(Image { name: name.to_owned(), files, config })
}
