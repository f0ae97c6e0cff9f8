//! IBM Cloud's VPC: answers that never count as absence, refusals, and the operator's credentials.

mod check;
mod deletion;
mod doubt;
mod identity;

use anyhow::Result;
use peerpod_operator::provider::ibmcloud::{ACTIONS, CLOUD};
use peers::ibm::REGION;
use testbed::Settings;

use super::ibm::Stand;

/// Another Pod's VM. It proves that the credentials can see pod VMs.
const OTHER_VM: &str = "podvm-other-1a2b3c4d";

async fn start() -> Result<Stand> {
    Stand::start(&CLOUD, &ACTIONS, "/vpc/", |peer| Settings::ibmcloud(peer, REGION)).await
}
