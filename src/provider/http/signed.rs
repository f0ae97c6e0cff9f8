//! A client whose requests are signed, by a key of the account that owns the VMs.

use std::sync::Arc;

use hyper::StatusCode;
use secrecy::SecretString;

use super::{AccessKey, Failure, Fresh, MOST_PAGES, Pace, Reply, Tokens, too_many_pages};
use crate::provider::{Error, ErrorClass, account::Account, cloud::Opening};

/// The action that returns the account of a key.
pub(in crate::provider) const CALLER: &str = "GetCallerIdentity";

/// The names and values of an action's parameters.
pub(in crate::provider) type Parameters<'a> = &'a [(&'a str, &'a str)];

/// What a service of actions and parameters is asked.
#[derive(Clone, Copy)]
pub(in crate::provider) struct Query<'a> {
    /// For errors: "reading the instance".
    pub doing: &'static str,
    /// The name of the action.
    pub action: &'static str,
    /// Its parameters.
    pub parameters: Parameters<'a>,
}

impl<'a> Query<'a> {
    /// This action with these parameters.
    pub(in crate::provider) fn new(
        doing: &'static str,
        action: &'static str,
        parameters: Parameters<'a>,
    ) -> Self {
        Self { doing, action, parameters }
    }

    /// The pace of the action: a question begins with one of these verbs.
    pub(in crate::provider) fn pace(&self) -> Pace {
        let is_question = ["Describe", "Get", "Assume"].iter().any(|verb| self.action.starts_with(verb));
        if is_question { Pace::Read } else { Pace::Write }
    }
}

/// What proves who asks.
#[derive(Clone, Copy)]
pub(in crate::provider) enum Authentication<'a> {
    /// A signature by this key.
    Key(&'a AccessKey),
    /// This token, which is one of the parameters.
    Token(&'a SecretString),
}

impl<'a> Authentication<'a> {
    /// The key, if the request is signed.
    pub(in crate::provider) fn key(self) -> Option<&'a AccessKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Token(_) => None,
        }
    }

    /// What no error may quote.
    pub(in crate::provider) fn secret(self) -> SecretString {
        match self {
            Self::Key(key) => key.secret.clone(),
            Self::Token(token) => token.clone(),
        }
    }
}

/// A cloud's services of actions and parameters.
pub(in crate::provider) trait SignedApi {
    /// What they answer.
    type Answer: SignedAnswer;

    /// The cloud's word for an account, for messages.
    const ACCOUNT: &'static str;

    /// Where keys come from, in a few words, for people.
    fn origin(&self) -> &'static str;

    /// A new key.
    async fn key(&self) -> Result<Fresh<AccessKey>, Error>;

    /// Sends a request. No error quotes the secret of the authentication.
    async fn send(&self, query: Query<'_>, authentication: Authentication<'_>) -> Result<Reply, Error>;

    /// What distinguishes this place from another one at the same address, with a key of this account.
    fn identity(&self, account: &str) -> String {
        account.to_owned()
    }
}

/// An answer to an action *(no client)*.
pub(in crate::provider) trait SignedAnswer: Sized {
    /// The answer to this action, or what the cloud says instead.
    fn read(action: &str, reply: Reply) -> Result<Self, Failure>;

    /// Whether the cloud refused a request because of its key, so that a new one may help.
    fn is_refusal(status: StatusCode, failure: &Failure) -> bool;

    /// Whether the cloud says only that what the request names does not exist.
    fn names_nothing(failure: &Failure) -> bool;

    /// The account in the answer to [`CALLER`].
    fn account(&self) -> Result<String, Error>;

