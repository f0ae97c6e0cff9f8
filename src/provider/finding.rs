//! The results of an examination of a cloud.

use operator_kit::Message;

use super::{
    Error, ErrorClass,
    http::{Failure, Parameters, Query, Signed, SignedAnswer, SignedApi},
};

/// Subjects that most clouds have.
pub(super) const LOOK_UP: &str = "look up VMs";
pub(super) const DELETE: &str = "delete VMs";

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

/// Examines the account first and then, with a key, the `rights` there.
pub(super) async fn examine_account<A: SignedApi>(
    signed: &Signed<A>,
    region: &str,
    rights: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
) -> Result<Vec<Finding>, Error> {
    let (key, origin) = (signed.key().await, signed.api.origin());
    let account = key.map(|key| format!("account {}, region {region}, by {origin}", key.account));
    let without = (&["rights"][..], "check cannot ask for rights without an account");
    examine("account", account, without, rights).await
}

/// Whether the cloud refuses this action for want of a right. It is a dry run, or the parameters name nothing.
pub(super) async fn probe<A: SignedApi>(
    signed: &Signed<A>,
    subject: &'static str,
    action: &'static str,
    parameters: Parameters<'_>,
) -> Finding {
    let answer = signed.call(Query::new("asking for a right", action, parameters)).await;
    if answer.as_ref().is_err_and(<A::Answer as SignedAnswer>::names_nothing) {
        let why = format!(
            "{action} of what does not exist shows nothing: the cloud looks for it before it checks rights"
        );
        return Finding::untried(subject, why);
    }
    dry_run(subject, action, answer)
}

/// What a dry run of this action showed.
fn dry_run<T>(subject: &'static str, action: &str, answer: Result<T, Failure>) -> Finding {
    let shown = match answer {
        Err(Failure { code, .. }) if code == "DryRunOperation" => Ok(format!("the cloud would do {action}")),
        Err(Failure { error: Error { class, message }, .. }) => {
            Err(Error { class, message: message.map(|text| format!("{text} ({action})")) })
        }
        Ok(_) if subject == DELETE => {
            let text = format!("the cloud did not refuse {action} of a dry run: it may not know dry runs");
            Err(Error::new(ErrorClass::Invalid, Message::public(text)))
        }
        Ok(_) => Ok(format!("the cloud did {action}")),
    };
    Finding::tried(subject, shown)
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

    #[test]
    fn a_dry_run_of_a_deletion_works_if_refused_and_fails_if_accepted() {
        let code =
            |code: &str| Failure { code: code.to_owned(), error: Error::new(ErrorClass::Refused, "no") };
        let outcome = |subject, answer: Result<(), Failure>| dry_run(subject, "Do", answer).outcome;
        assert!(matches!(outcome(DELETE, Err(code("DryRunOperation"))), Outcome::Works(_)));
        assert!(matches!(outcome(DELETE, Err(code("Forbidden"))), Outcome::Fails(_)));
        assert!(matches!(outcome(DELETE, Ok(())), Outcome::Fails(_)));
        assert!(matches!(outcome(LOOK_UP, Ok(())), Outcome::Works(_)));
    }
}
