//! IBM Cloud's access tokens, for an API key or for a trusted profile.
//!
//! A token names its account. So the operator verifies the account of each request, whatever happens to the key.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hyper::{
    StatusCode,
    header::{ACCEPT, HeaderValue},
};
use operator_kit::Message;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

use super::{
    Error, ErrorClass, Finding,
    account::Account,
    cloud::{AdaptorVolume, Opening, VolumeSource},
    finding::examine,
    http::{
        Call, Client, Fresh, Options, Reply, Tokens,
        identity::{form, read_file, variable},
    },
};

/// The path of the endpoint. Settings name it with or without.
const PATH: &str = "/identity/token";

/// The token of a Pod for a trusted profile.
pub(super) const TOKEN: AdaptorVolume = AdaptorVolume {
    name: "vault-token",
    path: "/var/run/secrets/tokens",
    source: VolumeSource::Token { audience: "iam", file: "vault-token" },
};

/// The environment variable that names another file with the token.
const TOKEN_FILE: &str = "IBMCLOUD_CR_TOKEN_FILENAME";

/// Who the operator is to IBM Cloud.
pub(super) struct Iam {
    client: Client,
    url: String,
    source: Source,
    account: Account,
    tokens: Tokens<Identity>,
}

/// Where tokens come from.
enum Source {
    /// An API key.
    Key(SecretString),
    /// A trusted profile, for a token of the Pod's ServiceAccount in a file.
    Profile { id: SecretString, file: String },
}

/// A token, and its account.
#[derive(Clone)]
pub(super) struct Identity {
    token: SecretString,
    pub(super) account: String,
}

impl Iam {
    /// The identity of an API key or, without one, of a trusted profile.
    pub(super) fn new(
        endpoint: &str,
        key: Option<SecretString>,
        profile: Option<SecretString>,
        opening: &Opening<'_>,
    ) -> Result<Self, Error> {
        let file = || variable(TOKEN_FILE).unwrap_or_else(|| format!("{}/{}", TOKEN.path, TOKEN.name));
        let source = match (key, profile) {
            (Some(key), _) => Source::Key(key),
            (None, Some(id)) => Source::Profile { id, file: file() },
            (None, None) => return Err(Error::new(ErrorClass::Invalid, "there is no API key")),
        };
        let base = endpoint.trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        Ok(Self {
            client: Client::new(Options::default())?,
            url: format!("{base}{PATH}"),
            source,
            account: Account::of(opening),
            tokens: Tokens::default(),
        })
    }

    /// Where tokens come from, for people.
    fn origin(&self) -> &'static str {
        match self.source {
            Source::Key(_) => "the API key",
            Source::Profile { .. } => "the trusted profile",
        }
    }

    /// A token of the account that owns the VMs.
    pub(super) async fn identity(&self) -> Result<Identity, Error> {
        let identity = self.tokens.get(async || self.fetch().await).await?;
        self.account.ensure("IBM Cloud account", &identity.account)?;
        Ok(identity)
    }

    /// Sends `call` with this token. A token that the cloud refuses is not used again.
    pub(super) async fn send(
        &self,
        client: &Client,
        identity: &Identity,
        call: Call,
    ) -> Result<Reply, Error> {
        let token = &identity.token;
        let reply = client.send_with(token, call).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            self.tokens.forget(|it| it.token.expose_secret() == token.expose_secret()).await;
        }
        Ok(reply)
    }

    /// Examines the account first and then, with a token, these subjects.
    pub(super) async fn examine(
        &self,
        subjects: &[&'static str],
        rest: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
    ) -> Result<Vec<Finding>, Error> {
        let identity = self.identity().await;
        let account = identity.map(|it| format!("account {}, by {}", it.account, self.origin()));
        examine("account", account, (subjects, "check has no access token"), rest).await
    }

    async fn fetch(&self) -> Result<Fresh<Identity>, Error> {
        let (secret, profile) = match &self.source {
            Source::Key(key) => (key.clone(), None),
            Source::Profile { id, file } => {
                let token = read_file("the token of the ServiceAccount", file).await.map_err(|error| {
                    error.advising("without IBMCLOUD_API_KEY the Pod needs the volume vault-token")
                })?;
                (token, Some(id))
            }
        };
        let fields = match profile {
            None => [
                ("apikey", secret.expose_secret()),
                ("grant_type", "urn:ibm:params:oauth:grant-type:apikey"),
                ("response_type", "cloud_iam"),
            ],
            Some(profile) => [
                ("cr_token", secret.expose_secret()),
                ("grant_type", "urn:ibm:params:oauth:grant-type:cr-token"),
                ("profile_id", profile.expose_secret()),
            ],
        };
        let doing = "asking IBM Cloud for an access token";
        let mut call = Call::of(doing, form(&self.url, &fields), "the endpoint for tokens cannot be used")?;
        call.request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        call.secrets.extend([Some(&secret), profile].into_iter().flatten().cloned());
        let fresh = self.client.send(call).await?.success_or(refused)?.token()?;
        let account = account(fresh.value.expose_secret()).ok_or_else(|| {
            let message = format!("{doing} failed: the token does not say of which account it is");
            Error::new(ErrorClass::Transient, Message::public(message))
        })?;
        Ok(Fresh { value: Identity { token: fresh.value, account }, expires: fresh.expires })
    }
}

