//! Waiting for what cannot be watched.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

/// How often it is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Asks until there is an answer. At the deadline the error says what was waited for, and why there was none the last time.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match probe().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("waited {deadline:?} in vain until {what}")));
            }
            Err(_) => sleep(LOOK_INTERVAL).await,
        }
    }
}
