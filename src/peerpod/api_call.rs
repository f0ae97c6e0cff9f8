//! Calls to the API server, each with a deadline.

use std::time::Duration;

/// The client itself retries for minutes where an API server is overloaded; a reconcile does not wait for that.
const DEADLINE: Duration = Duration::from_secs(20);

/// Why a call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// It answered with an error, or could not be reached.
    #[error("the API server: {0}")]
    Failed(#[from] kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer within {DEADLINE:?}")]
    TimedOut,
}

impl ApiError {
    /// The HTTP status, where there was an answer.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Failed(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

/// Waits for a call no longer than the deadline.
pub(super) async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    tokio::time::timeout(DEADLINE, call).await.map_err(|_| ApiError::TimedOut)?.map_err(ApiError::from)
}
