//! The operator and its clouds: reaching them, their VMs, and the places where VMs may be.

mod alibabacloud;
mod aws;
mod azure;
mod byom;
mod check;
mod contract;
mod docker;
mod docker_tls;
mod far_host;
mod foreign;
mod former;
mod gcp;
mod ibm;
mod ibmcloud;
mod ibmcloud_region;
mod lists;
pub mod places;
mod powervs;
mod qemu;
mod vsphere;

use anyhow::{Result, bail};
use peerpod_operator::provider::{
    Claim, Cloud, Error, ErrorClass, InstanceId, OwnVm, Provider, Stage, ownership,
};

/// The VM with this identifier, proven to be this Pod's.
async fn own(provider: &dyn Provider, cloud: &Cloud, id: &str, pod: &str) -> Result<OwnVm> {
    let vm = provider.describe(&InstanceId::of(cloud, id)?, &Claim::default()).await?;
    Ok(ownership::verify(vm, pod, cloud.name_limit)?)
}

/// Fails unless the description of a VM failed with an error of this class.
fn is_doubt(what: &str, described: Result<Stage, Error>, class: ErrorClass) -> Result<()> {
    match described {
        Err(error) if error.class == class => Ok(()),
        described => bail!("{what}: {described:?}"),
    }
}
