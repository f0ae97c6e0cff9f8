//! Child processes that never outlive their purpose.
//!
//! An [`Owned`](Lifetime::Owned) process dies with the program that started it, even if that program is killed: the kernel sends it
//! SIGKILL (`PR_SET_PDEATHSIG`, set by util-linux' `setpriv`). A [`Detached`](Lifetime::Detached) one stays. Its [`Identity`] is kept
//! in a file and finds it again later, and never another process with the same pid.
//!
//! That is true for the process itself, not for its children: a shell script should `exec` the program that it runs.
//!
//! Output goes to `NAME.log` in a folder of the caller's choice; every failure quotes the end of it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

pub use rustix::process::Signal;

/// How often a wait checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process may take to vanish after SIGKILL.
const KILL_DEADLINE: Duration = Duration::from_secs(30);
/// How much of a log a failure quotes.
const TAIL_LINES: usize = 15;
const TAIL_BYTES: u64 = 16 * 1024;

/// The event that ends a process besides [`Process::stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// The end of the program that started it, for whatever reason, or dropping its [`Process`].
    Owned,
    /// Nothing: it runs in a session of its own.
    Detached,
}

/// Identifies a process among all of this machine, past and future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// When it was started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub started: u64,
    /// The boot that these ticks count from: `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
}

impl Identity {
    /// The identity of the process that has this pid now, and its state letter.
    pub(crate) fn of(pid: i32) -> Option<(Self, char)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = parse_stat(&stat)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some((Self { pid, started, boot }, state))
    }

    /// The identity of the running process that has this pid now. A zombie does not run.
    pub(crate) fn of_running(pid: i32) -> Option<Self> {
        Self::of(pid).filter(|(_, state)| !matches!(state, 'Z' | 'X')).map(|(identity, _)| identity)
    }

    /// Whether this very process runs.
    pub fn is_running(&self) -> bool {
        Self::of_running(self.pid).as_ref() == Some(self)
    }
}

/// State and start time from the text of `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    // The second field, the command, is in parentheses and may itself hold blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
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

    /// Calls `probe` until it succeeds. If the deadline passes or the process ends before that, the error contains `what` it waited
    /// for, the last error of `probe`, and the end of the log.
    pub async fn wait_until<T, F, P>(&self, what: &str, deadline: Duration, mut probe: F) -> Result<T>
    where
        F: FnMut() -> P,
        P: Future<Output = Result<T>>,
    {
        let until = Instant::now() + deadline;
        let mut reason = anyhow!("no answer yet");
        loop {
            tokio::select! {
                // Check first whether this process has ended: then another one at its address might answer the probe.
                biased;
                status = self.ended() => {
                    let status = status.map_or_else(|| "it has ended".to_owned(), |status| status.to_string());
                    bail!("{} ended while waiting until {what}: {status}\n{}", self.name, self.log_tail());
                }
                answer = timeout_at(until, probe()) => match answer {
                    Ok(Ok(value)) => return Ok(value),
                    Ok(Err(error)) => reason = error,
                    Err(_) => {}
                }
            }
            if Instant::now() >= until {
                bail!("waited {deadline:?} in vain until {what}: {reason:#}\n{}", self.log_tail());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The last lines of its log, with a heading that names the file; for error messages.
    pub fn log_tail(&self) -> String {
        match tail(&self.log) {
            Ok(lines) => format!("--- the end of {} ---\n{lines}", self.log.display()),
            Err(error) => format!("--- {} can't be read: {error} ---", self.log.display()),
        }
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

/// The same command, wrapped in the program that gives it its lifetime. Both wrappers exec the command, so the pid stays.
fn wrap(command: &Command, lifetime: Lifetime) -> Command {
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
fn adopt(child: &Child) -> Result<(Identity, OwnedFd)> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).context("opening its pidfd")?;
    let (identity, _) = Identity::of(pid.as_raw_nonzero().get()).context("reading its state in /proc")?;
    Ok((identity, handle))
}

/// Waits until all these processes have ended.
pub(crate) async fn wait_for_all(handles: Vec<OwnedFd>) -> Result<()> {
    let ended = move || handles.iter().all(|handle| wait_for_end(handle, Some(KILL_DEADLINE)));
    ensure!(tokio::task::spawn_blocking(ended).await?, "a process did not end within {KILL_DEADLINE:?}");
    Ok(())
}

/// Blocks until the process of a pidfd has ended. Returns false if the deadline passes first.
fn wait_for_end(handle: &OwnedFd, deadline: Option<Duration>) -> bool {
    let deadline = deadline.and_then(|deadline| Timespec::try_from(deadline).ok());
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], deadline.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn tail(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    ensure!(!bytes.is_empty(), "it is empty");
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_start_time_are_found_behind_any_command_name() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 1 0 0 0 0 1 0 0 20 0 1 0 4242 9 9";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }
}
