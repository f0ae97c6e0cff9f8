//! What every provider gets around it: limits, and metrics.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use operator_kit::Message;
use tokio::{sync::Semaphore, time::Instant};

use super::{Error, ErrorClass, Finding, InstanceId, OwnVm, Provider, Vm};
use crate::metrics::Metrics;

/// One call with all the waiting before it takes no longer than this, whatever the provider does.
const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// A call that has not been answered for so long has stalled, and its place goes to the next one.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Per call that has stalled and lost its place, so many may have places. What stalls beyond that keeps its place.
const CALLS_PER_STALLED: usize = 2;

/// What one cloud is spared: calls at once, and calls while it asks for fewer. Shared by all providers that speak to the
/// same cloud, also across a change of settings.
///
/// Calls that the cloud leaves unanswered do not keep others from being made: part of a cloud may hang.
#[derive(Clone, Debug)]
pub struct Limits {
    most_calls: usize,
    calls: Arc<Semaphore>,
    stalled: Arc<Semaphore>,
    closed_until: Arc<Mutex<Option<Instant>>>,
}

impl Limits {
    /// The most calls that make sense: with the stalled ones beside them they keep 240 of the controller's 256 workers.
    pub const MOST_CALLS: u16 = 160;

    /// At most `calls` calls at once, at least one, and beside them half as many, rounded up, that have stalled.
    pub fn new(calls: u16) -> Self {
        let calls = usize::from(calls.clamp(1, Self::MOST_CALLS));
        let stalled = calls.div_ceil(CALLS_PER_STALLED);
        Self {
            most_calls: calls,
            calls: Arc::new(Semaphore::new(calls)),
            stalled: Arc::new(Semaphore::new(stalled)),
            closed_until: Arc::default(),
        }
    }

    /// At most so many calls at once, beside those that have stalled, which are no more than these.
    pub(super) fn most_calls(&self) -> usize {
        self.most_calls
    }

    /// Waits for a place and makes the call. It gives its place back early if it stalls.
    async fn within<T>(&self, call: impl Future<Output = T>, cloud: &'static str, metrics: &Metrics) -> T {
        let queued = metrics.provider_call_queued(cloud);
        // The semaphores are never closed, so this waits or succeeds.
        let place = self.calls.acquire().await;
        drop(queued);
        let mut call = pin!(call);
        if let Ok(answer) = tokio::time::timeout(STALLED_AFTER, &mut call).await {
            return answer;
        }
        let _counted = metrics.provider_call_stalled(cloud);
        let stalled = self.stalled.try_acquire();
        if stalled.is_ok() {
            drop(place);
        }
        call.await
    }

    /// How long the cloud still wants to be left alone.
    fn closed_for(&self) -> Option<Duration> {
        let until = *self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn close_for(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut closed = self.closed_until.lock().unwrap_or_else(PoisonError::into_inner);
        *closed = Some(closed.map_or(until, |before| before.max(until)));
    }
}

/// `provider` within `limits`, its calls measured under the name `cloud`.
pub fn decorate(
    provider: Box<dyn Provider>,
    cloud: &'static str,
    limits: Limits,
    metrics: Metrics,
) -> Arc<dyn Provider> {
    metrics.expect_provider(cloud, ErrorClass::ALL.map(ErrorClass::as_str));
    Arc::new(Limited {
        inner: Metered { inner: provider, cloud, metrics: metrics.clone() },
        cloud,
        limits,
        metrics,
    })
}

/// Counts and times the calls that reach the cloud.
struct Metered {
    inner: Box<dyn Provider>,
    cloud: &'static str,
    metrics: Metrics,
}

impl Metered {
    async fn measure<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let measured = self.metrics.provider_call(self.cloud, call);
        let answer = answer.await;
        measured.finish(answer.as_ref().map_or_else(|error| error.class.as_str(), |_| "ok"));
        answer
    }
}

#[async_trait]
impl Provider for Metered {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        self.measure("describe", self.inner.describe(id)).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<(), Error> {
        self.measure("delete", self.inner.delete(vm)).await
    }

    async fn host(&self) -> Result<Option<String>, Error> {
        self.measure("host", self.inner.host()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.measure("examine", self.inner.examine()).await
    }
}

/// Keeps calls within [`Limits`] and gives each a deadline.
struct Limited {
    inner: Metered,
    cloud: &'static str,
    limits: Limits,
    metrics: Metrics,
}

impl Limited {
    async fn limit<T>(&self, answer: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
        if let Some(retry_after) = self.limits.closed_for() {
            let message = format!(
                "{} asked for fewer calls; the operator makes the next call in {retry_after:.0?}",
                self.cloud
            );
            return Err(Error::new(ErrorClass::Throttled { retry_after }, Message::public(message)));
        }
        let within = self.limits.within(answer, self.cloud, &self.metrics);
        let answer = tokio::time::timeout(CALL_DEADLINE, within).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {CALL_DEADLINE:?}", self.cloud);
            Err(Error::new(ErrorClass::Transient, Message::public(message)))
        });
        if let Err(Error { class: ErrorClass::Throttled { retry_after }, .. }) = &answer {
            self.limits.close_for(*retry_after);
            self.metrics.provider_throttled(self.cloud, *retry_after);
        }
        answer
    }
}

#[async_trait]
impl Provider for Limited {
    async fn describe(&self, id: &InstanceId) -> Result<Vm, Error> {
        self.limit(self.inner.describe(id)).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<(), Error> {
        self.limit(self.inner.delete(vm)).await
    }

    async fn host(&self) -> Result<Option<String>, Error> {
        self.limit(self.inner.host()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.limit(self.inner.examine()).await
    }
}

#[cfg(test)]
mod tests;
