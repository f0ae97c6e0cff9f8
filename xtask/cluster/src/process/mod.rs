//! Child processes that never outlive their purpose.
//!
//! An [`Owned`](Lifetime::Owned) process dies with the program that started it, even if that program is killed: the kernel sends it
//! SIGKILL (`PR_SET_PDEATHSIG`, set by util-linux' `setpriv`). A [`Detached`](Lifetime::Detached) one stays. Its [`Identity`] is kept
//! in a file and finds it again later, and never another process with the same pid.
//!
//! That is true for the process itself, not for its children: a shell script should `exec` the program that it runs.
//!
//! Output goes to `NAME.log` in a folder of the caller's choice; every failure quotes the end of it.

mod end;
mod identity;
mod log;
mod start;
mod wait_until;

use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use rustix::process::Signal;

pub(crate) use self::end::wait_for_all;
use self::end::{KILL_DEADLINE, wait_for_end};
pub use self::identity::Identity;
use self::start::{adopt, wrap};

/// The event that ends a process besides [`Process::stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// The end of the program that started it, for whatever reason, or dropping its [`Process`].
    Owned,
    /// Nothing: it runs in a session of its own.
    Detached,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// Only a child's status is known.
    Ended(Option<ExitStatus>),
}

/// A supervised process.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    lifetime: Lifetime,
    identity: Identity,
    /// Signals use it, so that they can't reach a later process with the same pid.
    handle: OwnedFd,
    state: watch::Receiver<State>,
    waiter: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts `command`, with its output appended to `NAME.log` in `log_dir` (created if need be) and no input.
    ///
    /// Program, arguments, environment additions and working folder are taken from `command`; its stdio is not.
    pub fn start(name: &str, command: &Command, log_dir: &Path, lifetime: Lifetime) -> Result<Self> {
        fs::create_dir_all(log_dir)
            .with_context(|| format!("creating the log folder {}", log_dir.display()))?;
        let log = log_dir.join(format!("{name}.log"));
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening the log {}", log.display()))?;

        let mut wrapped = wrap(command, lifetime);
        wrapped.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);

        // The kernel ties PDEATHSIG to the thread that started the child, so the thread that starts it also waits for it.
        let (started, start) = mpsc::sync_channel(1);
        let (ended, state) = watch::channel(State::Running);
        let waiter = thread::Builder::new().name(format!("wait {name}")).spawn(move || {
            let adopted =
                wrapped.spawn().map_err(anyhow::Error::from).and_then(|child| Ok((adopt(&child)?, child)));
            match adopted {
                Ok((handle, mut child)) => {
                    // The receiver waits for this one message and can't be gone.
                    let _ = started.send(Ok(handle));
                    let status = child.wait().ok();
                    ended.send_replace(State::Ended(status));
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
        let (identity, handle) =
            start.recv().context("the thread that starts it ended").flatten().with_context(|| {
                format!(
                    "starting {name} ({} through setpriv and setsid of util-linux)",
                    Path::new(command.get_program()).display()
                )
            })?;
        Ok(Self { name: name.to_owned(), log, lifetime, identity, handle, state, waiter: Some(waiter) })
    }

    /// Finds a detached process again; none if it has ended.
    pub fn find(name: &str, identity: &Identity, log_dir: &Path) -> Result<Option<Self>> {
        let pid = Pid::from_raw(identity.pid).context("pid 0 is no process")?;
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(None);
        };
        // This handle was opened before the check, so it can't be a later process's.
        if !identity.is_running() {
            return Ok(None);
        }
        let watched = handle.try_clone()?;
        let (ended, state) = watch::channel(State::Running);
        let waiter = thread::Builder::new().name(format!("wait {name}")).spawn(move || {
            if wait_for_end(&watched, None) {
                ended.send_replace(State::Ended(None));
            }
        })?;
        Ok(Some(Self {
            name: name.to_owned(),
            log: log_dir.join(format!("{name}.log")),
            lifetime: Lifetime::Detached,
            identity: identity.clone(),
            handle,
            state,
            waiter: Some(waiter),
        }))
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file with its standard output and error.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What finds it again later.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The process id. After its end, another process may get it.
    pub fn pid(&self) -> i32 {
        self.identity.pid
    }

    /// Whether it has not ended yet (a paused process runs).
    pub fn is_running(&self) -> bool {
        matches!(*self.state.borrow(), State::Running)
    }

    /// Sends a signal: `TERM`, `KILL`, `STOP` to pause, `CONT` to go on, …
    pub fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.handle, signal)
            .with_context(|| format!("sending {signal:?} to {}, pid {}", self.name, self.identity.pid))
    }

    /// Waits for its end. Returns the status of a process that this program started, but not that of a found one.
    pub async fn ended(&self) -> Option<ExitStatus> {
        let mut state = self.state.clone();
        match state.wait_for(|state| matches!(state, State::Ended(_))).await.as_deref() {
            Ok(State::Ended(status)) => *status,
            // The waiting thread failed.
            Ok(State::Running) | Err(_) => None,
        }
    }

    /// Ends it: SIGTERM, and SIGKILL if it still runs after `grace`. Succeeds if it has already ended.
    pub async fn stop(&self, grace: Duration) -> Result<Option<ExitStatus>> {
        if self.is_running() {
            // A paused process gets SIGTERM only when it continues. Both signals fail only if it has just ended.
            let _ = self.signal(Signal::TERM).and_then(|()| self.signal(Signal::CONT));
            if tokio::time::timeout(grace, self.ended()).await.is_err() {
                self.kill().await?;
            }
        }
        Ok(self.ended().await)
    }

    /// Handles of the processes that it has started and that have not ended, for [`wait_for_all`].
    pub(crate) fn children(&self) -> Vec<OwnedFd> {
        let pid = self.identity.pid;
        let pids = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let pids = pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
    }

    /// Kills it without a chance to clean up. Succeeds if it has already ended.
    pub async fn kill(&self) -> Result<()> {
        if self.is_running() {
            // This fails only if it has just ended.
            let _ = self.signal(Signal::KILL);
            tokio::time::timeout(KILL_DEADLINE, self.ended())
                .await
                .map_err(|_| anyhow!("{} (pid {}) survived SIGKILL", self.name, self.identity.pid))?;
        }
        Ok(())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.identity.pid)
    }
}

impl Drop for Process {
    /// Kills an owned process that still runs, and waits until it is gone.
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Detached {
            return;
        }
        if self.is_running() {
            // This fails only if it has just ended.
            let _ = self.signal(Signal::KILL);
        }
        if wait_for_end(&self.handle, Some(KILL_DEADLINE))
            && let Some(waiter) = self.waiter.take()
        {
            // The thread reaps the child and has already reported a panic of its own.
            let _ = waiter.join();
        }
    }
}
