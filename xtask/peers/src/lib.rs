//! The clouds of tests and demo, and how to start each.
//!
//! Each is the cloud's own software or its maker's stand-in. If there is neither, it is a server on its maker's own types, which check
//! each request. Each one has its state in a folder of its own. So many run side by side, and none touches the machine's own software.

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

use anyhow::Result;
use cluster::tools;

pub use control::Control;
pub use http_relay::{Does, HttpRelay, Seen};

/// Installs and builds all clouds but libvirt, so that `start` need not. That takes minutes.
pub async fn install() -> Result<()> {
    aws::environment().await?;
    for (module, program) in [
        (&azure::MODULE, azure::PROGRAM),
        (&gcp::MODULE, gcp::PROGRAM),
        (&ibm::MODULE, ibm::PROGRAM),
        (&alibaba::MODULE, alibaba::PROGRAM),
        (&vsphere::MODULE, vsphere::PROGRAM),
    ] {
        tools::program(module, program).await?;
    }
    docker::Podman::install()
}
