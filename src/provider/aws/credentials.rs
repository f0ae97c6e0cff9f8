//! The operator's identity for EC2.
//!
//! The first of these that exists is used: an access key in the folders; a role with a token of the ServiceAccount, in the
//! folders or as EKS injects it; EKS Pod Identity; the role of the node.

use std::net::IpAddr;

use hyper::{Method, Request, Uri, body::Bytes, header::HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::Settings;
use crate::provider::{
    Error, ErrorClass,
    http::{AccessKey, Call, Client, Metadata, Options, Reply, TemporaryKey, identity::variable, sensitive},
};

/// What is wrong with the address of an agent.
const NO_AGENT: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI names no agent on this node";

/// Where credentials come from.
pub(super) enum Source {
    /// An access key.
    Key(AccessKey),
    /// A role that is assumed with the token in a file.
    WebIdentity { role: String, file: String },
    /// An agent on the node, with the token in a file.
    PodIdentity { uri: Uri, file: String },
    /// The node's role.
    Node,
}

impl Source {
    pub(super) fn of(settings: &Settings) -> Result<Self, Error> {
        if let Some((id, secret)) = settings.access_key_id.clone().zip(settings.secret_access_key.clone()) {
            return Ok(Self::Key(AccessKey { id, secret, token: settings.session_token.clone() }));
        }
        if let [Some(role), Some(file)] = settings.role() {
            return Ok(Self::WebIdentity { role, file });
        }
        let agent = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        if let (Some(uri), Some(file)) = (agent, variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
            let uri = agent_uri(&uri).ok_or_else(|| Error::new(ErrorClass::Invalid, NO_AGENT))?;
            return Ok(Self::PodIdentity { uri, file });
        }
        Ok(Self::Node)
    }

    /// In a few words, for people.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Key(_) => "an access key",
            Self::WebIdentity { .. } => "a role by a token of the ServiceAccount",
            Self::PodIdentity { .. } => "EKS pod identity",
            Self::Node => "the node's role",
        }
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

/// What the node on which this program runs offers to it: metadata (version 2 of the service), and the agent of EKS Pod Identity.
pub(super) struct OwnNode {
    client: Client,
    metadata: Metadata,
}

impl OwnNode {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self { client: Client::new(Options::metadata())?, metadata: metadata() })
    }

    /// The region of the node.
    pub(super) async fn region(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Document {
            region: String,
        }
        let document: Document = self.read("/latest/dynamic/instance-identity/document").await?.json()?;
        Ok(document.region)
    }

    /// The credentials of the node's role.
    pub(super) async fn role(&self) -> Result<TemporaryKey, Error> {
        const ROLE: &str = "/latest/meta-data/iam/security-credentials/";
        let role = self.read(ROLE).await?;
        let role = String::from_utf8_lossy(&role.body).trim().to_owned();
        self.read(&format!("{ROLE}{role}")).await?.credential()
    }

    /// The credentials that the agent at this address gives for the Pod's token.
    pub(super) async fn agent(&self, uri: &Uri, token: &SecretString) -> Result<TemporaryKey, Error> {
        let token = sensitive(token.expose_secret())
            .ok_or_else(|| Error::new(ErrorClass::Unauthorized, "the Pod's token is malformed"))?;
        let request = Request::get(uri).header("authorization", token).body(Bytes::new());
        let doing = "asking the agent of EKS pod identity for credentials";
        let reply = self.client.send(Call::of(doing, request, NO_AGENT)?).await?;
        reply.success_or(refused_by_agent)?.credential()
    }

    async fn read(&self, path: &str) -> Result<Reply, Error> {
        let lasts = ("x-aws-ec2-metadata-token-ttl-seconds", HeaderValue::from_static("60"));
        let token = self.metadata.ask(&self.client, Method::PUT, "/latest/api/token", lasts).await?;
        let token = sensitive(&*token.body)
            .ok_or_else(|| Error::new(ErrorClass::Transient, "the metadata server's token is malformed"))?;
        self.metadata.ask(&self.client, Method::GET, path, ("x-aws-ec2-metadata-token", token)).await
    }
}

/// The agent passes on what EKS answers: 400 for a role that may not be assumed or a token that has expired, 404 without an association.
fn refused_by_agent(reply: &Reply) -> Error {
    let is_refusal = matches!(reply.status.as_u16(), 400 | 404);
    let class = is_refusal.then_some(ErrorClass::Unauthorized);
    reply.error("", &String::from_utf8_lossy(&reply.body), class)
}

fn metadata() -> Metadata {
    Metadata::new(
        variable("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        Some((ErrorClass::Unauthorized, "the node has no role")),
        "without AWS_ACCESS_KEY_ID or AWS_ROLE_ARN the node's role is used, and without AWS_REGION the node's region; a Pod \
         reaches them if the node's metadata allow two hops",
    )
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn a_node_without_a_role_is_named() {
        let error = metadata().refusal(&Reply::of(StatusCode::NOT_FOUND, ""));
        assert_eq!(error.class, ErrorClass::Unauthorized);
        assert!(error.to_string().ends_with("the cloud answered 404; the node has no role"), "{error}");
    }

    #[test]
    fn what_eks_refuses_the_agent_is_tried_again_soon() {
        let class =
            |status| refused_by_agent(&Reply::of(status, "[1]: (AccessDeniedException): no trust")).class;
        for status in [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::FORBIDDEN] {
            assert_eq!(class(status), ErrorClass::Unauthorized, "{status}");
        }
        assert_eq!(class(StatusCode::INTERNAL_SERVER_ERROR), ErrorClass::Transient);
    }

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
