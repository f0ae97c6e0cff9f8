//! Waiting until a process does what it was started for.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::time::{Instant, sleep, timeout_at};

use super::Process;

/// How often a wait checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Process {
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
}
