//! The network of a node, its Pods and this machine.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::component::SERVICE_RANGE;

/// How many subnets to try.
const ATTEMPTS: usize = 50;

/// Makes the bridge in the network namespace of process `$1`, and a veth pair from it to this machine.
///
/// The node has a default route, as any node: without a route the kernel would not apply kube-proxy's rules to programs on the
/// node's network, and cloud-api-adaptor looks for the interface of the default route. Traffic to Services has a
/// route of its own. All other traffic fails at once.
const CONNECT: &str = r#"set -e
PATH=$PATH:/usr/sbin:/sbin
pid=$1 interface=$2 node=$3 host=$4 services=$5
inside() { nsenter --target "$pid" --net "$@"; }
inside ip link set lo up
inside ip link add pods type bridge
inside ip address add "$node" dev pods
inside ip link set pods up
ip link add "$interface" type veth peer name host netns "$pid"
inside ip link set host master pods up
ip address add "$host" dev "$interface"
ip link set "$interface" up
inside ip route add default via "${host%/*}" dev pods
inside ip route add "$services" via "${host%/*}" dev pods
inside ip route add unreachable 0.0.0.0/1
inside ip route add unreachable 128.0.0.0/1
inside sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
"#;

/// A cluster's subnet, 10.X.Y.0/24. The node (.1), this machine (.2) and the Pods (from .16) are neighbours on a bridge in the node's
/// network namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Network {
    x: u8,
    y: u8,
}

impl Network {
    /// A random subnet that this machine has no route to.
    pub(crate) fn unused() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            // A RandomState is keyed at random; this is the only use of it. The lower half is the range of Services.
            let [x, y, ..] = RandomState::new().hash_one(std::process::id()).to_be_bytes();
            let network = Self { x: x | 0x80, y };
            let routes =
                output(Command::new("ip").args(["-4", "route", "show", "to", "match", &network.subnet()]))?;
            if routes.lines().all(|route| route.starts_with("default ")) {
                return Ok(network);
            }
        }
        anyhow::bail!("this machine has routes to all of {ATTEMPTS} random subnets in 10.128.0.0/9")
    }

    /// The node's address.
    pub(crate) fn node(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// This machine's address for Pods.
    pub(crate) fn host(&self) -> Ipv4Addr {
        self.address(2)
    }

    /// The first and the last address for Pods.
    pub(crate) fn pods(&self) -> (Ipv4Addr, Ipv4Addr) {
        (self.address(16), self.address(254))
    }

    pub(crate) fn subnet(&self) -> String {
        format!("{}/24", self.address(0))
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.x, self.y, last)
    }

    /// This machine's end of the veth pair.
    fn interface(&self) -> String {
        format!("node-{}-{}", self.x, self.y)
    }

    /// Sets the network up in the namespace of the process with this pid.
    pub(crate) fn connect(&self, pid: i32) -> Result<()> {
        let mut command = Command::new("sh");
        command.args(["-c", CONNECT, "sh", &pid.to_string(), &self.interface()]);
        command.args([self.node(), self.host()].map(|address| format!("{address}/24")));
        command.arg(SERVICE_RANGE);
        output(&mut command).context("connecting the node's network").map(drop)
    }

    /// Removes the veth pair, the namespace's last link to this machine. Succeeds if it is already gone.
    pub(crate) fn disconnect(&self) {
        // It fails if the namespace ended first and removed the pair.
        let _ = Command::new("ip")
            .args(["link", "delete", &self.interface()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// The output of a short command.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {name}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed ({}): {}", output.status, complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_is_apart_from_services_and_names_its_cable() {
        let network = Network { x: 255, y: 255 };
        assert_eq!(network.subnet(), "10.255.255.0/24");
        assert_eq!(network.host().to_string(), "10.255.255.2");
        assert!(network.interface().len() <= 15, "the kernel takes no longer name");
    }
}
