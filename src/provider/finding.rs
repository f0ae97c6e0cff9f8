//! The results of an examination of a cloud.

use operator_kit::Message;

use super::{Error, ErrorClass, Listed, POD_VM, Provider, Resource};

/// Subjects that most clouds have.
pub(super) const LOOK_UP: &str = "look up VMs";
pub(super) const DELETE: &str = "delete VMs";

/// One thing that [`Provider::examine`] found out.
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
    /// It was tried, and deletions or the sweep will not work because of it.
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

/// A number of things, as people say it: `1 instance`, `2 instances`.
pub(super) fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// The outer result fails if the cloud did not answer: an examination finds nothing out then. The inner one is what the cloud answered,
/// also if it refused, and becomes a [`Finding`].
pub(super) fn ensure_answered<T>(answer: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match answer {
        Err(error) if error.class == ErrorClass::Transient => Err(error),
        answer => Ok(answer),
    }
}

/// Lists as the sweep does, and says how many VMs there are: `the workspace has 2 servers named podvm-…`. The results are those of
/// [`ensure_answered`].
pub(super) async fn look_up(
    provider: &dyn Provider,
    place: &str,
    thing: &str,
) -> Result<Result<String, Error>, Error> {
    let mut count = 0;
    let take = &mut |page: Vec<Listed>| count += page.iter().filter(|it| it.kind == Resource::Vm).count();
    let listed = ensure_answered(provider.list(take).await)?;
    Ok(listed.map(|()| format!("{place} {} named {POD_VM}…", counted(count, thing))))
}

/// Examines access first and then, with access, the `rest`. Without access, these subjects are untried for this reason.
pub(super) async fn examine(
    subject: &'static str,
    access: Result<String, Error>,
    (subjects, why): (&[&'static str], &str),
    rest: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
) -> Result<Vec<Finding>, Error> {
    let access = ensure_answered(access)?;
    let rest = if access.is_ok() {
        rest().await?
    } else {
        subjects.iter().map(|subject| Finding::untried(subject, why)).collect()
    };
    Ok([Finding::tried(subject, access)].into_iter().chain(rest).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_a_singular_and_a_plural() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "VM")), ["0 VMs", "1 VM", "2 VMs"]);
    }
}
