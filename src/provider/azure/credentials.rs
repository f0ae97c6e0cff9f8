//! Who the operator is to Azure: access tokens, and where they come from.
//!
//! ```text
//! AZURE_CLIENT_SECRET         the secret of an application
//! AZURE_FEDERATED_TOKEN_FILE  workload identity: a token of the cluster stands for an application
//! else                        the metadata service, for the managed identity of the machine
//! ```
//!
//! The admission of workload identity sets variables of the environment. A setting overrules the variable of its name.

use std::{env, time::Duration};

use hyper::{Request, body::Bytes, header};
use jiff::Timestamp;
use operator_kit::Message;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tokio::{fs::File, io::AsyncReadExt as _};

use super::{
    answer::accepted,
    settings::{Region, Settings, region},
};
use crate::{
    provider::{
        Error, ErrorClass,
        http::{Call, Client, Fresh, Options, Pace, Tokens},
    },
    settings::Malformed,
};

const CLIENT_ID: &str = "AZURE_CLIENT_ID";
const TENANT: &str = "AZURE_TENANT_ID";
const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";

/// The metadata service, and the variable by which Microsoft's libraries find another one.
const METADATA: &str = "http://169.254.169.254";
const METADATA_HOST: &str = "AZURE_POD_IDENTITY_AUTHORITY_HOST";

/// The way in which a federated token is handed over.
const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// The longest file that holds a token, in bytes.
const LONGEST_FILE: u64 = 64 << 10;

/// The credentials of one set of settings.
pub(super) struct Credentials {
    source: Source,
    audience: String,
    client: Client,
    tokens: Tokens<SecretString>,
}

/// Where tokens come from.
#[derive(Debug)]
pub(super) enum Source {
    /// The endpoint for tokens, for an application.
    Application {
        /// Its URL.
        url: String,
        /// The application.
        client_id: SecretString,
        /// What proves it.
        proof: Proof,
    },
    /// The metadata service at this URL, for this identity or the only one.
    Machine { url: String, client_id: Option<SecretString> },
}

/// What proves to be an application.
#[derive(Debug)]
pub(super) enum Proof {
    /// Its secret.
    Secret(SecretString),
    /// The path of a file with a token of the cluster.
    TokenFile(String),
}

#[derive(Deserialize)]
struct Token {
    access_token: SecretString,
    /// In seconds: a number, or the same as text.
    expires_in: Value,
}

