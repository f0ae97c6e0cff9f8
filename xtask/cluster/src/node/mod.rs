//! A real node: kubelet, containerd, runc and kube-proxy on this machine, in [namespaces] of their own.
//!
//! Needs root. Everything outside of the cluster's folder ends with the namespaces, except for a cgroup. That is removed when the
//! cluster ends or, if this program was killed, by the next program that starts a node.

mod cgroups;
mod config;
mod gate;
mod namespaces;
mod network;
mod tools;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use image::{Compression, Image};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::cgroups::PodMemory;
pub use self::gate::Gate;
pub(crate) use self::network::Network;
pub use self::tools::PAUSE_IMAGE;
use self::{cgroups::Cgroup, config::Files, network::output, tools::NodeTools};
use crate::component::{Component, Plan, flag, save_time};
use crate::control_plane::{ASK_AGAIN, Cluster, START_DEADLINE, asked, is_ready};
use crate::process::{Lifetime, Process};

/// The node's name, also in its certificate.
pub const NAME: &str = "node";

/// The pause after a program that found something not ready. A program costs more processor time than a request.
const RUN_AGAIN: Duration = Duration::from_millis(250);

/// Why this machine cannot run a real node; `None` if it can.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a real node needs root".to_owned());
    }
    cgroups::usable().err().map(|error| format!("a real node needs cgroups: {error:#}"))
}

/// Builds and installs all programs of a node, so that no start has to.
pub async fn install() -> Result<()> {
    NodeTools::ensure().await.map(drop)
}

/// Everything that a node's command lines need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) dir: PathBuf,
    tools: NodeTools,
    pub(crate) network: Network,
    cgroup: Option<Cgroup>,
}

impl Node {
    /// A node with its folder in that of a cluster. Installs and builds what it needs.
    pub(crate) async fn plan(cluster: &Path) -> Result<Self> {
        if let Some(obstacle) = obstacle() {
            anyhow::bail!("{obstacle}: do without one, fake nodes need neither");
        }
        let dir = cluster.join("node");
        for folder in ["kubelet", "pods"] {
            let folder = dir.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        Ok(Self { dir, tools: NodeTools::ensure().await?, network: Network::unused()?, cgroup: None })
    }

    /// The command line of one of its programs. `namespaces` is the first process of the node's namespaces.
    pub(crate) fn command(
        &self,
        plan: &Plan,
        component: Component,
        namespaces: Option<&Process>,
    ) -> Result<Command> {
        if component == Component::Namespaces {
            return Ok(namespaces::command(&self.dir));
        }
        let pid = namespaces.context("the node's namespaces are not there")?.identity().pid;
        let files = Files::at(&self.dir);
        let mut command;
        match component {
            Component::Containerd => {
                command = namespaces::enter(pid, &self.tools.containerd);
                command.arg("--config").arg(files.containerd());
            }
            Component::Kubelet => {
                command = namespaces::enter(pid, &self.tools.kubelet);
                flag(&mut command, "config", files.kubelet());
                flag(&mut command, "kubeconfig", plan.kubeconfig(component.name()));
                flag(&mut command, "hostname-override", NAME);
                flag(&mut command, "node-ip", self.network.node().to_string());
            }
            _ => {
                command = namespaces::enter(pid, &self.tools.kube_proxy);
                flag(&mut command, "kubeconfig", plan.kubeconfig(component.name()));
                flag(&mut command, "hostname-override", NAME);
                flag(&mut command, "proxy-mode", "iptables");
                flag(&mut command, "cluster-cidr", self.network.subnet());
                // All Pods are neighbours on one bridge, so without masquerading an answer would bypass the Service.
                command.arg("--masquerade-all");
                // These settings belong to the whole machine, so kube-proxy must not change them.
                flag(&mut command, "conntrack-max-per-core", "0");
                flag(&mut command, "oom-score-adj", "0");
            }
        }
        // containerd finds its shim by the path, and kube-proxy finds Debian's iptables.
        let path = std::env::var("PATH").unwrap_or_default();
        let shim = self.tools.shim.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        command.env("PATH", format!("{shim}:{path}:/usr/sbin:/sbin"));
        save_time(&mut command);
        Ok(command)
    }

    /// Removes what the processes leave behind.
    pub(crate) fn remove(&self) -> Result<()> {
        self.network.disconnect();
        self.cgroup.as_ref().map_or(Ok(()), Cgroup::remove)
    }
}

/// Removes what is left of a node when a cluster ends together with this program.
#[derive(Debug)]
pub(crate) struct Leftovers(pub(crate) Option<Node>);

impl Drop for Leftovers {
    fn drop(&mut self) {
        if let Some(node) = &self.0 {
            // The next program that starts a node removes what this one could not.
            let _ = node.remove();
        }
    }
}

impl Cluster {
    /// The address of this machine for Pods on the real node. Servers on this machine should listen there. `None` without a real node.
    pub fn host_address(&self) -> Option<Ipv4Addr> {
        self.plan.node.as_ref().map(|node| node.network.host())
    }

