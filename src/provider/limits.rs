//! What is around every provider: a deadline for each call, a pause where the cloud says how long to wait, metrics, and lists that
//! have each thing once.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use operator_kit::Message;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    Accepted, Claim, Error, ErrorClass, Finding, InstanceId, OwnVm, Pages, Provider, Vm, listing::Listing,
};
use crate::metrics::Metrics;

/// One call takes no longer than this, whatever the provider does.
const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// A list may have many pages, each of which is a call of its own.
const LIST_DEADLINE: Duration = Duration::from_secs(300);

/// Pauses calls for the time that the cloud asked for. All providers for the place of the settings share it, also across a change of
/// settings.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    closed_until: Arc<Mutex<Option<Instant>>>,
}

impl Limits {
    /// How much longer the cloud wants no calls.
    fn closed_for(&self) -> Option<Duration> {
        let until = *self.closed_until.lock();
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn close_for(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut closed = self.closed_until.lock();
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
    Arc::new(Decorated { inner: provider, cloud, limits, metrics })
}

/// Keeps calls within [`Limits`], gives each a deadline, and counts and times those that reach the cloud.
struct Decorated {
    inner: Box<dyn Provider>,
    cloud: &'static str,
    limits: Limits,
    metrics: Metrics,
}

impl Decorated {
    /// Makes a call, of this name in the metrics, unless the cloud asked for fewer.
    async fn call<T>(
        &self,
        name: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        if let Some(retry_after) = self.limits.closed_for() {
            let message = format!(
                "{} asked for fewer calls; the operator makes the next call in {retry_after:.0?}",
                self.cloud
            );
            let class = ErrorClass::Throttled { retry_after: Some(retry_after) };
            return Err(Error::new(class, Message::public(message)));
        }
        let answer = timeout(deadline, self.measured(name, call)).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {deadline:?}", self.cloud);
            Err(Error::new(ErrorClass::Transient, Message::public(message)))
        });
        if let Err(Error { class: ErrorClass::Throttled { retry_after: Some(retry_after) }, .. }) = &answer {
            self.limits.close_for(*retry_after);
            self.metrics.provider_throttled(self.cloud, *retry_after);
        }
        answer
    }

    async fn measured<T>(
        &self,
        name: &'static str,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let measured = self.metrics.provider_call(self.cloud, name);
        let answer = call.await;
        measured.finish(answer.as_ref().map_or_else(|error| error.class.as_str(), |_| "ok"));
        answer
    }
}

#[async_trait]
impl Provider for Decorated {
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        self.call("describe", CALL_DEADLINE, self.inner.describe(id, claim)).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.call("delete", CALL_DEADLINE, self.inner.delete(vm)).await
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let mut listing = Listing::default();
        let once = &mut |page| pages(listing.page(page));
        self.call("list", LIST_DEADLINE, self.inner.list(once)).await?;
        listing.end(self.cloud)
    }

    async fn identity(&self) -> Result<Option<String>, Error> {
        self.call("identity", CALL_DEADLINE, self.inner.identity()).await
    }

    fn most_at_once(&self) -> Option<usize> {
        self.inner.most_at_once()
    }

    fn paused_for(&self) -> Option<Duration> {
        self.limits.closed_for()
    }

    async fn examine(&self) -> Result<Vec<Finding>, Error> {
        self.call("examine", CALL_DEADLINE, self.inner.examine()).await
    }
}

#[cfg(test)]
mod tests;
