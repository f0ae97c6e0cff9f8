//! A real Kubernetes control plane on one machine, for development and tests.

pub mod process;
pub mod progress;
