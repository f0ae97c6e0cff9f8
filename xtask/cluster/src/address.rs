//! Addresses that no other program uses.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// How many ports are tried for each server.
const ATTEMPTS: u16 = 100;

/// The addresses of a cluster's servers.
///
/// Each cluster has a loopback address of its own in 127.0.0.0/8. So clusters that start at the same time don't race for ports,
/// and a server that restarts finds its port free: connections to it come from 127.0.0.1 and use no ports here.
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

/// A random loopback address (there are 16 million) outside of the range that other programs use.
pub fn loopback() -> Ipv4Addr {
    // A RandomState is keyed at random; this is the only use of it.
    let [_, _, _, _, _, b, c, d] = RandomState::new().hash_one(std::process::id()).to_be_bytes();
    // Other programs use 127.0.x.y.
    Ipv4Addr::new(127, b.max(1), c, d.clamp(1, 254))
}

/// Addresses of servers at which nothing listens, at one random loopback address. The first one has the usual port or a higher one,
/// each further one a higher port than the one before.
pub fn unused<const N: usize>(usual: u16) -> Result<[SocketAddr; N]> {
    let (ip, mut least) = (loopback(), usual);
    let mut addresses = [SocketAddr::from((ip, usual)); N];
    for address in &mut addresses {
        address.set_port(port(ip, least)?);
        least = address.port() + 1;
    }
    Ok(addresses)
}

/// The usual port of this address, or a higher one if a program listens on the usual port at every address.
pub fn port(ip: Ipv4Addr, usual: u16) -> Result<u16> {
    (usual..usual + ATTEMPTS)
        .find(|port| TcpListener::bind((ip, *port)).is_ok())
        .with_context(|| format!("no port of {ip} from {usual} to {} is free", usual + ATTEMPTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_addresses_differ_in_their_ports_alone() -> Result<()> {
        let [first, second] = unused(8080)?;
        assert!(first.ip() == second.ip() && first.port() >= 8080 && second.port() > first.port());
        Ok(())
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over() -> Result<()> {
        let address = Address::unused()?;
        let _taken = TcpListener::bind((address.ip, address.api_server))?;
        assert!(port(address.ip, address.api_server)? > address.api_server);
        Ok(())
    }
}