    /// The parameter that asks for the next page of a list.
    fn next(&self) -> Option<(&'static str, String)>;
}

/// A key, and whose it is.
#[derive(Debug)]
pub(in crate::provider) struct OwnedKey {
    key: AccessKey,
    /// The account.
    pub account: String,
    /// What [distinguishes](SignedApi::identity) the place.
    pub identity: String,
}

/// A client for such services, and the keys for them.
pub(in crate::provider) struct Signed<A> {
    /// The services.
    pub api: A,
    keys: Tokens<Arc<OwnedKey>>,
    /// The [`identity`](OwnedKey::identity) that owns the VMs.
    account: Account,
}

impl<A: SignedApi> Signed<A> {
    /// With keys of the account that this place is of.
    pub fn new(api: A, opening: &Opening<'_>) -> Self {
        Self { api, keys: Tokens::default(), account: Account::of(opening) }
    }

    /// A key of the account that owns the VMs. Another account's would see none of them.
    pub async fn key(&self) -> Result<Arc<OwnedKey>, Error> {
        let owned = self.keys.get(async || self.fetch().await.map_err(never_absent)).await?;
        self.account.ensure(A::ACCOUNT, &owned.identity)?;
        Ok(owned)
    }

    /// Asks in the account that owns the VMs. A key that the cloud refuses is not used again.
    pub async fn call(&self, query: Query<'_>) -> Result<A::Answer, Failure> {
        let owned = self.key().await?;
        let reply = self.api.send(query, Authentication::Key(&owned.key)).await?;
        let status = reply.status;
        let answer = A::Answer::read(query.action, reply);
        if answer.as_ref().is_err_and(|failure| A::Answer::is_refusal(status, failure)) {
            self.keys.forget(|it| Arc::ptr_eq(it, &owned));
        }
        answer
    }

    /// Reads a list page by page. No failure means absence: a list names nothing that could be absent.
    pub async fn pages(
        &self,
        query: Query<'_>,
        mut take: impl FnMut(A::Answer) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        let mut next: Option<(&str, String)> = None;
        for _ in 0..MOST_PAGES {
            let of_page = next.as_ref().map(|(name, value)| (*name, value.as_str()));
            let parameters: Vec<_> = query.parameters.iter().copied().chain(of_page).collect();
            let page = self.call(Query { parameters: &parameters, ..query }).await;
            let page =
                page.map_err(|Failure { code, error }| Failure { code, error: never_absent(error) })?;
            next = page.next();
            take(page)?;
            if next.is_none() {
                return Ok(());
            }
        }
        Err(too_many_pages(query.doing).into())
    }

    /// Reads a whole list, by what `read` finds in each page.
    pub async fn all<T>(
        &self,
        query: Query<'_>,
        read: impl Fn(A::Answer) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        let whole = self.pages(query, |page| {
            all.extend(read(page)?);
            Ok(())
        });
        whole.await?;
        Ok(all)
    }

    async fn fetch(&self) -> Result<Fresh<Arc<OwnedKey>>, Error> {
        let Fresh { value: key, expires } = self.api.key().await?;
        let query = Query::new("asking whose the credentials are", CALLER, &[]);
        let reply = self.api.send(query, Authentication::Key(&key)).await?;
        let account = A::Answer::read(CALLER, reply)?.account()?;
        let identity = self.api.identity(&account);
        Ok(Fresh { value: Arc::new(OwnedKey { key, account, identity }), expires })
    }
}

/// The same error if the request named nothing that could be absent.
fn never_absent(error: Error) -> Error {
    let class = if error.class == ErrorClass::NotFound { ErrorClass::Transient } else { error.class };
    Error { class, ..error }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use secrecy::ExposeSecret as _;
    use tokio::task::yield_now;

    use super::*;
    use crate::provider::cloud::RecordedPlace;

    /// It refuses its first key, and lists have so many pages. It answers with an account or with the number of a page; the last one
    /// ends with a dot.
    struct Fake {
        keys: AtomicU32,
        pages: u32,
    }

    struct Text(String);

    impl SignedApi for Fake {
        type Answer = Text;

        const ACCOUNT: &'static str = "account";

        fn origin(&self) -> &'static str {
            "a key"
        }

        async fn key(&self) -> Result<Fresh<AccessKey>, Error> {
            yield_now().await;
            let id = self.keys.fetch_add(1, Relaxed).to_string();
            Ok(AccessKey { id: id.into(), secret: "secret".into(), token: None }.into())
        }

        async fn send(&self, query: Query<'_>, authentication: Authentication<'_>) -> Result<Reply, Error> {
            yield_now().await;
            let is_first = authentication.key().is_some_and(|key| key.id.expose_secret() == "0");
            let asked = query.parameters.last().map_or("0", |(_, value)| *value);
            let is_last = asked.parse() == Ok(self.pages - 1);
            Ok(match query.action {
                CALLER => Reply::of(StatusCode::OK, "mine"),
                "Gone" => Reply::of(StatusCode::NOT_FOUND, ""),
                _ if is_first => Reply::of(StatusCode::UNAUTHORIZED, ""),
                _ => Reply::of(StatusCode::OK, &format!("{asked}{}", if is_last { "." } else { "" })),
            })
        }
    }

