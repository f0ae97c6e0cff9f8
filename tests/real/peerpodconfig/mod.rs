//! The PeerPodConfig controller deploys cloud-api-adaptor and the admission, and advertises capacity.

mod built;
mod capacity;
pub mod configuration;
mod policy;
