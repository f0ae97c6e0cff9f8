//! Programs in Go, such as those of a cluster. They are built once, from the pinned modules in `tools/`, and kept outside `target/`.
//!
//! They are in `~/.cache/peerpod-operator/tools/MODULE-HASH/`, where the hash covers everything that the build depends on. A build uses
//! a temporary folder and moves it into place, under a lock, so several processes may build at once.
//!
//! If `KUBEBUILDER_ASSETS` names a folder, the programs in it are used instead.

mod build;
mod module;
mod places;

use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use self::module::Data;
pub(crate) use self::module::LDFLAGS;
pub use self::module::{GO_DOWNLOADS, Module};
pub(crate) use self::places::Places;

pub(crate) const KUBERNETES_LDFLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";

/// The versions of all programs of a cluster, in one module: what several of them need is compiled once.
pub(crate) const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools");

const ETCD: Module = Module {
    name: "etcd",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    data: None,
};
const KWOK: Module = Module {
    name: "kwok",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")],
    data: Some(KWOK_STAGES),
};
/// kwok's rules for Pods and nodes: which step follows which, and when.
const KWOK_STAGES: Data = Data {
    go_module: "sigs.k8s.io/kwok",
    folder: "kustomize/stage",
    files: &[
        "node/fast/node-initialize.yaml",
        "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
        "pod/fast/pod-ready.yaml",
        "pod/fast/pod-complete.yaml",
        "pod/fast/pod-delete.yaml",
    ],
};
const KUBERNETES: Module = Module {
    name: "kubernetes",
    source: SOURCE,
    tags: "",
    ldflags: KUBERNETES_LDFLAGS,
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    data: None,
};

const HELM: Module = Module {
    name: "helm",
    source: SOURCE,
    tags: "",
    ldflags: LDFLAGS,
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    data: None,
};

/// The path of each program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tools {
    /// etcd's server.
    pub etcd: PathBuf,
    /// `kube-apiserver`.
    pub api_server: PathBuf,
    /// `kube-controller-manager`.
    pub controller_manager: PathBuf,
    /// `kube-scheduler`.
    pub scheduler: PathBuf,
    /// `kubectl`.
    pub kubectl: PathBuf,
    /// The controller that plays kubelet for fake nodes.
    pub kwok: PathBuf,
    /// kwok's stage files.
    pub kwok_stages: Vec<PathBuf>,
}

impl Tools {
    /// Finds every program. First builds the missing ones, which takes minutes and shows progress on standard error.
    pub async fn ensure() -> Result<Self> {
        let places = Places::from_environment()?;
        places.build_missing(&[&ETCD, &KWOK, &KUBERNETES]).await?;
        let stages = places.folder(&KWOK)?;
        Ok(Self {
            etcd: places.program(&ETCD, "etcd")?,
            api_server: places.program(&KUBERNETES, "kube-apiserver")?,
            controller_manager: places.program(&KUBERNETES, "kube-controller-manager")?,
            scheduler: places.program(&KUBERNETES, "kube-scheduler")?,
            kubectl: places.program(&KUBERNETES, "kubectl")?,
            kwok: places.program(&KWOK, "kwok")?,
            kwok_stages: KWOK_STAGES.names().map(|name| stages.join(name)).collect(),
        })
    }
}

/// Finds helm, which no cluster needs by itself. First builds it if it is missing, which takes a minute or two and shows progress on
/// standard error.
pub async fn helm() -> Result<PathBuf> {
    program(&HELM, "helm").await
}

/// Finds a program of this module. First builds it if it is missing.
pub async fn program(module: &Module, name: &str) -> Result<PathBuf> {
    let places = Places::from_environment()?;
    places.build_missing(&[module]).await?;
    places.program(module, name)
}
