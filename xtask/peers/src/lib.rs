//! The clouds that tests and the demo run against, and how each is started.
//!
//! None of them is written here: each is the cloud's own software, or its maker's stand-in for it. Every one gets its
//! state in a folder of its own, so that many run side by side and none touches what the machine itself has.

pub mod azure;
mod http_relay;
pub mod libvirt;
pub mod sshd;

pub use http_relay::{Does, HttpRelay, Seen};
