//! A call to a cloud: in flight as long as it exists, and counted when it ends, however it ends.

use std::time::Instant;

use operator_kit::metrics::Counted;

use super::Metrics;

/// A call to a cloud that is under way. It counts as `abandoned` if dropped before [`finish`](Self::finish).
#[must_use = "the call counts as ended when this is dropped"]
#[derive(Debug)]
pub struct ProviderCall {
    metrics: Metrics,
    _in_flight: Counted,
    provider: &'static str,
    call: &'static str,
    result: &'static str,
    start: Instant,
}

impl ProviderCall {
    pub(super) fn start(metrics: Metrics, provider: &'static str, call: &'static str) -> Self {
        let in_flight = Counted::up(metrics.0.provider_calls_in_flight.with([provider]));
        let start = Instant::now();
        Self { metrics, _in_flight: in_flight, provider, call, result: "abandoned", start }
    }

    /// The call ended: `ok`, or the class of its error.
    pub fn finish(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for ProviderCall {
    fn drop(&mut self) {
        let families = &self.metrics.0;
        families.provider_calls.with([self.provider, self.call, self.result]).inc();
        let duration = self.start.elapsed().as_secs_f64();
        families.provider_call_duration.with([self.provider, self.call]).observe(duration);
    }
}
