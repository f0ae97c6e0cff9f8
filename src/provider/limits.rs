//! What is around every provider: a deadline for each call, a pause while the cloud asks for fewer calls, metrics, and lists that
//! have each thing once.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use operator_kit::Message;
use tokio::time::Instant;

use super::{
    Accepted, Claim, Error, ErrorClass, Finding, InstanceId, OwnVm, Pages, Provider, Vm, listing::Listing,
};
use crate::metrics::Metrics;

/// One call takes no longer than this, whatever the provider does.
const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// A list may have many pages, each of which is a call of its own.
const LIST_DEADLINE: Duration = Duration::from_secs(300);

/// Pauses calls while the cloud asks for fewer. All providers for the place of the settings share it, also across a change of
/// settings.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    closed_until: Arc<Mutex<Option<Instant>>>,
}

impl Limits {
    /// How much longer the cloud wants no calls.
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
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        self.measure("describe", self.inner.describe(id, claim)).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.measure("delete", self.inner.delete(vm)).await
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        self.measure("list", self.inner.list(pages)).await
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
        self.limit_to(CALL_DEADLINE, answer).await
    }

    async fn limit_to<T>(
        &self,
        deadline: Duration,
        answer: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        if let Some(retry_after) = self.limits.closed_for() {
            let message = format!(
                "{} asked for fewer calls; the operator makes the next call in {retry_after:.0?}",
                self.cloud
            );
            return Err(Error::new(ErrorClass::Throttled { retry_after }, Message::public(message)));
        }
        let answer = tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {deadline:?}", self.cloud);
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
    async fn describe(&self, id: &InstanceId, claim: &Claim) -> Result<Vm, Error> {
        self.limit(self.inner.describe(id, claim)).await
    }

    async fn delete(&self, vm: &OwnVm) -> Result<Accepted, Error> {
        self.limit(self.inner.delete(vm)).await
    }

    async fn list(&self, pages: Pages<'_>) -> Result<(), Error> {
        let mut listing = Listing::default();
        let once = &mut |page| pages(listing.page(page));
        self.limit_to(LIST_DEADLINE, self.inner.list(once)).await?;
        listing.end(self.cloud)
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
