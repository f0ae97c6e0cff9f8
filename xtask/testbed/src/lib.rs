//! Everything around the operator, for tests, demo and measurements: nothing of it is a mock.
//!
//! - [`Testbed`]: a real control plane with the generated installation in it.
//! - [`Operator`]: the operator's program as it runs in a cluster, under the generated `ServiceAccount`'s own token and
//!   with [settings](MountedFolder) mounted as a kubelet mounts them.
//! - [`Caa`]: does what cloud-api-adaptor does, with its rights and no more.
//! - [`stand_in`]: an image for the DaemonSet of cloud-api-adaptor on a real node, whose program makes VMs as told.
//! - [`RealNode`]: what an operator that is a Pod needs around it; [`OperatorPods`]: that operator.
//! - [`Shell`]: commands as a user types them; [`docs`]: those of README.md and docs/.
//! - [`Pods`]: Pods on a fake node, which end as soon as they are deleted; [`Kubelet`]: a node whose Pods end when told.
//! - [`PodRunner`]: really runs Pods of the operator's own image, at addresses of their own on this machine.
//! - [`FakeNodes`]: further fake nodes, with labels.
//! - [`BringYourOwn`]: the pool of the provider byom.
//! - [`contract`]: the clouds that the contract's scenarios run on.
//! - [`repository`]: its folder, and cargo in it.
//! - [`strip()`]: a program without its debug information, for an image.
//! - [`Disk`]: one that can be full.
//! - [`Audit`]: what the API server was asked and what it answered.
//! - [`wait`]: conditions with deadlines.

pub mod byom_pool;
mod caa;
pub mod contract;
mod disk;
pub mod docs;
mod installation;
mod installed;
mod kubelet;
mod nodes;
mod operator;
mod operator_pods;
mod pod_runner;
mod pods;
mod real_node;
pub mod repository;
mod settings;
mod shell;
pub mod stand_in;
mod storage;
mod strip;

pub use byom_pool::BringYourOwn;
pub use caa::{Caa, Vm, peerpod_object, vm_name};
pub use disk::Disk;
pub use installation::{Options, Testbed};
pub use kubelet::Kubelet;
pub use nodes::FakeNodes;
pub use operator::{Operator, OperatorOptions};
pub use operator_pods::OperatorPods;
pub use pod_runner::PodRunner;
pub use pods::Pods;
pub use real_node::RealNode;
pub use settings::{MountedFolder, Settings};
pub use shell::Shell;
pub use stage::{Audit, Family, Metrics, Request, http, run_dir, wait};
pub use strip::strip;
