//! The controller of [`PeerPodConfig`](crate::api::v1alpha1::PeerPodConfig)s: cloud-api-adaptor on the selected nodes, the admission
//! of peer pods, and the number of VMs that each node advertises.
//!
//! | file | what it does |
//! |---|---|
//! | `controller.rs` | the watches, and the controller that they feed |
//! | `watches.rs` | which changes of the watched objects request a reconcile |
//! | `reconcile.rs` | one reconcile; `adaptor.rs` and `admission.rs` are its two halves |
//! | `observe.rs` | reads settings, the runtime class, and what others installed |
//! | `preconditions.rs` | why cloud-api-adaptor is not deployed |
//! | `resources/` | the wanted objects (pure) |
//! | `capacity/` | how many VMs each node may run (pure), and the writes to nodes |
//! | `apply.rs` | writes each object that differs from the wanted one, once |
//! | `drift.rs` | objects that others keep changing, which the operator leaves alone for a while (pure) |
//! | `conditions.rs` | the conditions of the status (pure) |
//! | `report.rs` | writes the status and the events |
//! | `settings.rs` | conditions about cloud-api-adaptor's settings (pure) |
//! | `webhook_resources.rs` | what all webhooks share: the Secret of their certificate and the Lease for its rotation |
//! | `policies.rs` | whether the API server supports admission policies, and the watch of them |
//! | `handover.rs` | which admission stays until another one is ready |
//! | `finalizer.rs` | the finalizer, and the clean-up before its release |
//! | `garbage_collect.rs` | removes what is left of configurations whose finalizer was removed by force |
//! | `qualified.rs` | Kubernetes' rule for qualified names (pure) |
//!
//! The controller honours only configurations in the operator's own namespace: the DaemonSet is privileged, so a configuration
//! elsewhere would let its author escape from that namespace. It reconciles one configuration at a time, since all of them share
//! the nodes.

mod adaptor;
mod admission;
mod apply;
pub mod capacity;
pub mod conditions;
mod controller;
mod drift;
mod finalizer;
mod garbage_collect;
mod handover;
mod observe;
mod policies;
mod preconditions;
mod qualified;
mod reconcile;
mod report;
pub mod resources;
mod settings;
mod watches;
pub mod webhook_resources;

use self::controller::Context;
pub use self::{
    controller::{NAME, NAMESPACE_PERMISSIONS, Options, PERMISSIONS, run},
    settings::Mounted,
};

/// The finalizer of a configuration: while it is there, nodes may advertise VMs for it.
pub const FINALIZER: &str = "peerpods.confidentialcontainers.org/config";