/// Why there is no token. The endpoint answers 400 to a key that it does not know.
fn refused(reply: &Reply) -> Error {
    let [code, message] = reply.texts([&["/errorCode"], &["/errorMessage"]]);
    let is_refusal = reply.status == StatusCode::BAD_REQUEST && !code.is_empty();
    reply.error(&code, &message, is_refusal.then_some(ErrorClass::Unauthorized))
}

/// The account that a token names. The endpoint itself gave the token, so its signature does not matter.
fn account(token: &str) -> Option<String> {
    let claims = token.split('.').nth(1)?.trim_end_matches('=');
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    let account = claims.pointer("/account/bss")?.as_str()?;
    // It becomes part of a header.
    let is_account =
        (1..=64).contains(&account.len()) && account.bytes().all(|it| it.is_ascii_alphanumeric());
    is_account.then(|| account.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provider::http::identity::unsafe_url;

    fn token(claims: &Value) -> String {
        format!("head.{}.signature", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn a_token_says_of_which_account_it_is() {
        let claims =
            json!({ "iam_id": "iam-ServiceId-1", "account": { "valid": true, "bss": "4329073d16" } });
        assert_eq!(account(&token(&claims)).as_deref(), Some("4329073d16"));
    }

    #[test]
    fn a_malformed_token_names_no_account() {
        for claims in [
            json!({}),
            json!({ "account": "4329073d16" }),
            json!({ "account": { "bss": 4329 } }),
            json!({ "account": { "bss": "" } }),
            json!({ "account": { "bss": "a:b" } }),
            json!({ "account": { "bss": "a\r\nb" } }),
            json!([]),
        ] {
            assert_eq!(account(&token(&claims)), None, "{claims}");
        }
        for text in ["", ".", "a", "a.b", "a.b.c", "..", "a.!.c"] {
            assert_eq!(account(text), None, "{text}");
        }
    }

    #[test]
    fn an_endpoint_is_spelled_with_its_path_or_without() {
        let opening = Opening::new(1);
        for endpoint in [
            "https://iam.example/identity/token",
            "https://iam.example/identity/token/",
            "https://iam.example/",
            "https://iam.example",
        ] {
            let iam = Iam::new(endpoint, Some("key".into()), None, &opening).unwrap();
            assert_eq!(iam.url, "https://iam.example/identity/token", "{endpoint}");
        }
        let check = |endpoint| unsafe_url("ENDPOINT", endpoint).is_none();
        assert!(check("https://iam.example/identity/token") && !check("http://iam.example"));
    }
}
