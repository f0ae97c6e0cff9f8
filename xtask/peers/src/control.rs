//! How a test controls a stand-in: by posting JSON to it, beside its API.

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};

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
    pub async fn ask<T: DeserializeOwned>(&self, what: &str, with: &impl Serialize) -> Result<T> {
        let answer = self.post(what, with).await?;
        let text = || format!("{what}: {}", String::from_utf8_lossy(&answer));
        serde_json::from_slice(&answer).with_context(text)
    }

    /// Posts to `what`. Fails if the stand-in does.
    pub async fn tell(&self, what: &str, with: &impl Serialize) -> Result<()> {
        self.post(what, with).await.map(drop)
    }

    async fn post(&self, what: &str, with: &impl Serialize) -> Result<Bytes> {
        let with = serde_json::to_string(with)?;
        let request = Request::post(format!("{}/{what}", self.base)).body(with.clone().into())?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{what} {with}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}
