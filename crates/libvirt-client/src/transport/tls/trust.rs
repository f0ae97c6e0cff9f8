//! Whom a TLS client trusts.

use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};

use super::credentials::Credentials;
use crate::error::Error;
use crate::uri::Tls;

pub(super) fn verifier(
    tls: &Tls,
    credentials: &Credentials,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    if !tls.verify {
        return Ok(Arc::new(Anybody(provider.signature_verification_algorithms)));
    }
    let file = credentials.authority_file.display();
    let Some(authorities) = &credentials.authorities else {
        return Err(Error::Auth(format!(
            "there is no {file}, which tells a libvirt server from others; put the authority's certificate there, \
             name its folder with ?pkipath=FOLDER, or use no_verify=1 to check nothing"
        )));
    };
    let unusable = |problem: String| Error::Auth(format!("cannot use {file}: {problem}"));
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| unusable(error.to_string()))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .with_crls(credentials.revoked.iter().cloned())
        // A revocation list covers the authority that made it. libvirt requires none.
        .allow_unknown_revocation_status()
        .build()
        // The authorities are good by now.
        .map_err(|error| {
            let lists = credentials.authority_file.with_file_name("cacrl.pem");
            Error::Auth(format!("cannot use {}: {error}", lists.display()))
        })?;
    Ok(verifier)
}

/// Trusts any server that has the key of its certificate: `no_verify=1`.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
