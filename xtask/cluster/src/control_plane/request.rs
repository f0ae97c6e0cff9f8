//! Requests to the API server. To run kubectl for one takes 40 ms of processor time, and a start sends a dozen.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Cluster;
use crate::pki::Pki;

/// How long the API server may take for an answer.
const DEADLINE: Duration = Duration::from_secs(20);

impl Cluster {
    /// The API server's answer to `GET PATH` by the administrator. Fails if the answer is an error.
    pub(crate) async fn get(&self, path: &str) -> Result<String> {
        self.request(Method::GET, path, String::new()).await
    }

    /// Creates an object by `POST PATH`, as the administrator.
    pub(super) async fn post(&self, path: &str, object: &Value) -> Result<()> {
        self.request(Method::POST, path, object.to_string()).await.map(drop)
    }

    async fn request(&self, method: Method, path: &str, body: String) -> Result<String> {
        let what = format!("{method} {}{path}", self.server_url());
        // In memory of its own: it is large, and would be part of each future that waits for a cluster.
        let exchange = Box::pin(self.exchange(method, path, body));
        let (status, answer) = timeout(DEADLINE, exchange)
            .await
            .with_context(|| format!("{what}: no answer within {DEADLINE:?}"))?
            .with_context(|| what.clone())?;
        ensure!(status.is_success(), "{what} is answered with {status}: {}", answer.trim());
        Ok(answer)
    }

    /// Uses a connection of its own, so that nothing is left of it on the runtime.
    async fn exchange(&self, method: Method, path: &str, body: String) -> Result<(StatusCode, String)> {
        let address = (self.plan.server_ip(), self.plan.address.api_server);
        let stream = TcpStream::connect(address).await?;
        let tls = self.tls.get_or_try_init(async || self.read_tls()).await?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(ServerName::from(address.0), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::builder().method(method).uri(path).header("host", address.0.to_string());
        let request =
            request.header("content-type", "application/json").body(Full::new(Bytes::from(body)))?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            // The connection ends when its sender is dropped.
            drop(sender);
            Ok::<_, hyper::Error>((status, body))
        };
        let ((status, body), ()) = tokio::try_join!(exchange, connection)?;
        Ok((status, String::from_utf8(body.into())?))
    }

    fn read_tls(&self) -> Result<Arc<ClientConfig>> {
        let dir = self.plan.dir.join("pki");
        let pki = Pki::at(&dir);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(pki.ca())?)?;
        let certificate = CertificateDer::from_pem_file(pki.certificate("admin"))?;
        let key = PrivateKeyDer::from_pem_file(pki.key("admin"))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        Ok(Arc::new(config))
    }
}
