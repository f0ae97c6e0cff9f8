//! How a process is started so that it has its lifetime.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Identity, Lifetime};

/// The same command, wrapped in the program that gives it its lifetime. Both wrappers exec the command, so the pid stays.
pub(super) fn wrap(command: &Command, lifetime: Lifetime) -> Command {
    let mut wrapped = match lifetime {
        Lifetime::Owned => {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--pdeathsig", "KILL", "--"]);
            // A process group of its own: Ctrl-C reaches only the parent, which then ends things in order.
            std::os::unix::process::CommandExt::process_group(&mut setpriv, 0);
            setpriv
        }
        Lifetime::Detached => Command::new("setsid"),
    };
    wrapped.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

/// Identity and handle of a child. No thread may have waited for it yet, so that its pid is still its own.
pub(super) fn adopt(child: &Child) -> Result<(Identity, OwnedFd)> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("opening its pidfd")?;
    let (identity, _) = Identity::of(pid.as_raw_nonzero().get()).context("reading its state in /proc")?;
    Ok((identity, handle))
}
