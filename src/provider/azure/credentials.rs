//! The operator's identity for Azure: access tokens, and their sources.
//!
//! ```text
//! AZURE_CLIENT_SECRET         the secret of an application
//! AZURE_FEDERATED_TOKEN_FILE  workload identity: a token of the cluster stands for an application
//! else                        the metadata service, for the managed identity of the node
//! ```
//!
//! The admission of workload identity sets environment variables. A setting overrules the variable of its name.

use hyper::Method;
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    answer::{accepted, accepted_metadata, is_of_token},
    settings::{Environment, Settings, environment},
};
use crate::{
    provider::{
        Error,
        http::{Call, Client, Fresh, Reply, TokenSource, encoded, identity::read_file},
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

/// What to do if there is no token.
const APPLICATION_ADVICE: &str =
    "see AZURE_TENANT_ID, AZURE_CLIENT_ID and the application's secret or federated credential";
const METADATA_ADVICE: &str =
    "set AZURE_CLIENT_SECRET, use workload identity, or give the node the managed identity AZURE_CLIENT_ID";

/// The credentials of one set of settings, for one audience.
pub(super) struct Credentials {
    pub(super) source: Source,
    pub(super) audience: String,
}

/// Where tokens come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Microsoft Entra, for an application with this secret.
    Secret(Application, SecretString),
    /// Microsoft Entra, for an application that a token of the cluster proves, in the file at this path.
    TokenFile(Application, String),
    /// The metadata service at this URL, for this managed identity or the only one.
    Metadata(String, Option<SecretString>),
}

/// An application.
#[derive(Debug)]
pub(super) struct Application {
    /// The URL of its tenant's endpoint for tokens.
    url: String,
    client_id: SecretString,
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
    let application = || -> Result<Application, Malformed> {
        let client_id = client_id.clone().ok_or_else(|| {
            Malformed::new(CLIENT_ID, "it is needed with a secret and with workload identity")
        })?;
        let is_part = |character: char| character.is_ascii_alphanumeric() || "-.".contains(character);
        let tenant = secret(&settings.tenant, TENANT).filter(|it| it.expose_secret().chars().all(is_part));
        let tenant = tenant
            .ok_or_else(|| Malformed::new(TENANT, "it must be the ID of a tenant or one of its domains"))?;
        let url = format!("{}/{}/oauth2/v2.0/token", environment.authority, tenant.expose_secret());
        Ok(Application { url, client_id })
    };
    let source = match (settings.client_secret.clone(), variable(TOKEN_FILE)) {
        (Some(secret), _) => Source::Secret(application()?, secret),
        (None, Some(path)) => Source::TokenFile(application()?, path),
        (None, None) => {
            let url = variable(METADATA_HOST).unwrap_or_else(|| METADATA.to_owned());
            Source::Metadata(url.trim_end_matches('/').to_owned(), client_id)
        }
    };
    Ok((source, environment))
}

impl Application {
    /// A request for a token for this audience, with the fields that prove the application. They contain `secret`.
    fn request(&self, audience: &str, proof: &[(&str, &str)], secret: &SecretString) -> Result<Call, Error> {
        let (client_id, scope) = (self.client_id.expose_secret(), format!("{audience}/.default"));
        let fields = [("grant_type", "client_credentials"), ("client_id", client_id), ("scope", &scope)];
        let call = Call::to("asking Microsoft Entra for an access token", Method::POST, &self.url)?;
        Ok(call.form(&[&fields, proof].concat()).hiding([secret]))
    }
}

impl TokenSource for Credentials {
    fn origin(&self) -> &'static str {
        match self.source {
            Source::Secret(..) => "the application's secret (AZURE_CLIENT_SECRET)",
            Source::TokenFile(..) => "workload identity (AZURE_FEDERATED_TOKEN_FILE)",
            Source::Metadata(..) => "the managed identity of the node",
        }
    }

    fn is_metadata(&self) -> bool {
        matches!(self.source, Source::Metadata(..))
    }

    fn is_refusal(&self, reply: &Reply) -> bool {
        is_of_token(reply)
    }

    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error> {
        let call = match &self.source {
            Source::Secret(application, secret) => {
                let proof = [("client_secret", secret.expose_secret())];
                application.request(&self.audience, &proof, secret)?
            }
            Source::TokenFile(application, path) => {
                let token = read_file("the file that AZURE_FEDERATED_TOKEN_FILE names", path).await?;
                let kind = ("client_assertion_type", JWT_BEARER);
                let proof = [kind, ("client_assertion", token.expose_secret())];
                application.request(&self.audience, &proof, &token)?
            }
            Source::Metadata(url, client_id) => {
                let client_id = client_id.as_ref().map(|id| ("client_id", id.expose_secret()));
                let query = [("api-version", "2018-02-01"), ("resource", &*self.audience)];
                let query = encoded(query.into_iter().chain(client_id));
                let url = format!("{url}/metadata/identity/oauth2/token?{query}");
                let call = Call::to("asking the metadata service for an access token", Method::GET, &url)?;
                call.header("metadata", "true")?
            }
        };
        let reply = client.send(call).await;
        let (reply, advice) = if self.is_metadata() {
            (reply.and_then(accepted_metadata), METADATA_ADVICE)
        } else {
            (reply.and_then(accepted), APPLICATION_ADVICE)
        };
        reply.map_err(|error| error.advising(advice))?.token()
    }
}

#[cfg(test)]
mod tests;
