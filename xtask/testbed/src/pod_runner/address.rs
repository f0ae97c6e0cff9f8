//! An address for a Pod on this machine.

use std::{net::Ipv4Addr, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

/// How many addresses are tried while others have them.
const ATTEMPTS: usize = 20;

/// When the system takes an address away by itself, in seconds: for programs that are killed before they do. No test
/// takes as long.
const LIFETIME: &str = "900";

/// An address that nobody else on this machine has, until it is dropped.
///
/// Endpoints must not be loopback addresses. It is of the range that is set aside for measurements between networks
/// (198.18.0.0/15, RFC 2544), which no network routes, so that it hides nobody's.
#[derive(Debug)]
pub(super) struct PodAddress(Ipv4Addr);

impl PodAddress {
    /// Takes one, for which this program must be root.
    pub(super) fn take() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let ip = Ipv4Addr::new(198, fastrand::u8(18..=19), fastrand::u8(..), fastrand::u8(1..255));
            let of_loopback = format!("{ip}/32");
            let arguments =
                ["add", &of_loopback, "dev", "lo", "valid_lft", LIFETIME, "preferred_lft", LIFETIME];
            match address(&arguments) {
                Ok(()) => return Ok(Self(ip)),
                // Whoever adds an address first has it; nothing else tells two programs apart.
                Err(problem) if problem.to_string().contains("already assigned") => {}
                Err(problem) if problem.to_string().contains("File exists") => {}
                Err(problem) => return Err(problem.context("giving a Pod an address, which takes root")),
            }
        }
        bail!("{ATTEMPTS} addresses at random are all taken: see `ip address show dev lo`")
    }

    pub(super) fn ip(&self) -> Ipv4Addr {
        self.0
    }
}

impl Drop for PodAddress {
    fn drop(&mut self) {
        // Fails only where somebody else took it away; else the system does it later.
        let _ = address(&["del", &format!("{}/32", self.0), "dev", "lo"]);
    }
}

fn address(arguments: &[&str]) -> Result<()> {
    let output =
        Command::new("ip").arg("address").args(arguments).output().context("running ip of iproute2")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip address {}: {}", arguments.join(" "), stderr.trim());
    Ok(())
}