    impl SignedAnswer for Text {
        fn read(_: &str, reply: Reply) -> Result<Self, Failure> {
            let is_absent = reply.status == StatusCode::NOT_FOUND;
            let reply = reply.success_or(|it| it.error("", "", is_absent.then_some(ErrorClass::NotFound)))?;
            Ok(Self(String::from_utf8_lossy(&reply.body).into_owned()))
        }

        fn is_refusal(status: StatusCode, _: &Failure) -> bool {
            status == StatusCode::UNAUTHORIZED
        }

        fn names_nothing(_: &Failure) -> bool {
            false
        }

        fn account(&self) -> Result<String, Error> {
            Ok(self.0.clone())
        }

        fn next(&self) -> Option<(&'static str, String)> {
            let number: u32 = self.0.parse().ok()?;
            Some(("Page", (number + 1).to_string()))
        }
    }

    fn signed(keys: u32, pages: u32, opening: &Opening<'_>) -> Signed<Fake> {
        Signed::new(Fake { keys: AtomicU32::new(keys), pages }, opening)
    }

    #[tokio::test]
    async fn a_refused_key_is_not_used_again() {
        let signed = signed(0, 1, &Opening::new(1));
        let ask = async || signed.call(Query::new("asking", "Ask", &[])).await;
        assert!(ask().await.is_err_and(|failure| failure.error.class == ErrorClass::Unauthorized));
        assert_eq!(ask().await.ok().map(|answer| answer.0).as_deref(), Some("0."));
        assert!(ask().await.is_ok());
        assert_eq!(signed.api.keys.load(Relaxed), 2, "a good key is kept");
    }

    #[tokio::test]
    async fn a_list_is_read_to_its_end_and_is_never_absent() {
        let all = async |action: &'static str, pages: u32| {
            let signed = signed(1, pages, &Opening::new(1));
            let list = signed.all(Query::new("listing", action, &[]), |page| Ok(vec![page.0]));
            list.await.map_err(|failure| failure.error.class)
        };
        assert_eq!(all("List", 3).await, Ok(vec!["0".to_owned(), "1".to_owned(), "2.".to_owned()]));
        assert_eq!(all("List", u32::MAX).await, Err(ErrorClass::Transient), "it does not end");
        assert_eq!(all("Gone", 1).await, Err(ErrorClass::Transient));
    }

    #[tokio::test]
    async fn a_key_of_another_account_asks_nothing() {
        for (identity, asks) in [("mine", true), ("another", false)] {
            let recorded = RecordedPlace::former("a", Some(identity));
            let signed = signed(1, 1, &Opening { recorded: Some(recorded), ..Opening::new(1) });
            let answer = signed.call(Query::new("asking", "Ask", &[])).await;
            assert_eq!(answer.is_ok(), asks, "{identity}");
        }
    }
}
