//! The `ConfigMap` of the pool *(client required)*. cloud-api-adaptor on every node writes it, too.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _, api::PostParams};
use operator_kit::{
    Message,
    api_call::{ApiError, bounded, get_opt},
};
use tokio::sync::Mutex;

use super::pool::Pool;
use crate::{
    api::v1alpha1::FIELD_MANAGER,
    provider::{Error, ErrorClass, account::ExpectedIdentity},
};

/// The key of the pool in its `ConfigMap`.
const STATE: &str = "allocation-state";

/// How long to pause if the API server asks for fewer calls and does not say how long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Store {
    pub(super) api: Api<ConfigMap>,
    pub(super) name: String,
    /// Namespace and name, for the log.
    pub(super) full_name: String,
    /// The UID that it must have. With another one it was made anew, without the allocations.
    pub(super) expected: ExpectedIdentity,
    /// One write at a time: this process' own writes would only conflict with one another.
    pub(super) turn: Mutex<()>,
}

/// The pool, and the object in which it was.
pub(super) struct Read {
    object: ConfigMap,
    pub(super) pool: Pool,
}

impl Store {
    /// The UID of the `ConfigMap`.
    pub(super) async fn uid(&self) -> Result<Option<String>, Error> {
        Ok(self.get().await?.uid())
    }

    /// The pool as it is now.
    pub(super) async fn read(&self) -> Result<Read, Error> {
        self.pool_in(self.get().await?)
    }

    /// The same; `None` if the `ConfigMap` does not exist.
    pub(super) async fn find(&self) -> Result<Option<Read>, Error> {
        let found = get_opt(&self.api, &self.name).await.map_err(|error| self.explain("reading", &error))?;
        found.map(|object| self.pool_in(object)).transpose()
    }

    fn pool_in(&self, object: ConfigMap) -> Result<Read, Error> {
        if !self.expected.accepts(object.metadata.uid.as_deref()) {
            let public = "the pool's ConfigMap was made anew and has forgotten whose the machines are";
            return Err(self.error(ErrorClass::Transient, public, public));
        }
        let text = object.data.as_ref().and_then(|data| data.get(STATE)).map_or("", String::as_str);
        match Pool::parse(text) {
            Ok(pool) => Ok(Read { object, pool }),
            Err(problem) => {
                let public = "the pool's ConfigMap does not hold a pool as cloud-api-adaptor writes it";
                Err(self.error(ErrorClass::Invalid, public, &format!("{public}: {STATE}: {problem}")))
            }
        }
    }

    /// Writes the pool unless it has changed since it was read. Returns whether it was written.
    pub(super) async fn write(&self, read: &Read, state: String) -> Result<bool, Error> {
        let mut object = read.object.clone();
        object.data.get_or_insert_default().insert(STATE.to_owned(), state);
        self.replace(&object, false).await
    }

    /// Tries a write that changes nothing.
    pub(super) async fn try_write(&self, read: &Read) -> Result<(), Error> {
        // A conflict proves the right to write, too.
        self.replace(&read.object, true).await.map(drop)
    }

    async fn replace(&self, object: &ConfigMap, dry_run: bool) -> Result<bool, Error> {
        let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()) };
        match bounded(self.api.replace(&self.name, &params, object)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(self.explain("writing", &error)),
        }
    }

    async fn get(&self) -> Result<ConfigMap, Error> {
        bounded(self.api.get(&self.name)).await.map_err(|error| self.explain("reading", &error))
    }

    fn explain(&self, doing: &str, error: &ApiError) -> Error {
        let (class, advice) = match error.code() {
            _ if error.is_absence_of(&self.name) => {
                (ErrorClass::Invalid, "; it is missing, and whose the machines are is not known without it")
            }
            Some(401) => (ErrorClass::Unauthorized, ""),
            Some(403) => (
                ErrorClass::Unauthorized,
                "; give the operator the right to get and update it, as the overlay and the chart of this provider do",
            ),
            Some(429) => (ErrorClass::Throttled { retry_after: Some(RETRY_AFTER) }, ""),
            _ => (ErrorClass::Transient, ""),
        };
        let message =
            error.message().map(|text| format!("{doing} the pool's ConfigMap failed: {text}{advice}"));
        self.error(class, message.for_status(), message.for_log())
    }

    pub(super) fn error(&self, class: ErrorClass, public: &str, full: &str) -> Error {
        Error::new(class, Message::new(public, format!("{full} (ConfigMap {})", self.full_name)))
    }
}
