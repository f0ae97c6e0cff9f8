//! The PeerPod controller deletes VMs, and only those that it may delete.

mod crowd;
pub mod deletion;
mod developer_mode;
mod far_times;
mod garbage_collection;
pub mod refusals;
mod running_pod;
mod siblings;
mod small_objects;
mod stuck;
