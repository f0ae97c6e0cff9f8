//! Addresses that nobody else uses.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// How many ports are tried for each server.
const ATTEMPTS: u16 = 100;

/// Where a cluster's servers listen.
///
/// Each cluster has a loopback address of its own in 127.0.0.0/8, so that clusters that start at the same time don't race
/// for ports, and a server that restarts finds its port free: connections to it come from 127.0.0.1 and use no ports here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) ip: Ipv4Addr,
    pub(crate) api_server: u16,
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
}

impl Address {
    /// A random address with ports that nothing listens on.
    pub(crate) fn unused() -> Result<Self> {
        let ip = loopback();
        Ok(Self { ip, api_server: port(ip, 6443)?, etcd: port(ip, 2379)?, etcd_peer: port(ip, 2579)? })
    }
}

/// A random loopback address (there are 16 million), apart from where other programs are.
pub fn loopback() -> Ipv4Addr {
    // A RandomState is keyed at random; this is the only use of it.
    let [_, _, _, _, _, b, c, d] = RandomState::new().hash_one(std::process::id()).to_be_bytes();
    // 127.0.x.y is where other programs are.
    Ipv4Addr::new(127, b.max(1), c, d.clamp(1, 254))
}

/// The usual port, or one above where a program listens on it at every address.
fn port(ip: Ipv4Addr, usual: u16) -> Result<u16> {
    (usual..usual + ATTEMPTS)
        .find(|port| TcpListener::bind((ip, *port)).is_ok())
        .with_context(|| format!("no port of {ip} from {usual} to {} is free", usual + ATTEMPTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_passed_over() -> Result<()> {
        let address = Address::unused()?;
        let _taken = TcpListener::bind((address.ip, address.api_server))?;
        assert!(port(address.ip, address.api_server)? > address.api_server);
        Ok(())
    }
}
