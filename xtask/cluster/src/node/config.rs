//! What the programs of a node are told.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::cgroups::Cgroup;
use super::network::Network;
use super::tools::{CNI_PLUGINS, PAUSE_IMAGE, RUNC};

/// Where containerd listens, in the node's own file systems.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// The files of a node's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    dir: &'a Path,
}

impl<'a> Files<'a> {
    /// Those in this folder.
    pub(super) fn at(dir: &'a Path) -> Self {
        Self { dir }
    }

    pub(super) fn containerd(self) -> PathBuf {
        self.dir.join("containerd.toml")
    }

    pub(super) fn kubelet(self) -> PathBuf {
        self.dir.join("kubelet.json")
    }

    fn plugins(self) -> PathBuf {
        self.dir.join("cni")
    }

    /// Writes all of them.
    pub(super) fn write(self, ca: &Path, network: &Network, cgroup: &Cgroup) -> Result<()> {
        fs::create_dir_all(self.plugins())
            .with_context(|| format!("creating {}", self.plugins().display()))?;
        write(&self.containerd(), &containerd(self.dir, &self.plugins()))?;
        write(&self.plugins().join("pods.conflist"), &format!("{:#}\n", pod_network(self.dir, network)))?;
        // JSON is YAML.
        write(&self.kubelet(), &format!("{:#}\n", kubelet(ca, network, cgroup)))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn containerd(dir: &Path, plugins: &Path) -> String {
    // A string of JSON is one of TOML.
    let text = |path: &Path| Value::from(path.display().to_string());
    format!(
        "version = 3\n\
         root = {root}\n\
         state = \"/run/containerd\"\n\
         imports = []\n\
         # These make folders on the machine.\n\
         disabled_plugins = [\"io.containerd.internal.v1.opt\", \"io.containerd.nri.v1.nri\"]\n\
         [grpc]\n\
         address = \"{SOCKET}\"\n\
         [plugins.'io.containerd.metadata.v1.bolt']\n\
         # Data that no power cut needs to spare.\n\
         no_sync = true\n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\n\
         sandbox = \"{PAUSE_IMAGE}\"\n\
         [plugins.'io.containerd.cri.v1.runtime']\n\
         # Not every root may make a process less likely to be killed than itself.\n\
         restrict_oom_score_adj = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = [\"{CNI_PLUGINS}\"]\n\
         conf_dir = {plugins}\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
         BinaryName = \"{RUNC}\"\n\
         SystemdCgroup = false\n",
        root = text(&dir.join("containerd")),
        plugins = text(plugins),
    )
}

fn pod_network(dir: &Path, network: &Network) -> Value {
    let (first, last) = network.pods();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": dir.join("addresses"),
                    "ranges": [[{
                        "subnet": network.subnet(),
                        "gateway": network.node(),
                        "rangeStart": first,
                        "rangeEnd": last,
                    }]],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

fn kubelet(ca: &Path, network: &Network, cgroup: &Cgroup) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node(),
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": ca },
        },
        "authorization": { "mode": "Webhook" },
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup.path(),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        // Nobody serves names here; lookups fail at once.
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        // Changed ConfigMaps and Secrets reach their Pods within that time.
        "syncFrequency": "1s",
        // Images come from nowhere but here, and a disk that is full is not this node's to clear.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": { "memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%" },
        "oomScoreAdj": 0,
        // Its usual place is a folder of the machine.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}
