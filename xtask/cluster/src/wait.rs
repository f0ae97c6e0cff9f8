//! Waits for conditions that cannot be watched.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

/// How often the condition is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Asks until there is an answer. At the deadline the error says what it waited for, and the last failure.
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
