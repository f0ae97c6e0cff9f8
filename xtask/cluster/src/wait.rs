//! Waits for conditions that cannot be watched.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

/// The shortest and the longest pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(250));
/// This share of the time that has passed is the pause. So a short wait ends at once, and a long one does not keep a busy machine
/// from what it waits for.
const PAUSE_SHARE: u32 = 5;

/// Asks until there is an answer. At the deadline the error says what it waited for, and the last failure. A probe that does not
/// return counts as a failure.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let end = start + deadline;
    let mut last = None;
    loop {
        let failure = match timeout_at(end, probe()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => unanswered(last.take()),
        };
        if Instant::now() >= end {
            return Err(failure.context(format!("waited {deadline:?} in vain until {what}")));
        }
        last = Some(failure);
        sleep((start.elapsed() / PAUSE_SHARE).clamp(PAUSES.0, PAUSES.1)).await;
    }
}

/// The failure of a probe that does not return, after an earlier one failed.
fn unanswered(before: Option<Error>) -> Error {
    match before {
        Some(failure) => failure.context("the last probe did not return; the one before it failed"),
        None => anyhow!("the probe did not return"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_ends_at_the_deadline_with_the_last_failure() {
        for failures in [0, 3] {
            let (start, mut probes) = (Instant::now(), 0);
            let probe = async || {
                probes += 1;
                if probes > failures { pending().await } else { Err::<(), _>(anyhow!("not yet: {probes}")) }
            };
            let error = format!("{:#}", eventually("it is there", DEADLINE, probe).await.unwrap_err());
            assert_eq!(start.elapsed(), DEADLINE);
            assert!(
                error.contains("in vain until it is there") && error.contains("did not return"),
                "{error}"
            );
            assert_eq!(error.contains("not yet: 3"), failures == 3, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_is_repeated_until_it_has_an_answer_or_the_deadline_passes() {
        let mut probes = 0;
        let probe = async || {
            probes += 1;
            if probes < 5 { Err(anyhow!("not yet")) } else { Ok(probes) }
        };
        assert_eq!(eventually("it is there", DEADLINE, probe).await.unwrap(), 5);
        let error = eventually("it is there", DEADLINE, async || Err::<(), _>(anyhow!("never"))).await;
        assert!(format!("{:#}", error.unwrap_err()).ends_with("until it is there: never"));
    }
}
