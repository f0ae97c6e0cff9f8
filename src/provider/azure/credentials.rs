//! The operator's identity for Azure: access tokens, and their sources.
//!
//! ```text
//! AZURE_CLIENT_SECRET         the secret of an application
//! AZURE_FEDERATED_TOKEN_FILE  workload identity: a token of the cluster stands for an application
//! else                        the metadata service, for the managed identity of the node
//! ```
//!
//! The admission of workload identity sets environment variables. A setting overrules the variable of its name.

use hyper::{Method, header::HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    answer::is_of_token,
    settings::{Environment, Settings, environment},
};
use crate::{
    provider::{
        Error, ErrorClass,
        http::{Call, Client, Fresh, Metadata, Proof, Reply, TokenSource, encoded},
    },
    settings::Malformed,
};

const CLIENT_ID: &str = "AZURE_CLIENT_ID";
const TENANT: &str = "AZURE_TENANT_ID";
const TOKEN_FILE: &str = "AZURE_FEDERATED_TOKEN_FILE";

/// The variable by which Microsoft's libraries find another metadata service.
const METADATA_HOST: &str = "AZURE_POD_IDENTITY_AUTHORITY_HOST";

/// The way in which a federated token is handed over.
const JWT_BEARER: (&str, &str) =
    ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer");

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
    /// Microsoft Entra's endpoint at this URL, for an application that its secret or a token of the cluster proves.
    Application { url: String, client_id: SecretString, proof: Proof },
    /// The metadata service, for this managed identity or the only one.
    Metadata(Metadata, Option<SecretString>),
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
    let file = || Some(Proof::File("the file that AZURE_FEDERATED_TOKEN_FILE names", variable(TOKEN_FILE)?));
    let Some(proof) = settings.client_secret.clone().map(Proof::Secret).or_else(file) else {
        // It answers 404 or 410 while Azure updates it, which takes 70 s at most.
        let missing = (ErrorClass::Transient, METADATA_ADVICE);
        let server = Metadata::new(variable(METADATA_HOST), Some(missing), METADATA_ADVICE);
        return Ok((Source::Metadata(server, client_id), environment));
    };
    let client_id = client_id.ok_or_else(|| {
        let problem = match proof {
            Proof::Secret(_) => {
                "it is empty; set it to the ID of the application that AZURE_CLIENT_SECRET belongs to"
            }
            Proof::File(..) => {
                "it is empty, and workload identity does not set it; annotate the operator's ServiceAccount with \
                 azure.workload.identity/client-id, and restart the operator"
            }
        };
        Malformed::new(CLIENT_ID, problem)
    })?;
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
        match &self.source {
            Source::Application { url, client_id, proof } => {
                let (secret, scope) = (proof.read().await?, format!("{}/.default", self.audience));
                let client_id = ("client_id", client_id.expose_secret());
                let mut fields = vec![("grant_type", "client_credentials"), client_id, ("scope", &*scope)];
                match proof {
                    Proof::Secret(_) => fields.push(("client_secret", secret.expose_secret())),
                    Proof::File(..) => {
                        fields.extend([JWT_BEARER, ("client_assertion", secret.expose_secret())]);
                    }
                }
                let call = Call::to("asking Microsoft Entra for an access token", Method::POST, url)?;
                let token = client.token(call.form(&fields).hiding([&secret])).await;
                token.map_err(|error| error.advising_on(ErrorClass::Unauthorized, APPLICATION_ADVICE))
            }
            Source::Metadata(server, client_id) => {
                let client_id = client_id.as_ref().map(|id| ("client_id", id.expose_secret()));
                let query = [("api-version", "2018-02-01"), ("resource", &*self.audience)];
                let query = encoded(query.into_iter().chain(client_id));
                let path = format!("/metadata/identity/oauth2/token?{query}");
                let header = ("metadata", HeaderValue::from_static("true"));
                server.ask(client, Method::GET, &path, header).await?.token()
            }
        }
    }
}

#[cfg(test)]
mod tests;
