//! The admission webhook: turns Pods of one runtime class into peer pods.
//!
//! ```text
//! Pod ─► read what its containers ask for ─► size of the VM ─► JSON patch
//!        (those counted before: from the     (sizing)          (annotations say the size; cpu, memory and GPUs go from
//!        marker annotation)                                     the containers; the first one asks for one VM)
//! ```

pub mod marker;
pub mod mutate;
pub mod quantity;
pub mod sizing;

pub use mutate::{InvalidPod, Mutation, Options, Pod, mutate};
