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
//! etcd, API server, controller manager and scheduler are the real ones, built from pinned sources by [`tools`]. kwok is the kubelet of
//! the fake nodes: it reports a Pod bound to one of them as running, and removes it when it is deleted. A [real node](node) runs its
//! Pods. It is optional and needs root; nothing else here does. Any number of clusters can run side by side. [`named`] keeps clusters
//! that outlive the program which started them. [`process`] starts all programs.

pub mod address;
pub mod clients;
mod component;
mod control_plane;
pub mod folders;
pub mod named;
pub mod node;
pub mod packages;
mod pki;
pub mod process;
pub mod progress;
pub mod proxies;
pub mod tools;
pub mod wait;

pub use component::Component;
pub use control_plane::{Cluster, ClusterOptions, NODE_LEASE};
