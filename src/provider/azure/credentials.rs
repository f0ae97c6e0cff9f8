//! The operator's identity for Azure: access tokens, and their sources.
//!
//! ```text
//! AZURE_CLIENT_SECRET         the secret of an application
//! AZURE_FEDERATED_TOKEN_FILE  workload identity: a token of the cluster stands for an application
//! else                        the metadata service, for the managed identity of the machine
//! ```
//!
//! The admission of workload identity sets environment variables. A setting overrules the variable of its name.

use hyper::{Request, body::Bytes};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    answer::{accepted, accepted_metadata, is_of_token},
    settings::{Environment, Settings, environment},
};
use crate::{
    provider::{
        Error,
        http::{
            Call, Client, Fresh, Reply, TokenSource, encoded,
            identity::{form, read_file},
        },
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

/// The credentials of one set of settings, for one audience.
pub(super) struct Credentials {
    pub(super) source: Source,
    pub(super) audience: String,
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

/// What proves the identity of an application.
#[derive(Debug)]
pub(super) enum Proof {
    /// Its secret.
    Secret(SecretString),
    /// The path of a file with a token of the cluster.
    TokenFile(String),
}

/// The source of tokens by these settings and variables, and Azure's cloud that they are for.
pub(super) fn source(
    settings: &Settings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<(Source, Environment), Malformed> {
    let authority = settings.authority.clone().or_else(|| variable("AZURE_AUTHORITY_HOST"));
    let environment = environment(authority.as_deref(), settings.manager.as_deref())?;
    let secret =
        |setting: &Option<SecretString>, name| setting.clone().or_else(|| variable(name).map(Into::into));
    let client_id = secret(&settings.client_id, CLIENT_ID);
    let proof = settings.client_secret.clone().map(Proof::Secret);
    let Some(proof) = proof.or_else(|| variable(TOKEN_FILE).map(Proof::TokenFile)) else {
        let url = variable(METADATA_HOST).unwrap_or_else(|| METADATA.to_owned());
        return Ok((Source::Machine { url: url.trim_end_matches('/').to_owned(), client_id }, environment));
    };
    let client_id = client_id
        .ok_or_else(|| Malformed::new(CLIENT_ID, "it is needed with a secret and with workload identity"))?;
    let is_part = |character: char| character.is_ascii_alphanumeric() || "-.".contains(character);
    let tenant = secret(&settings.tenant, TENANT).filter(|it| it.expose_secret().chars().all(is_part));
    let tenant = tenant
        .ok_or_else(|| Malformed::new(TENANT, "it must be the ID of a tenant or one of its domains"))?;
    let url = format!("{}/{}/oauth2/v2.0/token", environment.authority, tenant.expose_secret());
    Ok((Source::Application { url, client_id, proof }, environment))
}

impl TokenSource for Credentials {
    fn origin(&self) -> &'static str {
        match self.source {
            Source::Application { proof: Proof::Secret(_), .. } => {
                "the application's secret (AZURE_CLIENT_SECRET)"
            }
            Source::Application { .. } => "workload identity (AZURE_FEDERATED_TOKEN_FILE)",
            Source::Machine { .. } => "the managed identity of the machine",
        }
    }

    fn is_metadata(&self) -> bool {
        matches!(self.source, Source::Machine { .. })
    }

    fn is_refusal(&self, reply: &Reply) -> bool {
        is_of_token(reply)
    }

    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error> {
        let (doing, advice, request, secrets) = match &self.source {
            Source::Application { url, client_id, proof } => {
                let scope = format!("{}/.default", self.audience);
                let mut fields = vec![
                    ("grant_type", "client_credentials"),
                    ("client_id", client_id.expose_secret()),
                    ("scope", &scope),
                ];
                let (field, secret) = match proof {
                    Proof::Secret(secret) => ("client_secret", secret.clone()),
                    Proof::TokenFile(path) => {
                        fields.push(("client_assertion_type", JWT_BEARER));
                        let what = "the file that AZURE_FEDERATED_TOKEN_FILE names";
                        ("client_assertion", read_file(what, path).await?)
                    }
                };
                fields.push((field, secret.expose_secret()));
                let request = form(url, &fields);
                let advice = "see AZURE_TENANT_ID, AZURE_CLIENT_ID and the application's secret or federated credential";
                ("asking Microsoft Entra for an access token", advice, request, vec![secret])
            }
            Source::Machine { url, client_id } => {
                let client_id = client_id.as_ref().map(|id| ("client_id", id.expose_secret()));
                let query = [("api-version", "2018-02-01"), ("resource", &*self.audience)];
                let query = encoded(query.into_iter().chain(client_id));
                let url = format!("{url}/metadata/identity/oauth2/token?{query}");
                let request = Request::get(url).header("Metadata", "true").body(Bytes::new());
                let advice = "set AZURE_CLIENT_SECRET, use workload identity, or give the machine the managed identity AZURE_CLIENT_ID";
                ("asking the metadata service for an access token", advice, request, Vec::new())
            }
        };
        let call = Call::of(doing, request, "the URL for tokens cannot be used")?;
        let accept = if self.is_metadata() { accepted_metadata } else { accepted };
        let reply = client.send(Call { secrets, ..call }).await.and_then(accept);
        reply.map_err(|error| error.advising(advice))?.token()
    }
}

#[cfg(test)]
mod tests;
