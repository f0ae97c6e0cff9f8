//! Calls to the API server, each with a deadline.

use std::time::Duration;

use kube::core::{Status, response::StatusCause};

/// The client itself retries for minutes where an API server is overloaded; a reconcile does not wait for that.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// It answered with an error, or could not be reached.
    #[error("the API server: {0}")]
    Failed(#[from] kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer within {DEADLINE:?}")]
    TimedOut,
}

impl ApiError {
    /// The HTTP status, where there was an answer.
    pub(crate) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Whether nothing can be made in the namespace because it is being deleted.
    pub(crate) fn is_of_terminating_namespace(&self) -> bool {
        self.causes().iter().any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// Whether a JSON patch was refused because one of its tests failed. An object that the schema refuses is answered
    /// by the same code, but with causes.
    pub(crate) fn is_failed_test(&self) -> bool {
        self.code() == Some(422) && self.causes().is_empty()
    }

    /// Whether this field was refused.
    pub(crate) fn is_of_field(&self, field: &str) -> bool {
        self.causes().iter().any(|cause| cause.field == field)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Failed(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    fn causes(&self) -> &[StatusCause] {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.map(|details| details.causes.as_slice()).unwrap_or_default()
    }
}

/// Waits for a call no longer than the deadline.
pub(crate) async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    tokio::time::timeout(DEADLINE, call).await.map_err(|_| ApiError::TimedOut)?.map_err(ApiError::from)
}
