//! The programs that make up a cluster, and their command lines.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::address::Address;
use crate::folders;
use crate::node::Node;
use crate::pki::Pki;
use crate::process::{Lifetime, Process};
use crate::tools::Tools;

pub(crate) const SERVICE_RANGE: &str = "10.96.0.0/16";
/// How long after the end of its lease a node counts as lost: Kubernetes' own value.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// The controllers that no test, demo or measurement needs. Each costs a ServiceAccount, a token and watches at every start.
const OMITTED_CONTROLLERS: [&str; 20] = [
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "cronjob-controller",
    "device-taint-eviction-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "podcertificaterequest-cleaner-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "storage-version-migrator-controller",
    "ttl-after-finished-controller",
    "volumeattributesclass-protection-controller",
];

/// One of the programs of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// etcd, which keeps the objects.
    Etcd,
    /// `kube-apiserver`.
    ApiServer,
    /// `kube-controller-manager`: the garbage collector and the other controllers of Kubernetes itself.
    ControllerManager,
    /// `kube-scheduler`.
    Scheduler,
    /// kwok, the kubelet of all fake nodes.
    Kwok,
    /// The first process of a real node's namespaces. When it ends, the node and all its Pods end.
    Namespaces,
    /// containerd, which runs a real node's containers.
    Containerd,
    /// The kubelet of a real node.
    Kubelet,
    /// `kube-proxy`, which makes Services reachable on a real node.
    KubeProxy,
}

impl Component {
    /// Those of every cluster, in the order in which they depend on each other.
    pub const CONTROL_PLANE: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// Those of a real node, in the order in which they depend on each other.
    pub const NODE: [Self; 4] = [Self::Namespaces, Self::Containerd, Self::Kubelet, Self::KubeProxy];

    /// Its name, also that of its log file and its client certificate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "api-server",
            Self::ControllerManager => "controller-manager",
            Self::Scheduler => "scheduler",
            Self::Kwok => "kwok",
            Self::Namespaces => "node-namespaces",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Everything that the command lines of a cluster need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) dir: PathBuf,
    pub(crate) tools: Tools,
    pub(crate) lifetime: Lifetime,
    pub(crate) address: Address,
    pub(crate) emulated_version: Option<String>,
    pub(crate) api_server_flags: Vec<String>,
    pub(crate) node_lease: Duration,
    pub(crate) unplayed_pods: Option<String>,
    pub(crate) node: Option<Node>,
}

impl Plan {
    pub(crate) fn server_url(&self) -> String {
        format!("https://{}:{}", self.server_ip(), self.address.api_server)
    }

    /// Where the API server listens. Pods of a real node must reach it, and each network namespace has its own loopback addresses.
    pub(crate) fn server_ip(&self) -> Ipv4Addr {
        self.node.as_ref().map_or(self.address.ip, |node| node.network.host())
    }

