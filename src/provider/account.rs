//! The account that owns the VMs at a place. The credentials of another account see none of these VMs.

use std::sync::Arc;

use operator_kit::Message;
use tokio::sync::Notify;

use super::{
    Error, ErrorClass,
    cloud::{Opening, RecordedPlace},
};

/// The account in which the VMs of an opened place are.
#[derive(Debug)]
pub(super) struct Account {
    /// The account that was recorded with the place. `None` until one is recorded.
    recorded: Option<String>,
    /// Whether the settings named this place before.
    is_former: bool,
    /// Notified if the credentials are of another account.
    identity_changed: Option<Arc<Notify>>,
}

impl Account {
    pub(super) fn of(opening: &Opening<'_>) -> Self {
        let recorded = opening.recorded.as_ref();
        Self {
            recorded: recorded.and_then(|recorded| recorded.identity).map(str::to_owned),
            is_former: recorded.is_some_and(RecordedPlace::is_former),
            identity_changed: recorded.and_then(RecordedPlace::identity_changed),
        }
    }

    /// Fails unless the credentials are of the account that owns the VMs. `kind` is the cloud's word for an account, for
    /// messages.
    pub(super) fn ensure(&self, kind: &str, found: &str) -> Result<(), Error> {
        match &self.recorded {
            None if self.is_former => {
                let message = format!(
                    "the ConfigMap peerpod-operator-places does not say of which {kind} that place is"
                );
                Err(Error::new(ErrorClass::Invalid, Message::public(message)))
            }
            Some(recorded) if recorded != found => {
                self.identity_changed.iter().for_each(|it| it.notify_one());
                let public = format!("another {kind} answers than before");
                let full = format!("{public}: {found} instead of {recorded}");
                Err(Error::new(ErrorClass::Invalid, Message::new(public, full)))
            }
            None | Some(_) => Ok(()),
        }
    }
}
