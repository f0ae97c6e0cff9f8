//! The clouds that the contract's scenarios run on, each started for itself.

mod aws;
mod azure;
mod gcp;
mod libvirt;

use anyhow::{Result, bail};
use peerpod_operator::provider::contract::{Cannot, Peer, Tally, memory::Memory, run};

/// Their names. A new cloud adds a line here and in [`start`].
pub const PROVIDERS: [&str; 5] = ["memory", "libvirt", "aws", "azure", "gcp"];

/// Starts the cloud of this name.
async fn start(provider: &str) -> Result<Box<dyn Peer>> {
    Ok(match provider {
        "memory" => Box::new(Memory::default()),
        "aws" => Box::new(aws::Aws::start().await?),
        "azure" => Box::new(azure::Azure::start().await?),
        "libvirt" => Box::new(libvirt::Libvirt::start().await?),
        "gcp" => Box::new(gcp::Gcp::start().await?),
        _ => bail!("there is no contract test for {provider}; there is one for {}", PROVIDERS.join(", ")),
    })
}

/// Starts the cloud of this name, and runs all scenarios on it. Tells each one's name and end.
pub async fn keep(provider: &str, tell: impl FnMut(&'static str, &Result<(), Cannot>)) -> Result<Tally> {
    Ok(run(&*start(provider).await?, tell).await)
}

fn failed(error: anyhow::Error) -> Cannot {
    Cannot::Failed(error.into())
}
