//! Reads and writes one Lease *(client required)*.

use std::{error::Error, fmt, pin::Pin, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    core::Status,
    runtime::{WatchStreamExt, utils::Backoff, watcher},
};
use tokio::time::{Instant, timeout_at};

use super::{
    candidate::{RETRY_PERIOD, Record},
    record,
};
use crate::{
    api_call::{is_absence, is_of_terminating_namespace, refusal},
    text::causes,
};

const FORBIDDEN: u16 = 403;
const CONFLICT: u16 = 409;

/// The Lease as it was read last, which a write replaces.
pub(super) struct Store {
    api: Api<Lease>,
    namespace: String,
    name: String,
    /// The flag that chose the namespace, if one did.
    namespace_flag: Option<&'static str>,
    lease: Option<Lease>,
    /// What creates a Lease that does not exist; none: this process.
    creator: Option<&'static str>,
}

/// Every state of a Lease, `None` if it does not exist. Without end, also after errors.
pub(super) type Watch = Pin<Box<dyn Stream<Item = Result<Option<Lease>, Failure>> + Send>>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The Lease is not as it was read last.
    #[error("another process wrote it")]
    Outdated,
    /// The Lease does not exist, and this process does not create it. The text names what creates it.
    #[error("it does not exist; {0}")]
    Missing(&'static str),
    #[error("the API server refused: {}", refusal(.0))]
    Refused(Box<Status>),
    #[error("{}", causes(&**.0))]
    Failed(Box<dyn Error + Send + Sync>),
    #[error("the API server did not answer in time")]
    TimedOut,
}

impl Failure {
    /// The HTTP status, if there was an answer.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => Some(status.code),
            Self::Outdated | Self::Missing(_) | Self::Failed(_) | Self::TimedOut => None,
        }
    }

    /// Whether it means that the object of this name does not exist.
    fn is_absence_of(&self, name: &str) -> bool {
        matches!(self, Self::Refused(status) if is_absence(status, name))
    }

    /// Whether it means that the namespace is being deleted.
    fn is_terminating(&self) -> bool {
        matches!(self, Self::Refused(status) if is_of_terminating_namespace(status))
    }

    /// A write's answer, in which `gone` means that the Lease differs from the one to replace.
    fn or_outdated(self, gone: bool) -> Self {
        if self.status() == Some(CONFLICT) || gone { Self::Outdated } else { self }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<watcher::Error> for Failure {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => Self::Refused(status),
            error @ watcher::Error::NoResourceVersion => Self::Failed(error.into()),
        }
    }
}

impl Store {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let api = Api::namespaced(client, &namespace);
        Self { api, namespace, name, namespace_flag: None, lease: None, creator: None }
    }

    pub(super) fn with_namespace_flag(self, flag: &'static str) -> Self {
        Self { namespace_flag: Some(flag), ..self }
    }

    /// A store that does not create the Lease, but waits until it exists.
    pub(super) fn created_by(self, creator: &'static str) -> Self {
        Self { creator: Some(creator), ..self }
    }

    pub(super) fn watch(&self) -> Watch {
        watcher::watch_object(self.api.clone(), &self.name)
            .backoff(EveryRetryPeriod)
            .map_err(Failure::from)
            .boxed()
    }

    /// Takes over what a watch or a read brought.
    pub(super) fn observe(&mut self, lease: Option<Lease>) -> Option<Record> {
        self.lease = lease;
        self.lease.as_ref().map(record::read)
    }

    pub(super) async fn read(&mut self, deadline: Instant) -> Result<Option<Record>, Failure> {
        let lease = match bounded(deadline, self.api.get(&self.name)).await {
            Ok(lease) => Some(lease),
            Err(failure) if failure.is_absence_of(&self.name) => None,
            Err(failure) => return Err(failure),
        };
        Ok(self.observe(lease))
    }

    /// Replaces what was read last, and returns the new content of the Lease.
    pub(super) async fn write(&mut self, record: Record, deadline: Instant) -> Result<Record, Failure> {
        let params = PostParams::default();
        let written = if let Some(mut lease) = self.lease.clone() {
            record::write(&mut lease, record);
            let replaced = bounded(deadline, self.api.replace(&self.name, &params, &lease)).await;
            replaced.map_err(|failure| {
                let gone = failure.is_absence_of(&self.name);
                failure.or_outdated(gone)
            })?
        } else if let Some(creator) = self.creator {
            return Err(Failure::Missing(creator));
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let mut lease = Lease { metadata, spec: None };
            record::write(&mut lease, record);
            let created = bounded(deadline, self.api.create(&params, &lease)).await;
            created.map_err(|failure| failure.or_outdated(false))?
        };
        let record = record::read(&written);
        self.lease = Some(written);
        Ok(record)
    }

    /// What an administrator must do about a failure, if anything.
    pub(super) fn advice(&self, failure: &Failure) -> String {
        let Self { namespace, name, .. } = self;
        match failure.status() {
            Some(FORBIDDEN) if failure.is_terminating() => {
                format!("; the namespace {namespace} is being deleted, so it can have no new Lease")
            }
            Some(FORBIDDEN) => {
                let create = if self.creator.is_none() {
                    "`create` on `leases` (coordination.k8s.io), and "
                } else {
                    ""
                };
                format!(
                    "; grant this ServiceAccount in the namespace {namespace} {create}`get`, `list`, \
                     `watch` and `update` on the Lease (coordination.k8s.io) named {name}"
                )
            }
            _ if failure.is_absence_of(namespace) => {
                let other = self.namespace_flag.map(|flag| format!(", or set {flag} to another one"));
                format!("; create the namespace {namespace}{}", other.unwrap_or_default())
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

async fn bounded<T>(deadline: Instant, call: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    Ok(timeout_at(deadline, call).await.map_err(|_| Failure::TimedOut)??)
}

/// However long an API server was away, a free lease must be taken soon after.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Answer, ApiServer, Call};

    #[tokio::test]
    async fn a_missing_namespace_is_reported_with_the_flag_that_chose_it() {
        for (flag, advice) in [
            (None, "; create the namespace shop"),
            (Some("--ns"), "; create the namespace shop, or set --ns to another one"),
        ] {
            let create = Call::post("/apis/coordination.k8s.io/v1/namespaces/shop/leases");
            let server = ApiServer::expecting([create.answer(Answer::not_found("namespaces", "shop"))]);
            let mut store = Store::new(server.client(), "shop", "widgets");
            if let Some(flag) = flag {
                store = store.with_namespace_flag(flag);
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            let failure = store.write(Record::default(), deadline).await.unwrap_err();
            assert_eq!(store.advice(&failure), advice);
        }
    }

    #[tokio::test]
    async fn in_a_namespace_that_is_being_deleted_no_right_is_missing() {
        let server = ApiServer::expecting([]);
        let store = Store::new(server.client(), "shop", "widgets");
        let refused = |cause: &str| {
            let status = json!({ "code": FORBIDDEN, "details": { "causes": [{ "reason": cause }] } });
            store.advice(&Failure::Refused(serde_json::from_value(status).unwrap()))
        };
        assert_eq!(
            refused("NamespaceTerminating"),
            "; the namespace shop is being deleted, so it can have no new Lease"
        );
        assert!(refused("Other").starts_with("; grant this ServiceAccount"));
    }
}
