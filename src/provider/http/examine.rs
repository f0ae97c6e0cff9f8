//! The examination of credentials: of an access token, or of a key that signs requests.

use operator_kit::Message;

use super::{Authorized, Failure, Parameters, Query, Signed, SignedAnswer, SignedApi, TokenSource};
use crate::provider::{
    Error, ErrorClass, Finding,
    finding::{DELETE, LOOK_UP, examine},
};

/// Examines the account first and then, with a key, the `rights` there.
pub(in crate::provider) async fn examine_account<A: SignedApi>(
    signed: &Signed<A>,
    region: &str,
    rights: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
) -> Result<Vec<Finding>, Error> {
    let (key, origin) = (signed.key().await, signed.api.origin());
    let account = key.map(|key| format!("account {}, region {region}, by {origin}", key.account));
    let without = (&["rights"][..], "check cannot ask for rights without an account");
    examine("account", account, without, rights).await
}

/// Gets an access token first and then, with one, finds out the `rest`: whether VMs can be looked up and deleted. `cloud`: who gives it.
pub(in crate::provider) async fn examine_token<S: TokenSource>(
    api: &Authorized<S>,
    cloud: &str,
    rest: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
) -> Result<Vec<Finding>, Error> {
    let token = api.origin().await.map(|origin| format!("{cloud} gave an access token for {origin}"));
    examine("credentials", token, (&[LOOK_UP, DELETE], "check has no access token"), rest).await
}

/// Whether the cloud refuses this action for want of a right. It is a dry run, or the parameters name nothing.
pub(in crate::provider) async fn probe<A: SignedApi>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Outcome;

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