    /// What the cluster consists of.
    pub(crate) fn components(&self) -> impl Iterator<Item = Component> {
        let node = self.node.iter().flat_map(|_| Component::NODE);
        Component::CONTROL_PLANE.into_iter().chain(node)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    pub(crate) fn ca(&self) -> PathBuf {
        Pki::at(&self.dir.join("pki")).ca()
    }

    pub(crate) fn kubeconfig(&self, name: &str) -> PathBuf {
        self.dir.join("kubeconfigs").join(format!("{name}.yaml"))
    }

    /// Makes keys, certificates, and the kubeconfigs that use them.
    pub(crate) fn create_files(&self) -> Result<()> {
        let dir = self.dir.join("pki");
        let pki = Pki::at(&dir);
        pki.create(self.server_ip())?;
        for client in [
            "admin",
            Component::ControllerManager.name(),
            Component::Scheduler.name(),
            Component::Kwok.name(),
            Component::Kubelet.name(),
            Component::KubeProxy.name(),
        ] {
            let user = json!({"client-certificate": pki.certificate(client), "client-key": pki.key(client)});
            self.write_kubeconfig(client, &user)?;
        }
        Ok(())
    }

    /// Writes a kubeconfig with this user.
    pub(crate) fn write_kubeconfig(&self, name: &str, user: &serde_json::Value) -> Result<PathBuf> {
        let path = self.kubeconfig(name);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": {"server": self.server_url(), "certificate-authority": self.ca()}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "cluster", "user": name}}],
            "current-context": name,
        });
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        // JSON is YAML.
        folders::write_private(&path, &format!("{config:#}\n"))?;
        Ok(path)
    }

    /// The command line of a component. A real node's components start in the namespaces of this process.
    pub(crate) fn command(&self, component: Component, namespaces: Option<&Process>) -> Result<Command> {
        let (program, flags): (_, fn(&Self, &mut Command)) = match component {
            Component::Etcd => (&self.tools.etcd, Self::etcd),
            Component::ApiServer => (&self.tools.api_server, Self::api_server),
            Component::ControllerManager => (&self.tools.controller_manager, Self::controller_manager),
            Component::Scheduler => (&self.tools.scheduler, Self::scheduler),
            Component::Kwok => (&self.tools.kwok, Self::kwok),
            Component::Namespaces | Component::Containerd | Component::Kubelet | Component::KubeProxy => {
                let node = self.node.as_ref().context("the cluster has no real node")?;
                return node.command(self, component, namespaces);
            }
        };
        let mut command = Command::new(program);
        save_time(&mut command);
        if component == Component::ApiServer {
            // It has more to do than one processor can.
            command.env_remove("GOMAXPROCS");
        }
        flags(self, &mut command);
        Ok(command)
    }

    fn etcd(&self, command: &mut Command) {
        let Address { ip, etcd, etcd_peer, .. } = self.address;
        let client = format!("http://{ip}:{etcd}");
        let peer = format!("http://{ip}:{etcd_peer}");
        flag(command, "data-dir", self.dir.join("etcd"));
        flag(command, "listen-client-urls", &client);
        flag(command, "advertise-client-urls", &client);
        flag(command, "listen-peer-urls", &peer);
        flag(command, "initial-advertise-peer-urls", &peer);
        flag(command, "initial-cluster", format!("default={peer}"));
        // The data does not need to survive a power cut.
        command.arg("--unsafe-no-fsync");
        flag(command, "log-level", "warn");
    }

    fn api_server(&self, command: &mut Command) {
        let Address { ip, api_server, etcd, .. } = self.address;
        let server_ip = self.server_ip().to_string();
        let dir = self.dir.join("pki");
        let pki = Pki::at(&dir);
        flag(command, "etcd-servers", format!("http://{ip}:{etcd}"));
        flag(command, "bind-address", &server_ip);
        flag(command, "advertise-address", &server_ip);
        flag(command, "secure-port", api_server.to_string());
        if self.node.is_some() {
            flag(command, "kubelet-preferred-address-types", "InternalIP");
            flag(command, "kubelet-client-certificate", pki.certificate("admin"));
            flag(command, "kubelet-client-key", pki.key("admin"));
        } else {
            // Endpoints must not be loopback addresses, and no Pod here uses this Service.
            flag(command, "endpoint-reconciler-type", "none");
        }
        flag(command, "tls-cert-file", pki.certificate("api-server"));
        flag(command, "tls-private-key-file", pki.key("api-server"));
        flag(command, "client-ca-file", pki.ca());
        flag(command, "service-account-issuer", "https://kubernetes.default.svc.cluster.local");
        flag(command, "service-account-key-file", pki.service_account_public_key());
        flag(command, "service-account-signing-key-file", pki.key("service-account"));
        flag(command, "service-cluster-ip-range", SERVICE_RANGE);
        flag(command, "authorization-mode", "Node,RBAC");
        flag(command, "enable-admission-plugins", "NodeRestriction");
        flag(command, "allow-privileged", "true");
        // No rule routes a Service's address to its Pods, so API servers call webhooks at the addresses of the Pods.
        flag(command, "enable-aggregator-routing", "true");
        self.emulate(command);
        command.args(&self.api_server_flags);
    }

    fn controller_manager(&self, command: &mut Command) {
        self.client(command, Component::ControllerManager);
        let dir = self.dir.join("pki");
        flag(command, "service-account-private-key-file", Pki::at(&dir).key("service-account"));
        flag(command, "root-ca-file", self.ca());
        // Each controller has its own rights, as in production: the garbage collector's are part of what is tested.
        flag(command, "use-service-account-credentials", "true");
        flag(command, "controllers", format!("*,-{}", OMITTED_CONTROLLERS.join(",-")));
        // The default, 20 requests a second, makes it take 5 s to start and slows the deletion of many Pods.
        flag(command, "kube-api-qps", "1000");
        flag(command, "kube-api-burst", "1000");
        let grace = self.node_lease + LOST_AFTER;
        flag(command, "node-monitor-grace-period", format!("{}s", grace.as_secs()));
    }

    /// Flags that controller manager and scheduler have in common.
    fn client(&self, command: &mut Command, component: Component) {
        flag(command, "kubeconfig", self.kubeconfig(component.name()));
        flag(command, "leader-elect", "false");
        // No port, because no client connects.
        flag(command, "secure-port", "0");
        self.emulate(command);
    }

    fn scheduler(&self, command: &mut Command) {
        self.client(command, Component::Scheduler);
    }

    fn kwok(&self, command: &mut Command) {
        flag(command, "kubeconfig", self.kubeconfig(Component::Kwok.name()));
        // The nodes renew their leases, or they would count as lost.
        flag(command, "node-lease-duration-seconds", self.node_lease.as_secs().to_string());
        flag(command, "manage-all-nodes", "false");
        flag(command, "manage-nodes-with-annotation-selector", format!("{FAKE_NODE}={FAKE_NODE_VALUE}"));
        if let Some(selector) = &self.unplayed_pods {
            flag(command, "disregard-status-with-label-selector", selector);
        }
        for stage in &self.tools.kwok_stages {
            flag(command, "config", stage);
        }
    }

    fn emulate(&self, command: &mut Command) {
        if let Some(version) = &self.emulated_version {
            flag(command, "emulated-version", version);
        }
    }
}

/// The annotation that makes kwok handle a node.
pub(crate) const FAKE_NODE: &str = "kwok.x-k8s.io/node";
pub(crate) const FAKE_NODE_VALUE: &str = "fake";

/// Makes a program in Go that serves take less processor time.
pub(crate) fn save_time(command: &mut Command) {
    // Several control planes share a few processors, so they collect garbage less often and use more memory.
    command.env("GOGC", "400");
    // What most of them do is little: more threads spend more on waking each other than they gain.
    command.env("GOMAXPROCS", "1");
}

pub(crate) fn flag(command: &mut Command, name: &str, value: impl AsRef<OsStr>) {
    let mut argument = OsString::from(format!("--{name}="));
    argument.push(value);
    command.arg(argument);
}