    /// The memory of a Pod on the real node, as its cgroup reports it.
    pub fn memory_of_pod(&self, pod_uid: &str) -> Result<PodMemory> {
        let cgroup = self.plan.node.as_ref().and_then(|node| node.cgroup.as_ref());
        cgroup.context("the cluster has no real node")?.memory(pod_uid)
    }

    /// Imports an image into the real node, under its name. Pods that use it must not pull it.
    pub async fn import(&self, image: &Image) -> Result<()> {
        let node = self.plan.node.as_ref().context("the cluster has no real node to put an image on")?;
        let file = node.dir.join(format!("{}.tar", image.name.replace(['/', ':'], "-")));
        image.write(&file, Compression::None)?;
        self.import_archive(&file).await?;
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))
    }

    /// Imports the image of an OCI archive into the real node, under the name in the archive.
    pub async fn import_archive(&self, archive: &Path) -> Result<()> {
        let node = self.plan.node.as_ref().context("the cluster has no real node to put an image on")?;
        let archive = std::path::absolute(archive)?;
        let pid = self.running(Component::Namespaces)?.identity().pid;
        let mut ctr = namespaces::enter(pid, &node.tools.ctr);
        ctr.args(["--address", config::SOCKET, "--namespace", "k8s.io", "images", "import"]).arg(&archive);
        let imported = tokio::task::spawn_blocking(move || output(&mut ctr)).await?;
        imported.map(drop).with_context(|| format!("importing the image of {}", archive.display()))
    }

    /// Starts the namespaces, and gives this machine the address that the API server listens on.
    pub(crate) async fn start_namespaces(&mut self) -> Result<()> {
        let Some(node) = self.plan.node.clone() else { return Ok(()) };
        self.spawn(Component::Namespaces)?;
        let process = self.running(Component::Namespaces)?;
        let probe = || async {
            ensure!(namespaces::ready(&node.dir).exists(), "they are not");
            Ok(())
        };
        process.wait_until("the node's namespaces are ready", START_DEADLINE, probe).await?;
        let identity = process.identity().clone();
        let cgroup = Cgroup::create(&identity)?;
        Files::at(&node.dir).write(&self.plan.ca(), &node.network, &cgroup)?;
        if let Some(node) = &mut self.plan.node {
            node.cgroup = Some(cgroup);
        }
        if self.plan.lifetime == Lifetime::Owned {
            self.leftovers = Leftovers(self.plan.node.clone());
        }
        node.network.connect(identity.pid)?;
        self.start_component(Component::Containerd).await
    }

    /// Starts the rest of the node and waits until the scheduler uses it.
    pub(crate) async fn start_node(&mut self) -> Result<()> {
        let Some(node) = &self.plan.node else { return Ok(()) };
        let dir = node.dir.clone();
        let pause = tokio::task::spawn_blocking(move || tools::pause(&dir)).await??;
        self.import(&pause).await?;
        self.spawn(Component::KubeProxy)?;
        self.start_component(Component::Kubelet).await
    }

    /// Waits until a program of the node is usable.
    pub(crate) async fn wait_for_node(&self, component: Component) -> Result<()> {
        let Some(node) = &self.plan.node else { return Ok(()) };
        let process = self.running(component)?;
        match component {
            Component::Containerd => {
                let pid = self.running(Component::Namespaces)?.identity().pid;
                let probe = || {
                    asked(RUN_AGAIN, async {
                        let mut ctr = namespaces::enter(pid, &node.tools.ctr);
                        ctr.args(["--address", config::SOCKET, "--connect-timeout=1s", "version"]);
                        tokio::task::spawn_blocking(move || output(&mut ctr)).await?.map(drop)
                    })
                };
                process.wait_until("containerd answers", START_DEADLINE, probe).await
            }
            Component::Kubelet => {
                let path = format!("/api/v1/nodes/{NAME}");
                let healthz = format!("{path}/proxy/healthz");
                let probe = || {
                    asked(ASK_AGAIN, async {
                        // The node's conditions may still be those of an earlier kubelet, so ask this one first.
                        self.get(&healthz).await?;
                        let node: Value = serde_json::from_str(&self.get(&path).await?)?;
                        ensure!(is_ready(&node), "its conditions are {:#}", node["status"]["conditions"]);
                        Ok(())
                    })
                };
                process.wait_until("the node is ready", START_DEADLINE, probe).await
            }
            _ => Ok(()),
        }
    }
}
