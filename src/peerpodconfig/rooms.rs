//! The rooms in which one configuration is set up.

use operator_kit::api_call::ApiError;
use tokio::sync::Mutex;

use super::{
    adaptor::Adaptor,
    admission::Admission,
    capacity::{Capacity, CountError},
    conditions::{Finding, Reason},
    findings::RoomError,
};

/// The rooms. All configurations use the same nodes, so reconciles and the garbage collection take turns.
pub(super) struct Rooms {
    pub(super) adaptor: Adaptor,
    pub(super) admission: Admission,
    pub(super) capacity: Capacity,
    pub(super) turn: Mutex<()>,
}

impl Rooms {
    /// This process began or ceased to lead: another process may have led meanwhile.
    pub(super) fn taken_over(&self) {
        self.capacity.taken_over();
        self.admission.doubt_policies();
    }
}

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReconcileError {
    #[error(transparent)]
    Room(#[from] RoomError),
    #[error(transparent)]
    Count(#[from] CountError),
}

impl From<ApiError> for ReconcileError {
    fn from(error: ApiError) -> Self {
        Self::Room(error.into())
    }
}

impl ReconcileError {
    /// The condition for it: the wanted object is `invalid`, in the API server's words, or something `failed`.
    pub(super) fn finding(&self, invalid: Reason, failed: Reason) -> Finding {
        match self {
            Self::Room(error) if let Some(message) = error.invalid() => Finding::new(invalid, message),
            _ => Finding::new(failed, self.to_string()),
        }
    }

    /// Whether the API server did not find an object or a kind.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Room(RoomError::Api(error)) if error.code() == Some(404))
    }
}
