//! The clouds that the contract's scenarios run on, each started for itself.

mod aws;
mod libvirt;

use std::{fs, path::Path};

use anyhow::{Result, bail};
use peerpod_operator::{
    provider::{
        CATALOGUE,
        contract::{Cannot, Peer, Tally, memory::Memory, run},
    },
    settings::{Folders, Raw, Snapshot},
};

/// Their names. A new cloud adds a line here and in [`start`].
pub const PROVIDERS: [&str; 3] = ["memory", "libvirt", "aws"];

/// Starts the cloud of this name.
async fn start(provider: &str) -> Result<Box<dyn Peer>> {
    Ok(match provider {
        "memory" => Box::new(Memory::default()),
        "aws" => Box::new(aws::Aws::start().await?),
        "libvirt" => Box::new(libvirt::Libvirt::start().await?),
        _ => bail!("there is no contract test for {provider}; there is one for {}", PROVIDERS.join(", ")),
    })
}

/// Starts the cloud of this name, and runs all scenarios on it. Tells each one's name and end.
pub async fn keep(provider: &str, tell: impl FnMut(&'static str, &Result<(), Cannot>)) -> Result<Tally> {
    Ok(run(&*start(provider).await?, tell).await)
}

/// Settings as the operator reads them, from two folders in `dir`.
fn snapshot(dir: &Path, settings: &[(&str, &str)], credentials: &[(&str, &str)]) -> Result<Snapshot> {
    let folder = |name: &str, files: &[(&str, &str)]| {
        let folder = dir.join(name);
        fs::create_dir(&folder)?;
        files.iter().try_for_each(|(name, content)| fs::write(folder.join(name), content))?;
        Ok::<_, anyhow::Error>(folder)
    };
    let folders = Folders {
        settings: folder("settings", settings)?,
        credentials: Some(folder("credentials", credentials)?),
    };
    Ok(Snapshot::parse(&Raw::read(&folders)?, CATALOGUE)?)
}

fn failed(error: anyhow::Error) -> Cannot {
    Cannot::Failed(error.into())
}
