//! A real Kubernetes control plane on one machine, for development and tests.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use cluster::{Cluster, ClusterOptions};
//!
//! let dir = std::env::temp_dir().join("my-cluster");
//! let cluster = Cluster::start(&ClusterOptions { fake_nodes: 1, ..ClusterOptions::new(&dir) }).await?;
//! println!("KUBECONFIG={}", cluster.kubeconfig().display());
//! # Ok(())
//! # }
//! ```
//!
//! etcd, API server, controller manager and scheduler are the real ones, built from pinned sources by [`tools`]. Fake
//! nodes have kwok for a kubelet: a Pod bound to one of them is said to run, and goes when it is deleted.
//! A [real node](node), which runs what Pods say, is there if asked for and needs root; nothing else here does. Any
//! number of clusters can run side by side. [`named`] keeps clusters that outlive the program which started them;
//! [`process`] is what all programs are started with.

pub mod address;
mod component;
mod control_plane;
pub mod folders;
pub mod named;
pub mod node;
pub mod packages;
mod pki;
pub mod process;
pub mod progress;
pub mod tools;
pub mod wait;

pub use component::Component;
pub use control_plane::{Cluster, ClusterOptions, NODE_LEASE};
