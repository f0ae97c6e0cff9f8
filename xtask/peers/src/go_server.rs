//! Starts the Go servers of `xtask/peers/`, which write their address to their log.

use std::{net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use cluster::{
    process::{Lifetime, Process},
    tools::{self, Module},
};

use crate::{HttpRelay, control::Control};

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A server behind a relay. All requests pass the relay, except those of its control.
pub(crate) struct GoServer {
    pub(crate) relay: HttpRelay,
    pub(crate) control: Control,
    _process: Process,
}

impl GoServer {
    /// Starts this program of the module with its log in `dir`, a folder of its own. Builds it first if needed.
    pub(crate) async fn start(module: &Module, program: &str, dir: &Path) -> Result<Self> {
        let mut command = Command::new(tools::program(module, program).await?);
        // The server's own files are in the folder, and are removed with it.
        command.env("TMPDIR", dir);
        let process = Process::start(program, &command, dir, Lifetime::Owned)?;
        let listens = || async {
            let log = std::fs::read_to_string(process.log())?;
            let line = log.lines().find_map(|line| line.strip_prefix("listening at "));
            Ok(line.context("it does not listen yet")?.parse::<SocketAddr>()?)
        };
        let address = process.wait_until("it listens", START_DEADLINE, listens).await?;
        let relay = HttpRelay::start(address).await?;
        let control = Control::new(format!("http://{address}/_control"));
        Ok(Self { relay, control, _process: process })
    }
}