/// A variable of the environment that is not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where tokens come from by these settings and variables, and for which of Azure's clouds.
pub(super) fn source(
    settings: &Settings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(Source, Region), Malformed> {
    let authority = settings.authority.clone().or_else(|| variable("AZURE_AUTHORITY_HOST"));
    let region = region(authority.as_deref(), settings.manager.as_deref())?;
    let secret =
        |setting: &Option<SecretString>, name| setting.clone().or_else(|| variable(name).map(Into::into));
    let client_id = secret(&settings.client_id, CLIENT_ID);
    let proof = settings.client_secret.clone().map(Proof::Secret);
    let Some(proof) = proof.or_else(|| variable(TOKEN_FILE).map(Proof::TokenFile)) else {
        let url = variable(METADATA_HOST).unwrap_or_else(|| METADATA.to_owned());
        return Ok((Source::Machine { url: url.trim_end_matches('/').to_owned(), client_id }, region));
    };
    let malformed = |key, problem: &str| Malformed { key, problem: problem.to_owned() };
    let client_id = client_id
        .ok_or_else(|| malformed(CLIENT_ID, "it is needed with a secret and with workload identity"))?;
    let tenant = secret(&settings.tenant, TENANT);
    let is_tenant = |tenant: &&SecretString| {
        tenant.expose_secret().chars().all(|it| it.is_ascii_alphanumeric() || "-.".contains(it))
    };
    let tenant = tenant.as_ref().filter(is_tenant);
    let tenant =
        tenant.ok_or_else(|| malformed(TENANT, "it must be the ID of a tenant or one of its domains"))?;
    let url = format!("{}/{}/oauth2/v2.0/token", region.authority, tenant.expose_secret());
    Ok((Source::Application { url, client_id, proof }, region))
}

impl Credentials {
    /// Those of this source, for this audience.
    pub(super) fn new(source: Source, audience: String) -> Result<Self, Error> {
        let is_machine = matches!(source, Source::Machine { .. });
        let options = if is_machine { Options::metadata() } else { Options::default() };
        Ok(Self { source, audience, client: Client::new(options)?, tokens: Tokens::default() })
    }

    /// Where they come from, for people.
    pub(super) fn origin(&self) -> &'static str {
        match self.source {
            Source::Application { proof: Proof::Secret(_), .. } => {
                "the application's secret (AZURE_CLIENT_SECRET)"
            }
            Source::Application { .. } => "workload identity (AZURE_FEDERATED_TOKEN_FILE)",
            Source::Machine { .. } => "the managed identity of the machine",
        }
    }

    /// A valid access token.
    pub(super) async fn token(&self) -> Result<SecretString, Error> {
        self.tokens.get(async || self.fetch().await).await
    }

    /// Resource Manager refuses the token.
    pub(super) async fn forget(&self) {
        self.tokens.forget().await;
    }

    async fn fetch(&self) -> Result<Fresh<SecretString>, Error> {
        let (doing, advice, request, secrets) = match &self.source {
            Source::Application { url, client_id, proof } => {
                let mut form = vec![
                    ("grant_type", "client_credentials".to_owned()),
                    ("client_id", client_id.expose_secret().to_owned()),
                    ("scope", format!("{}/.default", self.audience)),
                ];
                let secret = match proof {
                    Proof::Secret(secret) => {
                        form.push(("client_secret", secret.expose_secret().to_owned()));
                        secret.clone()
                    }
                    Proof::TokenFile(path) => {
                        let token = read(path).await?;
                        form.push(("client_assertion_type", JWT_BEARER.to_owned()));
                        form.push(("client_assertion", token.expose_secret().to_owned()));
                        token
                    }
                };
                let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
                let request =
                    Request::post(url).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
                let advice = "see AZURE_TENANT_ID, AZURE_CLIENT_ID and the application's secret or federated credential";
                (
                    "asking Microsoft Entra for an access token",
                    advice,
                    request.body(body.into()),
                    vec![secret],
                )
            }
            Source::Machine { url, client_id } => {
                let client_id = client_id.as_ref().map(|id| ("client_id", id.expose_secret()));
                let query = [("api-version", "2018-02-01"), ("resource", &self.audience)]
                    .into_iter()
                    .chain(client_id);
                let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
                let url = format!("{url}/metadata/identity/oauth2/token?{query}");
                let request = Request::get(url).header("Metadata", "true");
                let advice = "set AZURE_CLIENT_SECRET, use workload identity, or give the machine the managed identity AZURE_CLIENT_ID";
                (
                    "asking the metadata service for an access token",
                    advice,
                    request.body(Bytes::new()),
                    Vec::new(),
                )
            }
        };
        let request =
            request.map_err(|_| Error::new(ErrorClass::Invalid, "the URL for tokens cannot be used"))?;
        let reply = self.client.send(Call { secrets, ..Call::new(doing, Pace::Read, request) }).await;
        let reply = reply.and_then(accepted).map_err(|error| error.advising(advice))?;
        let Token { access_token, expires_in } = reply.json()?;
        let seconds = expires_in.as_u64().or_else(|| expires_in.as_str()?.parse().ok());
        let seconds = seconds.and_then(|it| u32::try_from(it).ok());
        let seconds = seconds.ok_or_else(|| reply.unreadable("access token", "its end is no time"))?;
        Ok(Fresh { value: access_token, expires: Timestamp::now() + Duration::from_secs(seconds.into()) })
    }
}

/// The token in a file. It is read anew each time, as kubelet replaces it.
async fn read(path: &str) -> Result<SecretString, Error> {
    let mut text = String::new();
    let read = async { File::open(path).await?.take(LONGEST_FILE).read_to_string(&mut text).await };
    match read.await {
        Ok(_) => Ok(text.trim().into()),
        Err(problem) => {
            let public = format!("reading the file that {TOKEN_FILE} names failed ({})", problem.kind());
            let full = format!("{public}: {path}");
            Err(Error::new(ErrorClass::Invalid, Message::new(public, full)))
        }
    }
}

#[cfg(test)]
mod tests;
