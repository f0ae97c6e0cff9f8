//! Reports when the served certificate expires: in metrics, and in the log when it is overdue.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Serving, Term, facts, rotation::LONGEST_PAUSE};
use crate::webhook::metrics::CertificateMetrics;

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
