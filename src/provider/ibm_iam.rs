//! IBM Cloud's access tokens, for an API key or for a trusted profile.
//!
//! A token names its account. So the operator verifies the account of each request, whatever happens to the key.

use hyper::Method;
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    Error, ErrorClass, Finding,
    account::Account,
    cloud::{AdaptorVolume, Opening, VolumeSource},
    finding::examine,
    http::{Authorized, Call, Client, Fresh, Proof, Reply, TokenSource, identity::variable, jwt},
};

/// The path of the endpoint. Settings name it with or without.
const PATH: &str = "/identity/token";

/// The token of a Pod for a trusted profile.
pub(super) const TOKEN: AdaptorVolume = AdaptorVolume {
    name: "vault-token",
    path: FOLDER,
    source: VolumeSource::Token { audience: "iam", file: FILE },
};
const FOLDER: &str = "/var/run/secrets/tokens";
const FILE: &str = "vault-token";

/// The environment variable that names another file with the token.
const TOKEN_FILE: &str = "IBMCLOUD_CR_TOKEN_FILENAME";

/// Who the operator is to IBM Cloud.
pub(super) struct Iam {
    url: String,
    /// An API key or, for a trusted profile, a token of the Pod's ServiceAccount.
    proof: Proof,
    /// The identifier of the trusted profile.
    profile: Option<SecretString>,
    /// The account that owns the VMs.
    account: Account,
}

impl Iam {
    /// The identity of an API key or, without one, of a trusted profile.
    pub(super) fn new(
        endpoint: &str,
        key: Option<SecretString>,
        profile: Option<SecretString>,
        opening: &Opening<'_>,
    ) -> Result<Self, Error> {
        let file = || variable(TOKEN_FILE).unwrap_or_else(|| format!("{FOLDER}/{FILE}"));
        let (proof, profile) = match (key, profile) {
            (Some(key), _) => (Proof::Secret(key), None),
            (None, Some(id)) => (Proof::File("the token of the ServiceAccount", file()), Some(id)),
            (None, None) => return Err(Error::new(ErrorClass::Invalid, "there is no API key")),
        };
        let base = endpoint.trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        Ok(Self { url: format!("{base}{PATH}"), proof, profile, account: Account::of(opening) })
    }
}

impl TokenSource for Iam {
    fn origin(&self) -> &'static str {
        if self.profile.is_none() { "the API key" } else { "the trusted profile" }
    }

    /// Another account's token would see none of the VMs.
    fn ensure(&self, token: &SecretString) -> Result<(), Error> {
        self.account.ensure("IBM Cloud account", &account_of(token)?)
    }

    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error> {
        let secret = self.proof.read().await.map_err(|error| {
            error.advising("without IBMCLOUD_API_KEY the Pod needs the volume vault-token")
        })?;
        let fields = match &self.profile {
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
        let call = Call::to("asking IBM Cloud for an access token", Method::POST, &self.url)?;
        let call = call.form(&fields).hiding([&secret]).hiding(&self.profile);
        let reply = client.send(call.header("accept", "application/json")?).await?;
        let fresh = reply.success_or(Reply::refusal).and_then(|reply| reply.token());
        let fresh =
            fresh.map_err(|error| error.advising_on(ErrorClass::Invalid, "see IBMCLOUD_IAM_ENDPOINT"))?;
        account_of(&fresh.value)?;
        Ok(fresh)
    }
}

impl Authorized<Iam> {
    /// The account that owns the VMs.
    pub(super) async fn account(&self) -> Result<String, Error> {
        account_of(&self.token().await?)
    }

    /// Examines the account first and then, with a token, these subjects.
    pub(super) async fn examine(
        &self,
        subjects: &[&'static str],
        rest: impl AsyncFnOnce() -> Result<Vec<Finding>, Error>,
    ) -> Result<Vec<Finding>, Error> {
        let account = async { Ok(format!("account {}, by {}", self.account().await?, self.origin().await?)) };
        examine("account", account.await, (subjects, "check has no access token"), rest).await
    }
}

/// The account that a token names, or the error that it names none.
fn account_of(token: &SecretString) -> Result<String, Error> {
    let message =
        "asking IBM Cloud for an access token failed: the token does not say of which account it is";
    account(token.expose_secret()).ok_or_else(|| Error::new(ErrorClass::Transient, message))
}

/// The account that a token names. The endpoint itself gave the token, so its signature does not matter.
fn account(token: &str) -> Option<String> {
    let claims = jwt::claims(token)?;
    let account = claims.pointer("/account/bss")?.as_str()?;
    // It becomes part of a header.
    let is_account =
        (1..=64).contains(&account.len()) && account.bytes().all(|it| it.is_ascii_alphanumeric());
    is_account.then(|| account.to_owned())
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    use serde_json::{Value, json};

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
