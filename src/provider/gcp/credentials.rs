//! The operator's identity for Google: access tokens, and their sources.
//!
//! ```text
//! GCP_CREDENTIALS                 a JSON document: service account or workload identity federation
//! GOOGLE_APPLICATION_CREDENTIALS  the file of such a document
//! else                            the metadata server, for the identity of the machine or of the Pod
//! ```

use std::collections::HashMap;

use hyper::{Method, header::HeaderValue};
use jiff::Timestamp;
use operator_kit::Message;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::accepted;
use crate::provider::{
    Error, ErrorClass,
    http::{
        Call, Client, Fresh, Metadata, Proof, TokenSource,
        identity::{is_safe, read_file, variable},
        jwt::SigningKey,
    },
};

/// All that deletions need.
const COMPUTE: &str = "https://www.googleapis.com/auth/compute";
/// The scope for the exchange of a foreign token. The rights of the service account limit it.
const CLOUD_PLATFORM: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Where keys can be exchanged for access tokens. In any other universe the signed claims are the token.
const UNIVERSE: &str = "googleapis.com";

/// The file of a document.
const FILE: &str = "the file that GOOGLE_APPLICATION_CREDENTIALS names";

/// The credentials of one set of settings.
pub(super) enum Source {
    /// A document of the settings or in a file.
    Document(Proof),
    /// The metadata server.
    Metadata(Metadata),
}

/// What proves the identity.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Document {
    ServiceAccount(ServiceAccount),
    ExternalAccount(ExternalAccount),
}

#[derive(Deserialize)]
pub(super) struct ServiceAccount {
    client_email: String,
    private_key: SecretString,
    #[serde(default)]
    private_key_id: String,
    token_uri: String,
    #[serde(default)]
    universe_domain: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ExternalAccount {
    audience: String,
    subject_token_type: String,
    token_url: String,
    service_account_impersonation_url: Option<String>,
    credential_source: TokenFile,
}

#[derive(Deserialize)]
struct TokenFile {
    file: String,
    /// With a `subject_token_field_name` the file holds the token in this field of a JSON document.
    #[serde(default)]
    format: HashMap<String, Value>,
}

impl Source {
    /// The credentials of this document (`GCP_CREDENTIALS`), or else those that Google's libraries find by themselves.
    pub(super) fn new(document: Option<SecretString>) -> Self {
        let file = || Some(Proof::File(FILE, variable("GOOGLE_APPLICATION_CREDENTIALS")?));
        let advice = "set GCP_CREDENTIALS, or give the Pod an identity";
        let missing =
            "the node or the Pod has no service account: set GCP_CREDENTIALS, or give the Pod an identity";
        let missing = Some((ErrorClass::Unauthorized, missing));
        let metadata = || Self::Metadata(Metadata::new(variable("GCE_METADATA_HOST"), missing, advice));
        document.map(Proof::Secret).or_else(file).map_or_else(metadata, Self::Document)
    }
}

impl TokenSource for Source {
    fn origin(&self) -> &'static str {
        match self {
            Self::Document(Proof::Secret(_)) => "GCP_CREDENTIALS",
            Self::Document(Proof::File(..)) => FILE,
            Self::Metadata(_) => "the metadata server",
        }
    }

    fn is_metadata(&self) -> bool {
        matches!(self, Self::Metadata(_))
    }

    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error> {
        let proof = match self {
            Self::Metadata(server) => {
                let path = "/computeMetadata/v1/instance/service-accounts/default/token";
                let header = ("metadata-flavor", HeaderValue::from_static("Google"));
                return server.ask(client, Method::GET, path, header).await?.token();
            }
            Self::Document(proof) => proof,
        };
        let document = parse(proof.read().await?.expose_secret()).map_err(|problem| {
            let message = format!("{} cannot be used: {problem}", self.origin());
            // Nothing shows that a file was replaced, so it is read again soon.
            let is_file = matches!(proof, Proof::File(..));
            let class = if is_file { ErrorClass::Unauthorized } else { ErrorClass::Invalid };
            Error::new(class, Message::public(message))
        })?;
        match document {
            Document::ServiceAccount(account) => of_key(client, &account).await,
            Document::ExternalAccount(account) => of_federation(client, &account).await,
        }
    }
}

async fn of_key(client: &Client, account: &ServiceAccount) -> Result<Fresh<SecretString>, Error> {
    // This clock may be ahead of Google's.
    let issued = Timestamp::now().as_second() - 10;
    let claims = json!({
        "iss": account.client_email,
        "scope": COMPUTE,
        "aud": account.token_uri,
        "iat": issued,
        "exp": issued + 3600,
    });
    let assertion = SigningKey::read(&account.private_key)
        .and_then(|key| key.token(&account.private_key_id, &claims))
        .ok_or_else(|| {
            Error::new(ErrorClass::Invalid, "the private_key of the service account cannot be used")
        })?;
    let fields = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ("assertion", assertion.expose_secret()),
    ];
    let call = Call::to("asking Google for an access token", Method::POST, &account.token_uri)?;
    client.token(call.form(&fields).hiding([&assertion])).await
}

async fn of_federation(client: &Client, account: &ExternalAccount) -> Result<Fresh<SecretString>, Error> {
    let TokenFile { file, format } = &account.credential_source;
    let mut subject = read_file("the token file of workload identity federation", file).await?;
    if let Some(field) = format.get("subject_token_field_name").and_then(Value::as_str) {
        let document: Value = serde_json::from_str(subject.expose_secret()).unwrap_or_default();
        subject = document[field].as_str().unwrap_or_default().into();
    }
    let fields = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("audience", &account.audience),
        ("scope", CLOUD_PLATFORM),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("subject_token", subject.expose_secret()),
        ("subject_token_type", &account.subject_token_type),
    ];
    let doing = "exchanging the Pod's token for one of Google's";
    let call = Call::to(doing, Method::POST, &account.token_url)?;
    let federated = client.token(call.form(&fields).hiding([&subject])).await?;
    let Some(url) = &account.service_account_impersonation_url else { return Ok(federated) };
    let wanted = json!({ "scope": [COMPUTE], "lifetime": "3600s" });
    let call = Call::to("asking for an access token of the service account", Method::POST, url)?;
    accepted(client.send_with(&federated.value, call.json(&wanted)).await?, None)?.token()
}

/// Reads a document. An error shows none of its values.
pub(super) fn parse(json: &str) -> Result<Document, &'static str> {
    let document = serde_json::from_str(json).map_err(|_| {
        "it must be the JSON document of a service account's key (service_account), or of workload identity federation with \
         a token in a file (external_account)"
    })?;
    let urls = match &document {
        Document::ServiceAccount(account) => {
            if account.universe_domain.as_deref().is_some_and(|universe| universe != UNIVERSE) {
                return Err(
                    "it is a key of another universe_domain than googleapis.com, which the operator does not support",
                );
            }
            SigningKey::read(&account.private_key)
                .ok_or("its private_key must be an RSA key in PKCS #8, as Google writes it")?;
            vec![&account.token_uri]
        }
        Document::ExternalAccount(account) => {
            [&account.token_url].into_iter().chain(&account.service_account_impersonation_url).collect()
        }
    };
    let is_safe = urls.into_iter().all(|url| is_safe(url));
    if is_safe { Ok(document) } else { Err("its URLs must be https") }
}

#[cfg(test)]
mod tests;
