//! The controller of [`PeerPodConfig`](crate::api::v1alpha1::PeerPodConfig)s: cloud-api-adaptor on the selected nodes, the admission
//! of peer pods, and the number of VMs that each node advertises.
//!
//! ```text
//! watch ─► reconcile ─► capacity ─┐
//!                   ├─► adaptor ──┼─► findings ─► conditions ─► report
//!                   └─► admission ┘
//! ```
//!
//! A room is a folder: `adaptor/`, `admission/`, `capacity/`. It observes (reads), computes the desired state (pure), applies it
//! (writes), and returns findings, which become conditions. The adaptor uses the nodes and summaries of capacity; otherwise no room
//! knows another one.
//!
//! | file | what it does |
//! |---|---|
//! | `options.rs` | where the operator is, and what it deploys |
//! | `controller.rs` | the controller, and what runs beside it |
//! | `watches.rs` | which changes of the watched objects request a reconcile, and of which configurations |
//! | `configs.rs` | the configurations that the controller honours |
//! | `reconcile.rs` | one reconcile: calls one room after another, and reports |
//! | `rooms.rs` | the rooms together, and what they watch |
//! | `cleanup.rs` | removes everything of a configuration that is being deleted |
//! | `finalizer.rs` | sets and removes the finalizer |
//! | `garbage_collect.rs` | removes what is left of configurations whose finalizer was removed by force |
//! | `adaptor/` | cloud-api-adaptor on the selected nodes |
//! | `admission/` | what turns Pods into peer pods |
//! | `capacity/` | how many VMs each node may run |
//! | `resources/` | the wanted objects (pure) |
//! | `sources.rs` | the ConfigMap and the Secret of a configuration |
//! | `condition_view.rs` | what is read of the conditions of nodes and Pods |
//! | `selection.rs` | which nodes a configuration selects (pure) |
//! | `wanted.rs`, `apply.rs` | writes each object that differs from the wanted one, once |
//! | `drift.rs` | objects that others keep changing, which the operator leaves alone for a while (pure) |
//! | `takeover.rs` | takes over the fields of an object that others set |
//! | `findings.rs` | what rooms return (pure) |
//! | `conditions.rs` | the conditions of the status (pure) |
//! | `report.rs` | writes the status and the events |
//! | `qualified.rs` | Kubernetes' rule for qualified names (pure) |
//!
//! The controller honours only configurations in the operator's own namespace: the DaemonSet is privileged, so a configuration
//! elsewhere would let its author escape from that namespace. It reconciles one configuration at a time, since all of them share
//! the nodes.

pub mod adaptor;
pub mod admission;
mod apply;
pub mod capacity;
mod cleanup;
mod condition_view;
pub mod conditions;
mod configs;
mod controller;
mod drift;
mod finalizer;
mod findings;
mod garbage_collect;
mod options;
mod qualified;
mod reconcile;
mod report;
pub mod resources;
mod rooms;
pub mod selection;
mod sources;
mod takeover;
mod wanted;
mod watches;

pub use self::{
    controller::{NAME, NAMESPACE_PERMISSIONS, PERMISSIONS, run},
    options::{MountedSettings, Options},
};

/// The finalizer of a configuration: while it is there, nodes may advertise VMs for it.
pub const FINALIZER: &str = "peerpods.confidentialcontainers.org/config";
