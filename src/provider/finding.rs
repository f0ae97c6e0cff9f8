//! The results of an examination of a cloud.

use operator_kit::Message;

use super::{Error, ErrorClass};

/// One thing that [`Provider::examine`](super::Provider::examine) found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: a few words that stay the same from one examination to the next, such as `delete volumes`.
    pub subject: &'static str,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of one thing that was to be found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was tried, and works: what was tried and seen.
    Works(String),
    /// It was tried, and deletions will not work because of it.
    Fails(Error),
    /// It was not tried. The text says why, and what evidence there is.
    Untried(String),
}

impl Finding {
    /// Something that was tried: what it showed, or why it fails.
    pub fn tried(subject: &'static str, answer: Result<String, Error>) -> Self {
        Self { subject, outcome: answer.map_or_else(Outcome::Fails, Outcome::Works) }
    }

    /// Something that was not tried, and why.
    pub fn untried(subject: &'static str, why: impl Into<String>) -> Self {
        Self { subject, outcome: Outcome::Untried(why.into()) }
    }
}

/// Fails with those of the `needed` rights that the credentials do not have.
pub(super) fn ensure_rights(needed: &[&str], has: impl Fn(&str) -> bool) -> Result<(), Error> {
    let missing: Vec<_> = needed.iter().filter(|right| !has(right)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the credentials lack {}", missing.join(", "));
    Err(Error::new(ErrorClass::Unauthorized, Message::public(message)))
}
