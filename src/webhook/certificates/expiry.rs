//! Reports when the served certificate expires: in metrics, and in the log when it is overdue.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Serving, facts, rotation::LONGEST_PAUSE};
use crate::webhook::metrics::CertificateMetrics;

/// A certificate with a long lifetime is overdue when it is valid for less than this.
const LONGEST_REST: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The term of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When it is overdue: when a quarter of its lifetime is left, at most 30 days. A renewal after two thirds, as here and by
    /// cert-manager, comes before.
    pub overdue: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

impl Term {
    fn new((from, expires): (Timestamp, Timestamp)) -> Self {
        let rest = (expires.duration_since(from) / 4).min(LONGEST_REST);
        Self { overdue: expires.saturating_sub(rest).unwrap_or(expires), expires }
    }
}

/// Reports on the certificate of `serving` until `stop`. `source`: its source, for the log.
pub async fn report(
    serving: Arc<Serving>,
    source: String,
    metrics: CertificateMetrics,
    stop: CancellationToken,
) {
    let mut shown = serving.0.subscribe();
    loop {
        let pair = shown.borrow_and_update().clone();
        let certificate = pair.as_ref().and_then(|pair| pair.cert.first());
        let term = certificate.and_then(facts::validity_of).map(Term::new);
        metrics.shown(term);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = shown.changed() => if changed.is_err() { return },
            never = warn_in_time(term, &source) => match never {},
        }
    }
}

/// Logs each problem of one certificate once.
async fn warn_in_time(term: Option<Term>, source: &str) -> Infallible {
    let Some(Term { overdue, expires }) = term else { return pending().await };
    until(overdue).await;
    if Timestamp::now() < expires {
        warn!(
            source, %expires,
            "the certificate is overdue for replacement; when it expires, API servers refuse all peer \
             pods. Replace it at its source; if the webhook created it, the log of the replica that holds \
             the lease says why it did not replace it"
        );
    }
    until(expires).await;
    error!(source, %expires, "the certificate has expired: API servers refuse all peer pods; replace it at its source");
    pending().await
}

async fn until(moment: Timestamp) {
    while let Ok(left) = Duration::try_from(moment.duration_since(Timestamp::now()))
        && !left.is_zero()
    {
        // Timers do not notice when the wall clock is set.
        sleep(left.min(LONGEST_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_overdue_in_the_last_quarter_of_its_life_and_its_last_month() {
        let after = |hours| Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        for (from, expires, overdue) in
            [(2400, 3120, 2940), (0, 40 * 24, 30 * 24), (0, 365 * 24, 335 * 24), (5, 5, 5)]
        {
            let term = Term::new((after(from), after(expires)));
            assert_eq!(term, Term { overdue: after(overdue), expires: after(expires) });
        }
    }
}
