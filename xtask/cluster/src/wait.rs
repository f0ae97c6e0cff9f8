//! Waiting for what cannot be watched.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

/// How soon it is looked at again: the longer it takes, the later, as many that wait at a time would keep the processors busy.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A pause is this part of the time that passed.
const PART: u32 = 10;

/// Asks until there is an answer. At the deadline the error says what was waited for, and why there was none the last time.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    let end = begun + deadline;
    loop {
        match probe().await {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("waited {deadline:?} in vain until {what}")));
            }
            Err(_) => sleep((begun.elapsed() / PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await,
        }
    }
}
