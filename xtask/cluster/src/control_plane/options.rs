//! The options of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use crate::process::Lifetime;

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The folder for its data, keys and logs. No other cluster may use it.
    pub dir: PathBuf,
    /// Whether it ends with the program that starts it.
    pub lifetime: Lifetime,
    /// An older Kubernetes to emulate, like `1.33`; `None`: the release itself.
    pub emulated_version: Option<String>,
    /// Further flags of the API server, like `--audit-log-path=FILE`.
    pub api_server_flags: Vec<String>,
    /// How many fake nodes it has from the start: `fake-0`, `fake-1`, …
    pub fake_nodes: usize,
    /// How long the lease of a fake node lasts, in whole seconds. kwok renews each lease four times in that time, which is much work
    /// for thousands of nodes. A node that does not renew counts as lost 10 s later.
    pub node_lease: Duration,
    /// A label selector of Pods that another program runs on the fake nodes, like `app=web`; `None`: kwok reports all Pods as running
    /// as soon as they exist.
    pub unplayed_pods: Option<String>,
    /// Whether it has a [real node](crate::node), too. The scheduler puts Pods there that ask for no particular node.
    pub real_node: bool,
}

/// The duration of a node's lease by Kubernetes' default.
pub const NODE_LEASE: Duration = Duration::from_secs(40);

impl ClusterOptions {
    /// The default cluster in this folder: it ends with this program and has no nodes.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            lifetime: Lifetime::Owned,
            emulated_version: None,
            api_server_flags: Vec::new(),
            fake_nodes: 0,
            node_lease: NODE_LEASE,
            unplayed_pods: None,
            real_node: false,
        }
    }
}
