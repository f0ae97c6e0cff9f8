//! An address for a Pod on this machine.

use std::{net::Ipv4Addr, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

/// How many addresses to try while other programs have them.
const ATTEMPTS: usize = 20;

/// The time after which the system removes an address by itself, in seconds. It is for programs that are killed before they remove it.
/// No test takes as long.
const LIFETIME: &str = "900";

/// An address that no other program on this machine has, until it is dropped.
///
/// Endpoints must not be loopback addresses. This one is from the range for measurements between networks (198.18.0.0/15, RFC 2544). No
/// network routes that range, so the address hides no real one.
#[derive(Debug)]
pub(super) struct PodAddress(Ipv4Addr);

impl PodAddress {
    /// Takes an address. Needs root.
    pub(super) fn take() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let ip = Ipv4Addr::new(198, fastrand::u8(18..=19), fastrand::u8(..), fastrand::u8(1..255));
            let of_loopback = format!("{ip}/32");
            let arguments =
                ["add", &of_loopback, "dev", "lo", "valid_lft", LIFETIME, "preferred_lft", LIFETIME];
            match address(&arguments) {
                Ok(()) => return Ok(Self(ip)),
                // The first program that adds an address has it. There is no other arbiter.
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
        // This fails only if another program removed the address. Otherwise the system removes it later.
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
