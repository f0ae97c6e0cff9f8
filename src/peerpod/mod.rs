//! The PeerPod controller: when a Pod is gone and its VM is not, delete the VM, then release the finalizer.
//!
//! ```text
//! watch ─► store, index ─► observe ─► decide ─► apply ─► report
//!                          (reads)    (pure)    (one     (condition, event:
//!                                               effect)   only what changed)
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `controller.rs`, `options.rs` | the watches, and the controller that they feed; how it works |
//! | `reconcile.rs` | one reconcile: observe, decide, apply, report |
//! | `observe.rs`, `pod.rs`, `object.rs` | read what the decision depends on |
//! | `trim.rs` | what is kept in memory of a PeerPod |
//! | `index.rs`, `relations.rs` | which PeerPods share a Pod or a VM |
//! | `claims.rs` | what else may need the VM of a PeerPod |
//! | `findings.rs` | what the sweep found out about PeerPods |
//! | `decide.rs` | every rule (pure) |
//! | `apply.rs` | the two writes to PeerPods |
//! | `outcome.rs` | what the log and the status say of the end of a reconcile |
//! | `reasons.rs` | why a person has to know of a PeerPod, and what the condition says |
//! | `conditions.rs`, `report.rs` | conditions and events |
//! | `parking.rs`, `queue.rs` | how many PeerPods the operator works on at once at each cloud, and which wait for their turn |
//! | `pod_states.rs` | since when Pods are known to terminate, and since when cloud-api-adaptor may clean up VMs itself |
//! | `report_tracker.rs` | which deletions are slow, and what was reported about each PeerPod |
//! | `trackers.rs` | all that is remembered of PeerPods between reconciles, and when it is forgotten |
//! | `requeue.rs`, `requeue_policy.rs`, `pod_watch.rs` | when a PeerPod is reconciled again: on request, by a timer, after a change of its Pod |
//!
//! A normal deletion reads the owner Pod once, asks the cloud, deletes the VM, observes its absence and releases the finalizer
//! by one JSON patch. That patch is its only write. A reconcile never sleeps: it ends, and a watch or a timer starts the next one.
//!
//! Two processes can act at once, for example after the leader's host was suspended. That does no harm: each proves for itself
//! that it may delete the VM, and a second deletion of a VM does nothing.

mod apply;
mod claims;
pub mod conditions;
mod controller;
pub mod decide;
mod findings;
mod index;
pub(crate) mod object;
mod observe;
mod options;
mod outcome;
mod parking;
pub(crate) mod pod;
mod pod_states;
mod pod_watch;
mod queue;
pub mod reasons;
mod reconcile;
mod relations;
mod report;
mod report_tracker;
mod requeue;
pub mod requeue_policy;
mod trackers;
pub(crate) mod trim;

pub(crate) use self::controller::{PEERPOD, Shared};
pub use self::{
    controller::{NAME, PERMISSIONS, PeerPods},
    decide::PeerPodFinding,
    findings::PeerPodFindings,
    options::{MOST_CONCURRENT, Options},
    reasons::LostState,
};
