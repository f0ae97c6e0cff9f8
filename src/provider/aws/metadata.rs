//! The metadata that EC2 offers to programs on a node (version 2 of the metadata service).

use hyper::{Request, StatusCode, body::Bytes};
use serde::Deserialize;

use super::credentials::Expiring;
use crate::provider::{
    Error, ErrorClass,
    http::{Call, Client, Options, Reply, sensitive},
};

/// The environment variable that names another address.
pub(super) const METADATA: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";

/// Where every node reaches it.
const ADDRESS: &str = "http://169.254.169.254";

/// The metadata of the node on which this program runs.
#[derive(Debug)]
pub(super) struct Metadata {
    client: Client,
    address: String,
}

#[derive(Deserialize)]
struct Document {
    region: String,
}

impl Metadata {
    /// `address` is that of [`METADATA`], if it is set.
    pub(super) fn new(address: Option<String>) -> Result<Self, Error> {
        let address = address.unwrap_or_else(|| ADDRESS.to_owned());
        Ok(Self {
            client: Client::new(Options::metadata())?,
            address: address.trim_end_matches('/').to_owned(),
        })
    }

    /// The region of the node.
    pub(super) async fn region(&self) -> Result<String, Error> {
        let document: Document = self.read("/latest/dynamic/instance-identity/document").await?.json()?;
        Ok(document.region)
    }

    /// The credentials of the node's role.
    pub(super) async fn credentials(&self) -> Result<Expiring, Error> {
        const ROLE: &str = "/latest/meta-data/iam/security-credentials/";
        let role = self.read(ROLE).await?;
        let role = String::from_utf8_lossy(&role.body).trim().to_owned();
        self.read(&format!("{ROLE}{role}")).await?.credential()
    }

    async fn read(&self, path: &str) -> Result<Reply, Error> {
        let token = Request::put(format!("{}/latest/api/token", self.address))
            .header("x-aws-ec2-metadata-token-ttl-seconds", "60");
        let token = self.send("asking the instance metadata for a token", token).await?;
        let token = sensitive(&*token.body)
            .ok_or_else(|| Error::new(ErrorClass::Transient, "the instance metadata's token is malformed"))?;
        let request =
            Request::get(format!("{}{path}", self.address)).header("x-aws-ec2-metadata-token", token);
        self.send("asking the instance metadata", request).await
    }

    async fn send(
        &self,
        doing: &'static str,
        request: hyper::http::request::Builder,
    ) -> Result<Reply, Error> {
        let malformed = "the address of the instance metadata is malformed";
        let reply = self.client.send(Call::of(doing, request.body(Bytes::new()), malformed)?).await;
        let reply = reply.map_err(|error| {
            error.advising(
                "without AWS_ACCESS_KEY_ID or AWS_ROLE_ARN the node's role is used, and without AWS_REGION the node's region; \
                 a Pod reaches them if the node's metadata allow two hops",
            )
        })?;
        match reply.status {
            StatusCode::OK => Ok(reply),
            StatusCode::NOT_FOUND => {
                Err(reply.error("", "", Some(ErrorClass::Unauthorized)).advising("the node has no role"))
            }
            _ => Err(reply.error("", &String::from_utf8_lossy(&reply.body), None)),
        }
    }
}
