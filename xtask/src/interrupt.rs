//! What ends a task early: Ctrl-C and SIGTERM, and for some tasks the end of the terminal.

use anyhow::{Context as _, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// The error of a task that was interrupted.
pub(crate) const INTERRUPTED: &str = "interrupted: everything that was started has ended";

/// Resolves when the user interrupts, or when the terminal ends.
pub(crate) fn interrupted() -> Result<impl Future<Output = ()>> {
    let ends = stopped()?;
    let mut hangup = signal(SignalKind::hangup()).context("listening for the end of the terminal")?;
    Ok(async move {
        tokio::select! {
            () = ends => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Resolves at Ctrl-C and SIGTERM.
fn stopped() -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Runs a task until it ends or the user interrupts. An interrupt drops the task: its guards remove its folders, and end its
/// processes and containers. Without this, an interrupt would end this program at once, and leave the folders and containers.
///
/// The end of the terminal is no interrupt: by `nohup` a task outlives it.
pub(crate) async fn unless_interrupted<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    let stopped = stopped()?;
    tokio::select! {
        result = task => result,
        () = stopped => bail!(INTERRUPTED),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn an_interrupted_task_leaves_no_folder() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().to_owned();
        let task = async move {
            let _dir = dir;
            // Without `unless_interrupted`, which listens by now, the signal would end the tests.
            kill_process(getpid(), Signal::INT)?;
            pending::<Result<()>>().await
        };
        let error = unless_interrupted(task).await.expect_err("the task has no end of its own");
        assert_eq!(error.to_string(), INTERRUPTED);
        assert!(!path.exists(), "{} is left", path.display());
        Ok(())
    }

    #[tokio::test]
    async fn the_result_of_a_task_is_kept() -> Result<()> {
        assert_eq!(unless_interrupted(async { Ok(3) }).await?, 3);
        let failed = unless_interrupted::<()>(async { bail!("it failed") }).await;
        assert_eq!(failed.expect_err("it failed").to_string(), "it failed");
        Ok(())
    }
}
