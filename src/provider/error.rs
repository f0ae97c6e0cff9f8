//! What can go wrong in a cloud, by what it means for the caller.

use std::time::Duration;

use operator_kit::Message;

use crate::{
    api::v1alpha1::{RELEASE_ABANDON, RELEASE_ANNOTATION},
    settings::Malformed,
};

/// What an error means for the caller. It decides requeue, condition, event and metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// What was asked for does not exist. For deletion this is success.
    NotFound,
    /// The cloud says that it does not exist, and may say otherwise later: it may not show yet what was made a moment ago, or bring
    /// back what went a moment ago.
    Unsettled {
        /// When to ask again.
        check_again_after: Duration,
    },
    /// It may work later: try again with backoff.
    Transient,
    /// The cloud asks for fewer calls.
    Throttled {
        /// How long to leave this cloud alone, if it says so. Otherwise other calls may go on, as far as the provider lets them.
        retry_after: Option<Duration>,
    },
    /// The credentials are refused, lack a right, or are in a file that cannot be used now.
    Unauthorized,
    /// The cloud refuses it in the state that the VM, or what belongs to it, is in, or takes no more calls for this VM, or in its
    /// project, for now.
    Refused,
    /// The settings cannot work as they are.
    Invalid,
    /// This operator cannot do it.
    NotSupported,
}

impl ErrorClass {
    /// The class of a cloud's `code` by this table: classes, and the codes that mean them, with blanks between.
    pub(super) fn of_code(code: &str, table: &[(Self, &str)]) -> Option<Self> {
        let has = |codes: &str| codes.split_ascii_whitespace().any(|it| it == code);
        table.iter().find(|(_, codes)| has(codes)).map(|(class, _)| *class)
    }
}

operator_kit::labels! {
    /// The metric label and log field.
    pub ErrorClass {
        NotFound => "not_found",
        Unsettled { check_again_after: Duration::ZERO } => "unsettled",
        Transient => "transient",
        Throttled { retry_after: None } => "throttled",
        Unauthorized => "unauthorized",
        Refused => "refused",
        Invalid => "invalid",
        NotSupported => "not_supported",
    }
}

/// What an administrator does with a PeerPod whose VM is gone for certain, as a part of a sentence.
pub(super) fn release_advice() -> String {
    format!("annotate the PeerPod {RELEASE_ANNOTATION}={RELEASE_ABANDON}")
}

/// An error of a cloud: its class, and a text without any secret in it. Displayed, it shows the version for a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", message.for_status())]
pub struct Error {
    /// What it means for the caller.
    pub class: ErrorClass,
    /// What failed, on what, and what to do. The version for a status names no host, user, path or pool of the settings.
    pub message: Message,
}

impl Error {
    /// An error of this class.
    pub fn new(class: ErrorClass, message: impl Into<Message>) -> Self {
        Self { class, message: message.into() }
    }

    /// The error for settings that cannot be used, because these are wrong.
    pub(super) fn unusable(malformed: &[Malformed]) -> Self {
        let full: Vec<_> = malformed.iter().map(ToString::to_string).collect();
        Self::new(ErrorClass::Invalid, Message::new("the settings cannot be used", full.join("; ")))
    }

    /// The error for an entry in the record of places that names no `what`, such as a workspace.
    pub(super) fn unreadable_place(what: &str) -> Self {
        let message = format!("an entry in the record of places names no {what}; delete that entry");
        Self::new(ErrorClass::Invalid, Message::public(message))
    }

    /// The error for an elastic address of a VM that something else uses. `which` one, and perhaps by what, is for the log.
    pub(super) fn address_in_use(which: &str) -> Self {
        let public = "something else uses an elastic address of the VM; take the address from it, or give the address another name";
        Self::new(ErrorClass::Refused, Message::new(public, format!("{public}: {which}")))
    }

    /// The same error with advice behind its text.
    #[must_use]
    pub(crate) fn advising(self, advice: &str) -> Self {
        let message = self.message.map(|text| format!("{text}; {advice}"));
        Self { message, ..self }
    }

    /// The same if it is of this class: the advice is for no other one.
    pub(crate) fn advising_on(self, class: ErrorClass, advice: &str) -> Self {
        if self.class == class { self.advising(advice) } else { self }
    }
}
