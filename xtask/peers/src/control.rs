//! How a test steers a stand-in: posts of JSON, beside its API.

use anyhow::{Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// Steers one stand-in.
#[derive(Debug)]
pub struct Control {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Control {
    /// What is below this URL.
    pub fn new(base: String) -> Self {
        Self { base, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Asks for `what`, and gives the answer. Fails if the stand-in does.
    pub async fn ask(&self, what: &str, with: &Value) -> Result<Value> {
        let request = Request::post(format!("{}/{what}", self.base)).body(with.to_string().into())?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{what} {with}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }
}
