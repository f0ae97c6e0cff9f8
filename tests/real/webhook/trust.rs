//! Whether a client that connects for the first time trusts the presented certificate.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

/// Connects to the webhook at this address, as an API server that knows these authorities does.
pub(super) async fn connect(address: (&str, u16), name: String, authorities: &[u8]) -> Result<()> {
    let mut trusted = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        trusted.add(authority?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let connected = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name)?, stream).await;
    connected.map(drop).context("the certificate that is shown is not trusted")
}
