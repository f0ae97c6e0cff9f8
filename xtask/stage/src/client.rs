//! A client of a cluster on this machine.

use std::path::Path;

use anyhow::Result;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// A client by this kubeconfig. It uses no proxy, whatever the environment names.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
