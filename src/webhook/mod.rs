//! The admission webhook: turns Pods of one runtime class into peer pods.
//!
//! ```text
//! Pod ─► read what its containers ask for ─► size of the VM ─► JSON patch
//!        (those counted before: from the     (sizing)          (annotations: the size; cpu, memory and GPUs are removed
//!        marker annotation)                                     from the containers; the first one requests one VM)
//! ```

pub mod certificates;
pub mod marker;
pub mod metrics;
pub mod mutate;
pub mod review;
pub mod server;
pub mod sizing;

pub use mutate::{InvalidPod, Mutation, Options, Pod, mutate};

/// Where reviews of Pods are sent.
pub const PATH: &str = "/mutate-v1-pod";

/// The most containers, and init containers, of a Pod.
pub const MOST_CONTAINERS: usize = 500;
