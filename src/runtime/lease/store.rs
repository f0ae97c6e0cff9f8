//! Reads and writes one Lease *(client required)*.

use std::{fmt, pin::Pin, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use tokio::time::{Instant, timeout_at};

use super::{
    candidate::{RETRY_PERIOD, Record},
    record,
};

/// The Lease as it was read last, which is what a write replaces.
pub(super) struct Store {
    api: Api<Lease>,
    namespace: String,
    name: String,
    lease: Option<Lease>,
}

/// Every state of a Lease, `None` where it does not exist. Without end; errors are told, and it goes on.
pub(super) type Watch = Pin<Box<dyn Stream<Item = watcher::Result<Option<Lease>>> + Send>>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The Lease is not as it was read last.
    #[error("somebody else wrote it")]
    Outdated,
    #[error("{0}")]
    Refused(kube::Error),
    #[error("the API server did not answer in time")]
    TimedOut,
}

impl Store {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { api: Api::namespaced(client, &namespace), namespace, name, lease: None }
    }

    pub(super) fn watch(&self) -> Watch {
        watcher::watch_object(self.api.clone(), &self.name).backoff(EveryRetryPeriod).boxed()
    }

    /// Takes over what a watch or a read brought.
    pub(super) fn observe(&mut self, lease: Option<Lease>) -> Option<Record> {
        self.lease = lease;
        self.lease.as_ref().map(record::read)
    }

    pub(super) async fn read(&mut self, deadline: Instant) -> Result<Option<Record>, Failure> {
        let lease = bounded(deadline, self.api.get_opt(&self.name)).await?;
        Ok(self.observe(lease))
    }

    /// Replaces what was read last, and tells what the Lease says then.
    pub(super) async fn write(&mut self, record: Record, deadline: Instant) -> Result<Record, Failure> {
        let params = PostParams::default();
        let written = if let Some(mut lease) = self.lease.clone() {
            record::write(&mut lease, record);
            bounded(deadline, self.api.replace(&self.name, &params, &lease)).await?
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let mut lease = Lease { metadata, spec: None };
            record::write(&mut lease, record);
            bounded(deadline, self.api.create(&params, &lease)).await?
        };
        let record = record::read(&written);
        self.lease = Some(written);
        Ok(record)
    }
}

impl fmt::Display for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

async fn bounded<T>(deadline: Instant, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match timeout_at(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        // It was changed or made (409), or removed (404), since it was read.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Err(Failure::Outdated),
        Ok(Err(error)) => Err(Failure::Refused(error)),
        Err(_) => Err(Failure::TimedOut),
    }
}

/// However long an API server was away, a lease that is free then is to be taken soon after.
struct EveryRetryPeriod;

impl Iterator for EveryRetryPeriod {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY_PERIOD)
    }
}

impl Backoff for EveryRetryPeriod {
    fn reset(&mut self) {}
}
