//! The clouds that tests and the demo run against, and how each is started.
//!
//! Each is the cloud's own software or its maker's stand-in for it, or, where there is none, a server on its maker's own types,
//! which judge each request. Every one gets its state in a folder of its own, so that many run side by side and none touches what
//! the machine itself has.

pub mod alibaba;
pub mod aws;
pub mod azure;
mod control;
pub mod docker;
pub mod gcp;
mod go_server;
mod http_relay;
pub mod ibm;
pub mod libvirt;
mod python;
pub mod sshd;
pub mod tls;
pub mod vsphere;

pub use control::Control;
pub use http_relay::{Does, HttpRelay, Seen};
