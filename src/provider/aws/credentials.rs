//! The operator's identity for EC2.
//!
//! The first of these that exists is used: an access key in the folders; a role with a token of the ServiceAccount, in the
//! folders or as EKS injects it; EKS Pod Identity; the role of the node.

use std::net::IpAddr;

use hyper::{Request, Uri, body::Bytes};
use jiff::Timestamp;
use reqsign_aws_v4::Credential;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::{
    Settings,
    metadata::{METADATA, Metadata},
};
use crate::provider::{
    Error, ErrorClass,
    http::{
        Call, Client, Fresh, Options, Reply,
        identity::{read_file, variable},
        sensitive,
    },
};

/// What is read from the file with a token, for people.
const TOKEN: &str = "the token of the ServiceAccount";

/// What is wrong with the address of an agent.
const NO_AGENT: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI names no agent on this node";

/// Where credentials come from.
pub(super) enum Source {
    /// An access key.
    Key(Credential),
    /// A role that is assumed with the token in a file.
    WebIdentity { role: String, file: String },
    /// An agent on the node, with the token in a file.
    PodIdentity { client: Client, uri: Uri, file: String },
    /// The node's role.
    Node(Metadata),
}

/// Credentials as agents and metadata give them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Expiring {
    access_key_id: SecretString,
    secret_access_key: SecretString,
    #[serde(alias = "SessionToken")]
    token: SecretString,
    expiration: Timestamp,
}

impl Source {
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        if let (Some(id), Some(secret)) = (&settings.access_key_id, &settings.secret_access_key) {
            return Ok(Self::Key(credential(id, secret, settings.session_token.as_ref())));
        }
        if let [Some(role), Some(file)] = settings.role() {
            return Ok(Self::WebIdentity { role, file });
        }
        let agent = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        if let (Some(uri), Some(file)) = (agent, variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
            let uri = agent_uri(&uri).ok_or_else(|| Error::new(ErrorClass::Invalid, NO_AGENT))?;
            return Ok(Self::PodIdentity { client: Client::new(Options::metadata())?, uri, file });
        }
        Metadata::new(variable(METADATA)).map(Self::Node)
    }

    /// In a few words, for people.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Key(_) => "an access key",
            Self::WebIdentity { .. } => "a role by a token of the ServiceAccount",
            Self::PodIdentity { .. } => "EKS pod identity",
            Self::Node(_) => "the node's role",
        }
    }

    /// Fetches credentials. `assume` asks the token service for those of a role, with a token.
    pub(super) async fn fetch(
        &self,
        assume: impl AsyncFnOnce(&str, SecretString) -> Result<Expiring, Error>,
    ) -> Result<Fresh<Credential>, Error> {
        match self {
            Self::Key(key) => Ok(Fresh { value: key.clone(), expires: Timestamp::MAX }),
            Self::WebIdentity { role, file } => Ok(assume(role, read_file(TOKEN, file).await?).await?.into()),
            Self::PodIdentity { client, uri, file } => {
                let token = read_file(TOKEN, file).await?;
                let header = sensitive(token.expose_secret())
                    .ok_or_else(|| Error::new(ErrorClass::Unauthorized, "the Pod's token is malformed"))?;
                let request = Request::get(uri).header("authorization", header).body(Bytes::new());
                let doing = "asking the agent of EKS pod identity for credentials";
                let reply = client.send(Call::of(doing, request, NO_AGENT)?).await?;
                let refused = |it: &Reply| it.error("", &String::from_utf8_lossy(&it.body), None);
                Ok(reply.success_or(refused)?.credential::<Expiring>()?.into())
            }
            Self::Node(metadata) => Ok(metadata.credentials().await?.into()),
        }
    }
}

impl From<Expiring> for Fresh<Credential> {
    fn from(expiring: Expiring) -> Self {
        let session = Some(&expiring.token).filter(|token| !token.expose_secret().is_empty());
        let value = credential(&expiring.access_key_id, &expiring.secret_access_key, session);
        Self { value, expires: expiring.expiration }
    }
}

fn credential(id: &SecretString, secret: &SecretString, session: Option<&SecretString>) -> Credential {
    Credential {
        access_key_id: id.expose_secret().to_owned(),
        secret_access_key: secret.expose_secret().to_owned(),
        session_token: session.map(|session| session.expose_secret().to_owned()),
        expires_in: None,
    }
}

/// Only an agent on the node, or an encrypted connection. The Pod's token is sent nowhere else.
fn agent_uri(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']);
    let local = host.parse::<IpAddr>().is_ok_and(|ip| {
        ip.is_loopback() || ["169.254.170.23", "fd00:ec2::23"].iter().any(|agent| agent.parse() == Ok(ip))
    });
    (local || uri.scheme_str() == Some("https")).then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_token_is_sent_by_https_or_to_an_agent_on_the_node() {
        for local in [
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1",
            "http://127.0.0.1:8080/",
            "https://any.example/",
        ] {
            assert!(agent_uri(local).is_some(), "{local}");
        }
        for foreign in
            ["http://example.org/", "http://169.254.170.24/", "/v1", "http://169.254.170.23.example.org/"]
        {
            assert!(agent_uri(foreign).is_none(), "{foreign}");
        }
    }
}
