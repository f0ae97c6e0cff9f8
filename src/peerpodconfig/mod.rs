//! The controller of [`PeerPodConfig`](crate::api::v1alpha1::PeerPodConfig)s: cloud-api-adaptor on the selected nodes, the
//! admission of peer pods, and the number of VMs that each node advertises.

pub mod build;
pub mod capacity;
