//! How a test controls a stand-in: by posting JSON to it, beside its API.

use anyhow::{Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// The control of one stand-in.
#[derive(Debug)]
pub struct Control {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Control {
    /// The control below this URL.
    pub fn new(base: String) -> Self {
        Self { base, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Posts to `what`, and returns the answer. Fails if the stand-in does.
    pub async fn ask(&self, what: &str, with: &Value) -> Result<Value> {
        let request = Request::post(format!("{}/{what}", self.base)).body(with.to_string().into())?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{what} {with}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }
}
