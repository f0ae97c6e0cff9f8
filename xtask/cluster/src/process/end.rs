//! Waiting for the end of processes by their pidfds.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a process may take to vanish after SIGKILL.
pub(super) const KILL_DEADLINE: Duration = Duration::from_secs(30);

/// Waits until all these processes have ended.
pub(crate) async fn wait_for_all(handles: Vec<OwnedFd>) -> Result<()> {
    let ended = move || handles.iter().all(|handle| wait_for_end(handle, Some(KILL_DEADLINE)));
    ensure!(tokio::task::spawn_blocking(ended).await?, "a process did not end within {KILL_DEADLINE:?}");
    Ok(())
}

/// Blocks until the process of a pidfd has ended. Returns false if the deadline passes first.
pub(super) fn wait_for_end(handle: &OwnedFd, deadline: Option<Duration>) -> bool {
    let deadline = deadline.and_then(|deadline| Timespec::try_from(deadline).ok());
    loop {
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], deadline.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
