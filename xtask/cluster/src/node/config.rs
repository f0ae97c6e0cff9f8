//! The configuration of a node's programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::cgroups::Cgroup;
use super::network::Network;
use super::tools::{CNI_PLUGINS, PAUSE_IMAGE};
use crate::packages;

/// containerd's socket, in the node's own file systems.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// The files of a node's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    dir: &'a Path,
}

impl<'a> Files<'a> {
    /// The files in this folder.
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

    /// The folder of the plugin at which gates hold sandboxes.
    fn gated(self) -> PathBuf {
        self.dir.join("gated")
    }

    /// The gate of Pods of this name.
    pub(super) fn gate(self, pod: &str) -> PathBuf {
        self.dir.join("gates").join(pod)
    }

    /// Writes all of them.
    pub(super) fn write(self, ca: &Path, network: &Network, cgroup: &Cgroup) -> Result<()> {
        fs::create_dir_all(self.plugins())
            .with_context(|| format!("creating {}", self.plugins().display()))?;
        for folder in [self.gated(), self.gate("")] {
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let plugin = self.gated().join(GATED_BRIDGE);
        write(&plugin, &gated_bridge(&self.gate("")))?;
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755))?;
        let runc = packages::program("runc")?;
        write(&self.containerd(), &containerd(self.dir, &runc, &self.plugins(), &self.gated()))?;
        write(&self.plugins().join("pods.conflist"), &format!("{:#}\n", pod_network(self.dir, network)))?;
        // JSON is YAML.
        write(&self.kubelet(), &format!("{:#}\n", kubelet(ca, network, cgroup)))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The extension of the file to which a sandbox adds a byte when it arrives at a gate.
pub(super) const ARRIVALS: &str = "arrivals";

/// The plugin `bridge` with a gate. If there is a gate, the plugin waits until a test decides whether the sandbox gets its network.
const GATED_BRIDGE: &str = "gated-bridge";

fn gated_bridge(gates: &Path) -> String {
    format!(
        "#!/bin/sh\n\
         pod=${{CNI_ARGS#*K8S_POD_NAME=}}\n\
         gate='{}'/${{pod%%;*}}\n\
         verdict=pass\n\
         if [ \"$CNI_COMMAND\" = ADD ] && [ -p \"$gate\" ]; then\n\
           # Both ends, so that it is open before anybody writes.\n\
           exec 3<> \"$gate\"\n\
           echo >> \"$gate.{ARRIVALS}\"\n\
           read -r verdict <&3\n\
           exec 3>&-\n\
         fi\n\
         if [ \"$verdict\" = fail ]; then\n\
           echo '{{\"cniVersion\": \"1.0.0\", \"code\": 100, \"msg\": \"the gate is shut\"}}'\n\
           exit 1\n\
         fi\n\
         exec {CNI_PLUGINS}/bridge\n",
        gates.display()
    )
}

fn containerd(dir: &Path, runc: &Path, plugins: &Path, gated: &Path) -> String {
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
         bin_dirs = [\"{CNI_PLUGINS}\", {gated}]\n\
         conf_dir = {plugins}\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n\
         BinaryName = {runc}\n\
         SystemdCgroup = false\n",
        root = text(&dir.join("containerd")),
        runc = text(runc),
        plugins = text(plugins),
        gated = text(gated),
    )
}

fn pod_network(dir: &Path, network: &Network) -> Value {
    let (first, last) = network.pods();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": GATED_BRIDGE,
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
        // There is no name server here, so lookups fail at once.
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        // Changed ConfigMaps and Secrets reach their Pods within this time.
        "syncFrequency": "1s",
        // No garbage collection of images and no eviction. Images are only imported, and other programs fill this machine's disk and
        // page cache, so an eviction would not help.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "oomScoreAdj": 0,
        // The default is a folder of the machine.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}
