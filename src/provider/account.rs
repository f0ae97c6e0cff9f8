//! The account that owns the VMs at a place. The credentials of another account see none of these VMs.

use std::sync::Arc;

use operator_kit::Message;
use tokio::sync::Notify;

use super::{
    Error, ErrorClass,
    cloud::{Opening, RecordedPlace},
};
use crate::names::PLACES;

/// Who must answer at an opened place.
#[derive(Debug, Default)]
pub(super) struct ExpectedIdentity {
    /// The identity that was recorded with the place. `None` until one is recorded: then any may answer.
    recorded: Option<String>,
    /// Notified if another one answers.
    changed: Option<Arc<Notify>>,
}

impl ExpectedIdentity {
    pub(super) fn of(opening: &Opening<'_>) -> Self {
        let recorded = opening.recorded.as_ref();
        Self {
            recorded: recorded.and_then(|recorded| recorded.identity).map(str::to_owned),
            changed: recorded.and_then(RecordedPlace::identity_changed),
        }
    }

    /// Whether one identity alone may answer.
    pub(super) fn is_known(&self) -> bool {
        self.recorded.is_some()
    }

    /// Whether this identity may answer. If not, the keeper of the record asks anew who does.
    pub(super) fn accepts(&self, found: Option<&str>) -> bool {
        let accepts = self.recorded.is_none() || self.recorded.as_deref() == found;
        if !accepts {
            self.changed.iter().for_each(|it| it.notify_one());
        }
        accepts
    }
}

/// The account in which the VMs of an opened place are.
#[derive(Debug)]
pub(super) struct Account {
    expected: ExpectedIdentity,
    /// Whether the settings named this place before.
    is_former: bool,
}

impl Account {
    pub(super) fn of(opening: &Opening<'_>) -> Self {
        let is_former = opening.recorded.as_ref().is_some_and(RecordedPlace::is_former);
        Self { expected: ExpectedIdentity::of(opening), is_former }
    }

    /// Fails unless the credentials are of the account that owns the VMs. `kind` is the cloud's word for an account, for
    /// messages.
    pub(super) fn ensure(&self, kind: &str, found: &str) -> Result<(), Error> {
        if self.is_former && !self.expected.is_known() {
            let message = format!("the ConfigMap {PLACES} does not say of which {kind} that place is");
            return Err(Error::new(ErrorClass::Invalid, Message::public(message)));
        }
        if self.expected.accepts(Some(found)) {
            return Ok(());
        }
        let recorded = self.expected.recorded.as_deref().unwrap_or_default();
        let public = format!("another {kind} answers than before");
        let full = format!("{public}: {found} instead of {recorded}");
        Err(Error::new(ErrorClass::Invalid, Message::new(public, full)))
    }
}
