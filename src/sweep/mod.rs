//! The sweep: pod VMs in a cloud that no PeerPod tracks, and PeerPods whose VM is gone or off while their Pod runs.
//!
//! ```text
//! every interval, for each cloud, while this process leads:
//! Provider::list ─► PeerPods, Pods ─┬► plan (pure) ─► report: metrics, log, `status`
//!                                   │      └► with --sweep=delete: look again at all three, then delete
//!                                   └► lost (pure) ─► after an interval: ask the cloud and the Pod
//!                                          ├► findings for the controller of PeerPods, metrics, `status`
//!                                          └► an event on the Pod, and with --lost-vms=delete-pod its eviction
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `controller.rs`, `sweeper.rs`, `options.rs` | the rounds of `run`, what they share, and how they work |
//! | `search.rs` | reads clouds and cluster, and deletes what is provably this cluster's |
//! | `candidates.rs`, `first_seen.rs`, `plan.rs` | what is untracked, since when, and what to do about it (pure) |
//! | `lost.rs` | PeerPods whose VM is not as expected (pure), for their controller |
//! | `suspects.rs` | remembers them from one listing to the next, and what inspections found out |
//! | `confirm.rs` | inspects one: asks the cloud and the Pod whether that is so |
//! | `lost_pods.rs` | acts on Pods that lost their VM: events and evictions |
//! | `by_hand.rs` | one search that a person starts |
//! | `snapshot.rs` | what `status` shows |
//!
//! The sweep lists the cloud first and reads the cluster afterwards, so a VM that is made meanwhile is not in the list. A listing
//! that fails on any page proves nothing and changes nothing.

#[cfg(feature = "cli")]
mod by_hand;
mod candidates;
mod confirm;
mod controller;
mod first_seen;
mod lost;
mod lost_pods;
mod options;
mod plan;
mod search;
mod snapshot;
mod suspects;
mod sweeper;
#[cfg(test)]
mod tests;

#[cfg(feature = "cli")]
pub(crate) use self::{
    by_hand::ByHand,
    search::{Problem, Search},
};
pub use self::{
    lost_pods::EVICTIONS,
    options::{LostVms, Mode, Options},
    plan::SweepVerdict,
    snapshot::{CloudSnapshot, LostVm, MOST_SHOWN, Published, Snapshot, Untracked},
    sweeper::Sweeper,
};
