//! Another mutating webhook: it answers every review with the same patch.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

pub(super) struct Injector {
    port: u16,
    authority: String,
    task: JoinHandle<()>,
}

impl Injector {
    pub(super) async fn start(patch: Value) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (tls, patch) = (TlsAcceptor::from(Arc::new(config)), Arc::new(patch));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, patch) = (tls.clone(), Arc::clone(&patch));
                // If a connection fails, the API server reports it.
                tokio::spawn(async move { converse(stream, tls, &patch).await.ok() });
            }
        });
        Ok(Self { port, authority: cert.pem(), task })
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}/inject", self.port)
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers requests one by one.
async fn converse(stream: TcpStream, tls: TlsAcceptor, patch: &Value) -> Result<()> {
    let mut stream = tls.accept(stream).await?;
    let mut text = Vec::new();
    while stream.read_buf(&mut text).await? > 0 {
        let Some(end) = text.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&text[..end])?.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let whole = end + 4 + length.context("the request has no length")?.parse::<usize>()?;
        if text.len() < whole {
            continue;
        }
        let review: Value = serde_json::from_slice(&text[end + 4..whole])?;
        text.drain(..whole);
        let injected = review["request"]["object"]["spec"]["initContainers"].is_array();
        let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
        if !injected {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = serde_json::to_value(ByteString(serde_json::to_vec(patch)?))?;
        }
        let body =
            json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
                .to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
    }
    Ok(())
}
