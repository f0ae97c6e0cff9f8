//! What the rooms find *(no client)*.

use std::time::Duration;

use operator_kit::api_call::ApiError;

use super::{
    capacity::CountError,
    conditions::{Finding, Reason},
};

/// How often a configuration is reconciled without an event.
pub(super) const SLOW_RESYNC: Duration = Duration::from_secs(300);

/// How often the operator checks what it does not watch: whether an unmanaged object still conflicts.
pub(super) const UNWATCHED_RESYNC: Duration = Duration::from_secs(20);

/// The findings of one or more rooms.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub(super) all: Vec<Finding>,
    /// When to reconcile again without an event.
    pub(super) again: Option<Duration>,
}

impl Findings {
    pub(super) fn of(reason: Reason, message: impl Into<String>) -> Self {
        Self { all: vec![Finding::new(reason, message)], again: None }
    }

    /// Adds those of another room.
    pub(super) fn add(&mut self, other: Self) {
        self.all.extend(other.all);
        self.again = self.again.into_iter().chain(other.again).min();
    }
}

/// Why a room or a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Count(#[from] CountError),
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not know something that it needs. The text says what to do.
    #[error("{0}")]
    Unknown(String),
}

impl ReconcileError {
    /// What the API server says about a wanted object that is invalid.
    pub(super) fn invalid(&self) -> Option<&str> {
        match self {
            Self::Api(error) => error.invalid(),
            Self::Count(_) | Self::Json(_) | Self::Unknown(_) => None,
        }
    }

    /// The condition for it: the wanted object is `invalid`, in the API server's words, or something `failed`.
    pub(super) fn finding(&self, invalid: Reason, failed: Reason) -> Finding {
        match self.invalid() {
            Some(message) => Finding::new(invalid, message),
            None => Finding::new(failed, self.to_string()),
        }
    }

    /// Whether the API server did not find an object or a kind.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(error) if error.code() == Some(404))
    }
}
