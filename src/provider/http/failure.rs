//! Why a call failed, for callers that decide by the cloud's own code.

use super::super::Error;

/// Why there is no answer.
#[derive(Debug)]
pub(in crate::provider) struct Failure {
    /// The cloud's own word for it; empty where the cloud did not say it.
    pub code: String,
    /// What it means.
    pub error: Error,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: String::new(), error }
    }
}
